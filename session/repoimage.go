package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
)

// Repos has images of repositories, in which the repository is cloned, installed and built.
type Repos interface {
	// Image returns the one of a repository's branch ("" is its default), false if there is none.
	Image(ctx context.Context, account, url, branch string) (RepoImage, bool)
}

// RepoImage is the image of a repository.
type RepoImage struct {
	Image  string    `json:"image_id"`
	Base   string    `json:"-"` // the image that it was made of, by name
	Dir    string    `json:"-"`
	Branch string    `json:"branch"`
	Commit string    `json:"image_commit"`
	Built  time.Time `json:"image_built_at"`
}

// EventSynced tells that what is newer than the image has been fetched, or why it could not be.
const EventSynced = "repo.synced"

// Synced is how a session that began with an image of its repository has caught up.
type Synced struct {
	RepoImage
	Behind int    `json:"commits_behind"`  // of the newest commit when the session began; -1 if that is not known
	Commit string `json:"commit"`          // that the work begins on now
	Error  string `json:"error,omitempty"` // why what is newer is not there
}

// CheckRepo returns the directory of sandboxes that a repository is cloned to, or what is wrong with its address or branch.
func CheckRepo(url, branch string) (dir string, err error) {
	return checkRepo(Request{Repo: url, Branch: branch})
}

// repoImage returns the image that a session begins with instead of its own, nil if there is none that serves.
func (m *Manager) repoImage(ctx context.Context, s Session, req sandbox.Request) *RepoImage {
	needs := m.imageFor(s.Agent)
	if m.opts.Repos == nil || s.Repo == "" || req.Image != needs || len(req.Commands) > 0 || req.User != "" {
		return nil
	}
	img, ok := m.opts.Repos.Image(ctx, s.Account, s.Repo, s.Branch)
	if !ok || img.Dir != s.Dir || img.Base == "base" && needs != "base" { // agents are not in the base image
		return nil
	}
	return &img
}

// createFrom creates a sandbox, of the repository's image if there is one.
func (p *preparation) createFrom(ctx context.Context, req sandbox.Request) (sandbox.Sandbox, error) {
	if p.image = p.m.repoImage(ctx, p.s, req); p.image != nil {
		own := req
		own.Image = p.image.Image
		made, err := p.m.opts.Fleet.Create(ctx, p.s.Account, own)
		if !errors.Is(err, errors.NotFound) {
			return made, err
		}
		p.image = nil // a newer one has just taken its place
	}
	return p.m.opts.Fleet.Create(ctx, p.s.Account, req)
}

// imageScript begins the work in a repository that came with the image, at the newest commit of a bundle if there is one, and prints the commit that
// it begins on, how many the image was behind that, and how many it had beyond. Its parameters: directory, bundle, branch of the work, origin,
// name and address of the author.
const imageScript = `
git config --global user.name "$5"
git config --global user.email "$6"
cd "$1"
git remote set-url origin "$4"
image=$(git rev-parse --verify HEAD)
if [ -n "$2" ]; then
	git fetch --quiet --no-tags --no-recurse-submodules "$2" HEAD
	git checkout --quiet --force -B "$3" FETCH_HEAD
else
	git checkout --quiet -B "$3"
fi
git rev-parse --verify HEAD
git rev-list --count "$image..HEAD"`

// fromImage makes the repository of the image ready.
func (p *preparation) fromImage(ctx context.Context) error {
	bundle := ""
	if p.bundle != nil {
		if err := p.copyBundle(ctx); err != nil {
			return err
		}
		bundle = bundleDir + "/repo.bundle"
	}
	out, err := p.script(ctx, "", imageScript, p.s.Dir, bundle, p.s.WorkBranch(), p.s.Repo, p.s.Author.Name+" (Harvest)", p.s.Author.Email)
	if err != nil {
		return errors.Explainf(err, errors.KindOf(err), "the repository of the image could not be used: %s", errors.Message(err))
	}
	base, behind, _ := strings.Cut(strings.TrimSpace(out), "\n")
	p.base = base
	if p.bundle != nil {
		p.synced = &Synced{RepoImage: *p.image, Commit: base}
		_, err = fmt.Sscan(behind, &p.synced.Behind)
	}
	return errors.Wrapf(err, "read how far behind the image is")
}

// catchUpScript fetches what is newer than the image and, if nothing has been done yet, goes on from there. It prints how many commits the image
// is behind and the commit that the work begins on. Its parameters: directory, branch, commit of the image.
const catchUpScript = `
cd "$1"
git fetch --quiet --no-tags --no-recurse-submodules origin "+refs/heads/$2:refs/remotes/origin/$2"
new=$(git rev-parse "refs/remotes/origin/$2") base=$3
behind=$(git rev-list --count "$base..$new")
if [ "$new" != "$base" ] && [ "$(git rev-parse HEAD)" = "$base" ] && git diff --quiet HEAD --; then
	if git merge --quiet --ff-only "$new" >&2 || git reset --quiet --keep "$new" >&2; then base=$new; fi
fi
echo "$behind"
echo "$base"`

// catchUp brings a session that began with an image of its repository to the newest commit, in the background: the agent may read meanwhile, and
// what it has changed stays as it is.
func (r *runner) catchUp(done prepared) {
	if done.synced != nil { // by the bundle
		r.publish(draft{EventSynced, Event{Synced: done.synced}})
		return
	}
	if done.image == nil {
		return
	}
	p := preparation{m: r.m, s: r.session(), sandbox: done.sandbox}
	synced := Synced{RepoImage: *done.image, Behind: -1, Commit: done.base}
	r.m.work.Go(func() {
		ctx := logf.With(r.m.ctx, "session_id", r.id)
		out, err := p.script(ctx, "", catchUpScript, p.s.Dir, synced.Branch, synced.RepoImage.Commit)
		if err == nil {
			_, err = fmt.Sscan(out, &synced.Behind, &synced.Commit)
		}
		if err != nil {
			synced.Behind, synced.Error = -1, logf.Redacted(errors.Message(err))
		}
		if ctx.Err() != nil {
			return
		}
		err = r.call(ctx, func() error {
			if r.session().Base == done.base && r.session().SandboxID == done.sandbox {
				r.change(func(s *Session) { s.Base = synced.Commit })
			}
			r.publish(draft{EventSynced, Event{Synced: &synced}})
			return nil
		})
		if err != nil && errors.KindOf(err) != errors.Gone {
			logf.Errorf(ctx, "tell that the repository is up to date: %v", err)
		}
	})
}
