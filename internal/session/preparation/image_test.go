package preparation_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

const repoImage = "img_00000000000000aa"

// repos has one image of a repository.
type repos struct {
	preparation.Repos
	url    string
	image  records.RepoImage
	labels map[string]string // of the image
}

func (r repos) Lookup(_ context.Context, account, ref string) (image.Image, error) {
	if account != personal || ref != r.image.Image {
		return image.Image{}, errors.Newf(errors.NotFound, "there is no image %s", ref)
	}
	return image.Image{ID: ref, Config: image.Config{Labels: r.labels}}, nil
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

// TestDevContainer checks that a session in the image of a dev container runs the commands of its own.
func TestDevContainer(t *testing.T) {
	t.Parallel()
	url, _ := project(t, "one")
	prepare := func(t *testing.T, metadata string) (h *house, got preparation.Result, stages []string) {
		t.Helper()
		h = newHouse(t)
		h.others = []string{repoImage}
		h.Preparer.Images = repos{url: url,
			image: records.RepoImage{Image: repoImage, Base: "agent", Dir: "/workspace/a", Branch: "main"},
			labels: map[string]string{
				"harvest.devcontainer": `{"config": "devcontainer.json", "dir": "/workspace/a", "folder": "/code",
					"secrets": {"TOKEN": {"description": "For the API"}, "LOCAL": {}}}`,
				devcontainer.Label: metadata}}
		h.booted = func(root string) { git(t, "/", "clone", "--quiet", url, root+"/workspace/a") }
		s := session(url)
		s.Request.Env = map[string]string{"LOCAL": "local"}
		got, stages = h.try(t.Context(), s)
		return h, got, stages
	}
	t.Run("commands", func(t *testing.T) {
		t.Parallel()
		h, got, stages := prepare(t, `[{"userEnvProbe": "none", "remoteEnv": {"A": "${localEnv:LOCAL}"},
			"forwardPorts": [80], "hostRequirements": {"cpus": 100000}, "onCreateCommand": "false",
			"postCreateCommand": "echo $A >posted",
			"postStartCommand": "echo started >>started"}]`)
		want := []string{"sandbox", "directories", "repository", "postCreateCommand", "postStartCommand"}
		if got.Err != nil || !slices.Equal(stages, want) {
			t.Fatalf("stages: %q, %v", stages, got.Err)
		}
		for name, want := range map[string]string{"posted": "local\n", "started": "started\n"} {
			text, err := os.ReadFile(h.path(got.Sandbox, "/workspace/a/"+name))
			if err != nil || string(text) != want {
				t.Errorf("%s has %q, %v", name, text, err)
			}
		}
		notice := records.Notice{Reason: records.NoticeSecret, Text: "devcontainer.json recommends the secret TOKEN " +
			"(For the API): store it with harvest secret set, and pass it with --secret"}
		if len(got.Notices) != 2 || got.Notices[1] != notice || got.Notices[0].Reason != records.NoticeHardware ||
			!strings.HasPrefix(got.Notices[0].Text, "devcontainer.json asks for 100000 cores") {
			t.Errorf("notices: %q", got.Notices)
		}
		sb, err := h.Fleet.Get(t.Context(), personal, got.Sandbox)
		if err != nil || !slices.Equal(sb.Ports, []int{80}) {
			t.Errorf("ports: %v, %v", sb.Ports, err)
		}
	})
	t.Run("later", func(t *testing.T) {
		t.Parallel()
		h, got, stages := prepare(t, `[{"userEnvProbe": "none", "waitFor": "postCreateCommand",
			"postCreateCommand": "true", "postStartCommand": "echo started | tee started", "postAttachCommand":
			"echo why; exit 3"}]`)
		want := []string{"sandbox", "directories", "repository", "postCreateCommand"}
		if got.Err != nil || !slices.Equal(stages, want) || got.Later == nil ||
			!slices.Equal(got.Later.Hooks, []string{"postStartCommand", "postAttachCommand"}) {
			t.Fatalf("stages: %q, later: %+v, %v", stages, got.Later, got.Err)
		}
		if _, err := os.Stat(h.path(got.Sandbox, "/workspace/a/started")); !errors.IsNotExist(err) {
			t.Errorf("it has run already: %v", err)
		}
		var out strings.Builder
		stages = nil
		err := got.Later.Run(t.Context(), func(string) io.Writer { return &out },
			func(s records.Stage) { stages = append(stages, s.Name) })
		if err == nil || errors.StageOf(err) != "postAttachCommand" || out.String() != "started\nwhy\n" ||
			!slices.Equal(stages, []string{"postStartCommand"}) {
			t.Errorf("%q, %q, %v", stages, out.String(), err)
		}
	})
	t.Run("failure", func(t *testing.T) {
		t.Parallel()
		_, got, stages := prepare(t, `[{"userEnvProbe": "none", "postCreateCommand": "echo why; exit 3",
			"postStartCommand": "true"}]`)
		if got.Err == nil || !strings.Contains(errors.Message(got.Err), "exit code 3: why") ||
			errors.StageOf(got.Err) != "postCreateCommand" || len(stages) != 3 {
			t.Errorf("%q, %v", stages, got.Err)
		}
	})
	t.Run("damaged", func(t *testing.T) {
		t.Parallel()
		if _, got, _ := prepare(t, `[`); errors.KindOf(got.Err) != errors.Invalid {
			t.Errorf("a damaged label: %v", got.Err)
		}
	})
}

// TestUnfollowedDevContainer checks that a session without an image of its repository reports a dev container that it
// does not follow.
func TestUnfollowedDevContainer(t *testing.T) {
	t.Parallel()
	url, _ := project(t, "one")
	dir := strings.TrimPrefix(url, "file://")
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, filepath.Join(dir, name), []byte(text))
		git(t, dir, "add", "-A")
		git(t, dir, "commit", "--quiet", "-m", name)
	}
	notices := func(change func(s *preparation.Session)) (all []string) {
		h := newHouse(t)
		h.Preparer.Images = repos{image: records.RepoImage{Dir: "/elsewhere"}}
		s := session(url)
		change(&s)
		got, _ := h.prepare(s)
		for _, n := range got.Notices {
			all = append(all, n.Reason+": "+n.Text)
		}
		return all
	}
	unchanged := func(*preparation.Session) {}
	if got := notices(unchanged); len(got) > 0 {
		t.Errorf("without a description: %q", got)
	}
	write(".devcontainer/go/devcontainer.json", "{}")
	const file = "devcontainer: .devcontainer/go/devcontainer.json is not followed, because there is no image of " +
		"this repository: harvest repo add "
	if got := notices(unchanged); !slices.Equal(got, []string{file + url +
		" builds an image by it, and later sessions start from that"}) {
		t.Errorf("it says %q", got)
	}
	bundle := filepath.Join(t.TempDir(), "bundle")
	git(t, dir, "bundle", "create", "--quiet", bundle, "HEAD")
	if got := notices(func(s *preparation.Session) { s.Repos[0].URL, s.Given.Bundle = "", bundle }); !slices.Equal(got,
		[]string{file + "builds an image by it, of a repository with an address"}) {
		t.Errorf("of a directory: %q", got)
	}
	for name, change := range map[string]func(*preparation.Session){
		"an image of the user": func(s *preparation.Session) { s.Image = "other" },
		"a continued session":  func(s *preparation.Session) { s.Continues = true },
	} {
		if got := notices(change); len(got) > 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
	write("harvest.json", `{"devcontainer": ""}`)
	if got := notices(unchanged); len(got) > 0 {
		t.Errorf("it is to be ignored: %q", got)
	}
}
