package editor

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestPromptText checks that files of this machine have the path that the agent knows, and that content which a session
// cannot take is refused.
func TestPromptText(t *testing.T) {
	t.Parallel()
	place := paths{local: "/home/u/p", inside: "/workspace/p"}
	for data, want := range map[string]string{
		`[{"type":"text","text":"look at "},{"type":"resource_link","name":"a.go",` +
			`"uri":"file:///home/u/p/src/a.go#L3"},{"type":"text","text":" please"}]`: "look at " +
			"[@a.go](/workspace/p/src/a.go#L3) please",
		`[{"type":"resource_link","name":"b","uri":"file:///home/u/other/b"}]`: "" +
			"[@b](file:///home/u/other/b) (not in the sandbox)",
		`[{"type":"resource_link","name":"c","uri":"https://example.org/c"}]`: "[@c](https://example.org/c)",
		`[{"type":"resource","resource":{"uri":"file:///home/u/p/d%20e","text":"x"}},` +
			`{"type":"text","text":"?"}]`: "[@d e](/workspace/p/d e)?\n\n" +
			"<context ref=\"/workspace/p/d e\">\nx\n</context>",
	} {
		var blocks []block
		if err := json.Unmarshal([]byte(data), &blocks); err != nil {
			t.Fatal(err)
		}
		if got, err := promptText(blocks, place); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", data, got, err, want)
		}
	}
	for _, b := range []block{{Type: "image"}, {Type: "audio"}, {Type: "resource"}, {}} {
		if _, err := promptText([]block{b}, place); errors.KindOf(err) != errors.Invalid || errors.RemedyOf(err) == "" {
			t.Errorf("%q: %v", b.Type, err)
		}
	}
}

// TestPaths checks the mapping of files in both directions, and that other files have none.
func TestPaths(t *testing.T) {
	t.Parallel()
	p := paths{local: "/home/u/p", inside: "/workspace/p"}
	for inside, local := range map[string]string{"/workspace/p": "/home/u/p", "/workspace/p/a": "/home/u/p/a",
		"b/c": "/home/u/p/b/c"} {
		if got, ok := p.out(inside); !ok || got != local {
			t.Errorf("%s: %s", inside, got)
		}
	}
	for _, name := range []string{"", "/workspace/other", "/workspace/p/../x", "../x", "/etc/passwd"} {
		if got, ok := p.out(name); ok {
			t.Errorf("%q is %s", name, got)
		}
	}
	for _, name := range []string{"/home/u", "/home/u/p2/a", "/home/u/p/../x"} {
		if got, ok := p.in(name); ok {
			t.Errorf("%q is %s", name, got)
		}
	}
	if _, ok := (paths{}).out("/workspace/p"); ok {
		t.Error("a session without files of this machine has one")
	}
}

// TestMergeServers checks that all servers of the editor are passed on or refused.
func TestMergeServers(t *testing.T) {
	t.Parallel()
	base := json.RawMessage(`{"mcpServers":{"own":{"command":"own"},"two words":{}}}`)
	var list []mcpServer
	if err := json.Unmarshal([]byte(`[{"name":"two words","command":"run","args":["a"],
		"env":[{"name":"K","value":"v"}]}, {"type":"http","name":"web","url":"https://example.org",
		"headers":[{"name":"H","value":"w"}]}]`), &list); err != nil {
		t.Fatal(err)
	}
	got, names, err := mergeServers(base, list)
	want := `{"mcpServers":{"own":{"command":"own"},"two words":{},"two-words":{"args":["a"],"command":"run",` +
		`"env":{"K":"v"},"type":"stdio"},"web":{"headers":{"H":"w"},"type":"http","url":"https://example.org"}}}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if diff := cmp.Diff([]string{"two-words", "web"}, names); diff != "" {
		t.Error(diff)
	}
	if _, _, err := mergeServers(nil, []mcpServer{{Type: "sse", Name: "old"}}); errors.KindOf(err) != errors.Invalid ||
		!strings.Contains(err.Error(), "old") {
		t.Errorf("%v", err)
	}
	if got, _, err := mergeServers(base, nil); err != nil || string(got) != string(base) {
		t.Errorf("%s, %v", got, err)
	}
}
