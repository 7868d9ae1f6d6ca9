package lint_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// Without the database of vulnerabilities the script reports that nothing was checked, and fails if it is strict.
func TestVulncheckWithoutTheDatabase(t *testing.T) {
	testenv.Long(t)
	check := func(env []string, args ...string) (last string, failed bool) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "../scripts/vulncheck", append(args, "-db", "http://127.0.0.1:1",
			"./internal/base/ids")...)
		cmd.Dir = "../.."
		cmd.Path = "tools/scripts/vulncheck"
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		text := strings.TrimSpace(string(out))
		return text[strings.LastIndexByte(text, '\n')+1:], err != nil
	}
	for name, c := range map[string]struct {
		env, args []string
		fails     bool
	}{
		"as usual":          {nil, nil, false},
		"strict":            {nil, []string{"--strict"}, true},
		"strict by its env": {[]string{"HARVEST_VULNCHECK_STRICT=1"}, nil, true},
	} {
		if last, failed := check(c.env, c.args...); last != "vulnerabilities: not checked" || failed != c.fails {
			t.Errorf("%s: failed %t, %q", name, failed, last)
		}
	}
}
