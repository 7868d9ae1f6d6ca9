package workspace

import (
	"regexp"
	"testing"
)

func TestCheckRepo(t *testing.T) {
	t.Parallel()
	for repo, want := range map[string]string{
		"": "/workspace/work", "https://example.org/a/b.git": "/workspace/b",
		"ssh://git@example.org/a/b": "/workspace/b", "git@example.org:a/b.git": "/workspace/b",
		"https://example.org/": "/workspace/work", "https://example.org/a/..": "/workspace/work",
		"https://example.org/a/%2e%2e%2f": "/workspace/work",
		"file:///srv/x":                   "/workspace/x", "https://example.org/a/-b c": "",
	} {
		got, err := CheckRepo(repo, "")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", repo, got, err)
		}
	}
}

// FuzzCheckRepo checks that for any address the directory is directly below the workspace.
func FuzzCheckRepo(f *testing.F) {
	for _, repo := range []string{"https://example.org/a/..", "git@h:x/../..", "ext::sh", "-u",
		"https://h/a/%2e%2e/%00"} {
		f.Add(repo)
	}
	f.Fuzz(func(t *testing.T, repo string) {
		dir, err := CheckRepo(repo, "")
		if err != nil {
			return
		}
		if !regexp.MustCompile(`^/workspace/[A-Za-z0-9._-]*[A-Za-z0-9_][A-Za-z0-9._-]*$`).MatchString(dir) {
			t.Fatalf("%q: %q", repo, dir)
		}
	})
}
