package mcp

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
)

var update = flag.Bool("update", false, "write the golden files anew")

func none(string) bool { return false }
func all(string) bool  { return true }

func names(servers []Server) string {
	var list []string
	for _, s := range servers {
		list = append(list, s.Name)
	}
	return strings.Join(list, " ")
}

// mission: E5
func TestServersByTheirSecrets(t *testing.T) {
	t.Parallel()
	if err := Check(Servers()); err != nil {
		t.Fatal(err)
	}
	if got, want := names(Enabled(Servers(), none)), "memory filesystem playwright devtools"; got != want {
		t.Errorf("without any secret there are %s, not %s", got, want)
	}
	if got, want := names(Enabled(Servers(), all)),
		"memory filesystem playwright devtools github gemini sentry linear"; got != want {
		t.Errorf("with all secrets there are %s, not %s", got, want)
	}
	one := func(secret string) bool { return secret == "LINEAR_API_KEY" }
	if got, want := names(Enabled(Servers(), one)), "memory filesystem playwright devtools linear"; got != want {
		t.Errorf("with one secret there are %s, not %s", got, want)
	}
	for _, s := range Servers() {
		if s.About == "" {
			t.Errorf("%s does not say what it is", s.Name)
		}
	}
}

// mission: E5
func TestConfigurations(t *testing.T) {
	t.Parallel()
	openCode := func(servers []Server) ([]byte, error) { return OpenCodeConfig(servers, time.Minute) }
	own := Server{Name: "own", Command: []string{"run", "a b", "<&>"}, Env: map[string]string{"A": "x${B}y$C"}}
	for _, c := range []struct {
		file    string
		servers []Server
		encode  func([]Server) ([]byte, error)
	}{
		{"claude.json", append(Servers(), own), ClaudeConfig},
		{"opencode.json", append(Servers(), own), openCode},
		{"claude-none.json", nil, ClaudeConfig},
		{"opencode-none.json", nil, openCode},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			got, err := c.encode(c.servers)
			if err != nil {
				t.Fatal(err)
			}
			if !json.Valid(got) {
				t.Errorf("it is not JSON: %s", got)
			}
			golden := filepath.Join("testdata", c.file)
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("got %s\nwant %s (go test -update writes it anew)", got, want)
			}
		})
	}
}

// TestServersKeepTheirOrder checks that Claude Code starts the built-in servers before those of a project.
//
// mission: E5
func TestServersKeepTheirOrder(t *testing.T) {
	t.Parallel()
	text, err := ClaudeConfig(append(Servers(), Server{Name: "a", Command: []string{"run"}}))
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for _, name := range []string{"memory", "filesystem", "playwright", "devtools", "a"} {
		at := strings.Index(string(text), "\n    \""+name+"\": {")
		if at <= last {
			t.Errorf("%s is at %d, after %d", name, at, last)
		}
		last = at
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	run := []string{"run"}
	for _, c := range []struct {
		about   string
		servers []Server
		text    string // "" where nothing is wrong
	}{
		{"nothing", nil, ""},
		{"a command", []Server{{Name: "a", Command: run}}, ""},
		{"a URL", []Server{{Name: "a-1_B", URL: "https://example.org/mcp"}}, ""},
		{"no name", []Server{{Command: run}}, "cannot have the name"},
		{"a path as a name", []Server{{Name: "../x", Command: run}}, "cannot have the name"},
		{"a name that begins with a dash", []Server{{Name: "-x", Command: run}}, "cannot have the name"},
		{"a name that is too long", []Server{{Name: strings.Repeat("x", 65), Command: run}}, "cannot have the name"},
		{"a name twice", []Server{{Name: "a", Command: run}, {Name: "a", URL: "https://example.org"}}, "there are two"},
		{"neither", []Server{{Name: "a"}}, "either a command or a URL"},
		{"both", []Server{{Name: "a", Command: run, URL: "https://example.org"}}, "either a command or a URL"},
		{"an empty program", []Server{{Name: "a", Command: []string{""}}}, "either a command or a URL"},
	} {
		t.Run(c.about, func(t *testing.T) {
			t.Parallel()
			_, claude := ClaudeConfig(c.servers)
			_, open := OpenCodeConfig(c.servers, 0)
			for _, err := range []error{Check(c.servers), claude, open} {
				if c.text == "" && err != nil {
					t.Errorf("got %v", err)
				}
				if c.text != "" && (errors.KindOf(err) != errors.Invalid ||
					!strings.Contains(errors.Message(err), c.text) || errors.RemedyOf(err) == "") {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

// No value of a secret gets into a configuration, only the name of its variable.
func TestSecretsAreReferences(t *testing.T) {
	t.Parallel()
	for _, s := range Servers() {
		if s.Secret == "" {
			continue
		}
		text := ""
		for _, values := range []map[string]string{s.Env, s.Headers} {
			for _, v := range values {
				text += v
			}
		}
		if !strings.Contains(text, "${"+s.Secret+"}") {
			t.Errorf("%s does not get its secret %s", s.Name, s.Secret)
		}
	}
}

// A project's own file is read as its agent would, and its servers go over ours.
func TestParse(t *testing.T) {
	t.Parallel()
	servers, err := Parse([]byte(`{"mcpServers":{"b":{"type":"http","url":"https://example.org","headers":{"A":"${B}` +
		`"}},"a":{"command":"x","args":["y"],"env":{"C":"d"}}}}`))
	want := []Server{{Name: "a", Command: []string{"x", "y"}, Env: map[string]string{"C": "d"}},
		{Name: "b", URL: "https://example.org", Headers: map[string]string{"A": "${B}"}}}
	if diff := cmp.Diff(want, servers); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, bad := range []string{"", "[]", `{"mcpServers":[]}`, `{"mcpServers":{"a":{}}}`,
		`{"mcpServers":{"../a":{"command":"x"}}}`, strings.Repeat(" ", maxConfig+1)} {
		if got, err := Parse([]byte(bad)); errors.KindOf(err) != errors.Invalid || errors.RemedyOf(err) == "" {
			t.Errorf("%.40q: %v, %v", bad, got, err)
		}
	}
	merged := Merge([]Server{{Name: "a", URL: "1"}, {Name: "b", URL: "2"}},
		[]Server{{Name: "b", URL: "3"}, {Name: "c", URL: "4"}})
	if diff := cmp.Diff([]Server{{Name: "a", URL: "1"}, {Name: "b", URL: "3"}, {Name: "c", URL: "4"}},
		merged); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"mcpServers":{"a":{"command":"x"}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		servers, err := Parse(text)
		if err != nil {
			return
		}
		if _, err := ClaudeConfig(servers); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if _, err := OpenCodeConfig(servers, time.Minute); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}
