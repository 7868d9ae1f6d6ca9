package preparation_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

const repoImage = "img_00000000000000aa"

// repos has one image of a repository.
type repos struct {
	preparation.Repos
	url   string
	image records.RepoImage
}

func (r repos) Image(_ context.Context, account, url, branch string) (records.RepoImage, bool) {
	return r.image, account == personal && (url == r.url || url == "") && branch == ""
}

// TestRepoImage checks when a session starts from the image of its repository.
func TestRepoImage(t *testing.T) {
	t.Parallel()
	const url = "https://example.org/o/n.git"
	for name, c := range map[string]struct {
		change func(p *preparation.Preparer, s *preparation.Session, r *records.RepoImage)
		want   bool
	}{
		"suitable": {func(*preparation.Preparer, *preparation.Session, *records.RepoImage) {}, true},
		"no images": {func(p *preparation.Preparer, _ *preparation.Session, _ *records.RepoImage) { p.Images = nil },
			false},
		"no repository": {func(_ *preparation.Preparer, s *preparation.Session, _ *records.RepoImage) {
			s.Repos[0].URL = ""
		}, false},
		"another repository": {func(_ *preparation.Preparer, s *preparation.Session, _ *records.RepoImage) {
			s.Repos[0].URL += "x"
		}, false},
		"another branch": {func(_ *preparation.Preparer, s *preparation.Session, _ *records.RepoImage) {
			s.Repos[0].Branch = "x"
		}, false},
		"another account": {func(_ *preparation.Preparer, s *preparation.Session, _ *records.RepoImage) {
			s.Account = "acme"
		}, false},
		"another directory": {func(_ *preparation.Preparer, _ *preparation.Session, r *records.RepoImage) {
			r.Dir = "/workspace/x"
		}, false},
		"without agents": {func(_ *preparation.Preparer, _ *preparation.Session, r *records.RepoImage) {
			r.Base = "base"
		}, false},
		"no agent is wanted": {func(_ *preparation.Preparer, s *preparation.Session, r *records.RepoImage) {
			r.Base, s.Image, s.Request.Image = "base", "base", "base"
		}, true},
		"an image of the user": {func(_ *preparation.Preparer, s *preparation.Session, _ *records.RepoImage) {
			s.Request.Image = "mine"
		}, false},
		"commands": {func(_ *preparation.Preparer, s *preparation.Session, _ *records.RepoImage) {
			s.Request.Commands = []string{"true"}
		}, false},
		"a user": {func(_ *preparation.Preparer, s *preparation.Session, _ *records.RepoImage) {
			s.Request.User = "root"
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := records.RepoImage{Image: repoImage, Base: "agent", Dir: "/workspace/n"}
			s := preparation.Session{Account: personal, Image: "agent", Request: spec.Request{Image: "agent"},
				Repos: []workspace.Repository{{URL: url, Dir: "/workspace/n"}}}
			p := preparation.Preparer{Images: repos{}}
			c.change(&p, &s, &r)
			if p.Images != nil {
				p.Images = repos{url: url, image: r}
			}
			if got := p.RepoImage(t.Context(), s, s.Request); (got != nil) != c.want || got != nil && *got != r {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestStartFromRepoImage checks that a session starts from the image of its repository, whose files are brought up to
// date, and from the usual image if that one has just been replaced.
func TestStartFromRepoImage(t *testing.T) {
	t.Parallel()
	url, head := project(t, "one", "two", "three")
	for name, exists := range map[string]bool{"exists": true, "replaced": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			if exists {
				h.others = []string{repoImage}
			}
			image := records.RepoImage{Image: repoImage, Base: "base", Dir: "/workspace/a", Branch: "main"}
			h.Preparer.Images = repos{url: url, image: image}
			s := session(url)
			bundle := filepath.Join(t.TempDir(), "bundle")
			git(t, url[len("file://"):], "bundle", "create", "--quiet", bundle, "HEAD")
			s.Given.Bundle = bundle
			h.booted = func(root string) {
				if exists {
					git(t, "/", "clone", "--quiet", url, root+"/workspace/a")
					git(t, root+"/workspace/a", "reset", "--quiet", "--hard", "HEAD~2")
				}
			}
			got, stages := h.prepare(s)
			if want := []string{"sandbox", "directories", "repository"}; !slices.Equal(stages, want) {
				t.Errorf("stages: %q, want %q", stages, want)
			}
			if !exists {
				if images := h.images(); got.Image != nil || got.Synced != nil || len(images) != 1 ||
					images[0] == repoImage || got.Repos[0].Base != head {
					t.Errorf("%+v from %q", got, images)
				}
				return
			}
			if got.Image == nil || *got.Image != image || !got.Fresh || got.Repos[0].Base != head {
				t.Errorf("%+v", got)
			}
			config, err := os.ReadFile(h.path(got.Sandbox, "/workspace/a/.git/config"))
			if err != nil || !strings.Contains(string(config), "onto = \"main\"") { // the image's branch
				t.Errorf("git's configuration: %s, %v", config, err)
			}
			if got.Synced == nil || got.Synced.Behind != 2 || got.Synced.Commit != head ||
				got.Synced.RepoImage != image {
				t.Errorf("synced: %+v", got.Synced)
			}
		})
	}
}
