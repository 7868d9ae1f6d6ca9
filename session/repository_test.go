package session

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/testenv"
	"github.com/RelevanceAI/harvest/secret"
)

// A token is for the host that its secret names, over https; a repository with an SSH address is cloned there.
// mission: E7
func TestLogins(t *testing.T) {
	t.Parallel()
	l := logins{{where: "https://github.com/o/n", user: "app"}, {where: "https://git.example.org", user: "all"}}
	for address, want := range map[string]string{
		"https://github.com/o/n.git": "app", "git@github.com:o/n.git": "app", "https://github.com/o/other": "", "https://git.example.org/any/thing": "all",
		"ssh://git@git.example.org:2222/a/b": "all", "http://git.example.org/a/b": "", "git://github.com/o/n": "", "ext::x": "", "https://git.example.org.evil.org/a/b": "",
	} {
		if got, _ := l.of(address); got.user != want {
			t.Errorf("%s: %q, want %q", address, got.user, want)
		}
	}
	for address, want := range map[string]string{
		"git@github.com:o/n.git": "https://github.com/o/n", "git@github.com:o/other": "", "ssh://git@git.example.org:2222/a/b": "https://git.example.org/a/b",
		"https://github.com/o/n": "", "x": "",
	} {
		if got := l.https(address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
	if _, ok := (logins{{where: "http://github.com"}}).of("http://github.com/o/n"); ok {
		t.Error("a token would be sent without TLS")
	}
	if l := (logins{}); !l.expires().IsZero() {
		t.Error("nothing ends")
	}
	m := &Manager{}
	if l, err := m.logins(t.Context(), Session{Repo: "https://github.com/o/n"}); l != nil || err != nil {
		t.Errorf("no secrets: %v, %v", l, err)
	}
	m.opts.Secrets = new(secret.Vault)
	if l, err := m.logins(t.Context(), Session{Repo: "https://github.com/o/n", GitSecret: NoSecret}); l != nil || err != nil {
		t.Errorf("none wanted: %v, %v", l, err)
	}
	err := m.putLogins(t.Context(), Session{}, "", logins{{where: "https://x", user: "u", password: "a\nhttps://y\tu\tp"}})
	if err == nil {
		t.Error("a token with a line end was taken")
	}
}

// Whatever a title and a branch are, git reads back the same.
func TestGitConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config")
	s := Session{ID: "ses_1", Title: `say "hi\n" # ; [x] \`}
	if err := os.WriteFile(file, []byte(s.gitConfig(`odd"branch`)+"\tbase = abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"title": s.Title, "onto": `odd"branch`, "work": "harvest/1", "events": s.gitEvents(), "base": "abc"} {
		out, err := exec.CommandContext(t.Context(), testenv.RequireTool(t, "git", "git"), "config", "--file", file, "harvest."+key).Output()
		if err != nil || string(out) != want+"\n" {
			t.Errorf("%s: %q, %v, want %q", key, out, err, want)
		}
	}
	if text := s.gitConfig(""); strings.Contains(text, "onto") {
		t.Error(text)
	}
}

func TestRepositories(t *testing.T) {
	t.Parallel()
	old := Session{Repo: "https://example.org/a/b", Branch: "main", Dir: "/workspace/b", Base: "abc"} // of an earlier version
	if got := old.Repositories(); len(got) != 1 || got[0].Start != "abc" || got[0].Name() != "b" || got[0].URL != old.Repo {
		t.Errorf("%+v", got)
	}
	for want, r := range map[string]Repository{
		"harvest-memory-o-n":             {URL: "https://github.com/O/n.git", Dir: "/workspace/n"},
		"harvest-memory-example.org-o-n": {URL: "git@example.org:o/n", Dir: "/workspace/n"},
		"harvest-memory-local-project":   {Dir: "/workspace/project"},
		"":                               {Dir: "/workspace/work"},
	} {
		if got := memoryVolume(memoryOf(r)); got != want {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
	w := &bounded{}
	for range 3 {
		if n, err := w.Write(make([]byte, maxBundle/2)); n != maxBundle/2 || err != nil {
			t.Fatal(n, err)
		}
	}
	if !w.over || w.Len() > maxBundle {
		t.Errorf("%d bytes are kept", w.Len())
	}
}
