package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestChosenVersions checks that --agent-version and agents.versions choose the versions of the real agents, which are
// installed into their sandboxes, and that a version that does not exist fails with npm's words.
//
// mission: E1
func TestChosenVersions(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("claude", modeltest.Step{Say: "Claude is here."})
	stub.Script("opencode", modeltest.Step{Say: "OpenCode is here."})
	h := host.NewModel(t, stub)
	h.Env.Setenv("HARVEST_AGENTS_VERSIONS", "opencode=1.18.32")
	run := []string{"agent", "--repo", "none", "--memory", "4GiB", "-o", "text", "-e",
		"NPM_CONFIG_REGISTRY=" + testenv.NPMRegistry(t)}
	for name, more := range map[string][]string{"claude": {"--agent-version", "2.1.331"}, "opencode": nil} {
		out := h.Must(slices.Concat(run, []string{"--agent", name}, more, []string{"[" + name + "] go"})...)
		if !strings.Contains(out, "is here.") {
			t.Errorf("%s: %s; %s", name, out, h.Log())
		}
		want := map[string]string{"claude": "claude-cli/2.1.331", "opencode": "opencode/1.18.32"}[name]
		var seen []string
		for _, r := range stub.Requests() {
			seen = append(seen, r.Header.Get("User-Agent"))
		}
		if !slices.ContainsFunc(seen, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("%s: the model was asked by %q", name, seen)
		}
	}
	_, stderr, code := h.Run(append(run, "--agent", "claude", "--agent-version", "0.0.9", "[claude] go")...)
	if code == 0 || !strings.Contains(stderr, "0.0.9") {
		t.Errorf("a version that does not exist: %d, %s", code, stderr)
	}
	_, stderr, code = h.Run(append(run, "--agent", "claude", "--agent-version", "latest", "[claude] go")...)
	if code == 0 || !strings.Contains(stderr, "exact version") {
		t.Errorf("a tag: %d, %s", code, stderr)
	}
}
