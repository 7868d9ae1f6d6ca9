package agents

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestSeenFrom checks that the files of a repository are named as the editor names its directory, through symbolic
// links.
func TestSeenFrom(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	top, link, below := filepath.Join(root, "real"), filepath.Join(root, "link"), filepath.Join("a", "b")
	err = errors.Join(err, os.MkdirAll(filepath.Join(top, below), 0o755), os.Symlink(top, link),
		os.Symlink(filepath.Join(top, below), filepath.Join(root, "inside")))
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		top: top, link: link, filepath.Join(top, below): top, filepath.Join(link, below): link,
		filepath.Join(root, "inside"): top, // its path does not name the top
		root:                          top, // not in the repository
		filepath.Join(root, "none"):   top,
	} {
		if got := seenFrom(dir, top); got != want {
			t.Errorf("%s: %s, want %s", dir, got, want)
		}
	}
}

// TestPlace checks which repository a session of an editor has.
func TestPlace(t *testing.T) {
	t.Parallel()
	for repo, want := range map[string]string{".": "/p", "none": "none", "https://x.example/r": "https://x.example/r"} {
		r := editorRun{sessionFlags: sessionFlags{from: source{repo: repo}}}
		if got := r.place("/p"); got != want {
			t.Errorf("%s: %s, want %s", repo, got, want)
		}
	}
}
