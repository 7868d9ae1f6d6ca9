package session

import (
	"context"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
)

// Repos provides images of repositories, in which the repository is cloned, installed and built.
type Repos interface {
	// Image returns the image for a repository's branch ("" for its default), or false.
	Image(ctx context.Context, account, url, branch string) (RepoImage, bool)
	// Saw records how many commits an image was behind its repository when a session started from it.
	Saw(ctx context.Context, img RepoImage, behind int)
}

// RepoImage is the image of a repository.
type RepoImage struct {
	Repo   string    `json:"-"` // id
	Image  string    `json:"image_id"`
	Base   string    `json:"-"` // name of the image that it was built from
	Dir    string    `json:"-"`
	Branch string    `json:"branch"`
	Commit string    `json:"image_commit"`
	Built  time.Time `json:"image_built_at"`
}

// EventSynced reports that the commits since the image was built have been fetched, or why that failed.
const EventSynced = "repo.synced"

// Synced is the result of updating a session that started from an image of its repository.
type Synced struct {
	RepoImage
	Behind int    `json:"commits_behind"`  // commits behind the newest one when the session began; -1 if unknown
	Commit string `json:"commit"`          // the starting commit after the update
	Error  string `json:"error,omitempty"` // why the update failed
}

// repoImage returns the repository image that replaces the session's image, nil if none is suitable.
func (m *Manager) repoImage(ctx context.Context, s Session, req sandbox.Request) *RepoImage {
	needs := m.imageFor(s.Agent)
	if m.opts.Repos == nil || s.Repo == "" || req.Image != needs || len(req.Commands) > 0 || req.User != "" {
		return nil
	}
	img, ok := m.opts.Repos.Image(ctx, s.Account, s.Repo, s.Branch)
	if !ok || img.Dir != s.Dir || img.Base == "base" && needs != "base" { // the base image has no agents
		return nil
	}
	return &img
}

// createFrom creates a sandbox, from the repository's image if there is one.
func (p *preparation) createFrom(ctx context.Context, req sandbox.Request) (sandbox.Sandbox, error) {
	account := p.s.Account
	if p.s.Spare {
		account, req.Owner = sandbox.SpareAccount, p.s.Account
	}
	if p.image = p.m.repoImage(ctx, p.s, req); p.image != nil {
		own := req
		own.Image = p.image.Image
		made, err := p.m.opts.Fleet.Create(ctx, account, own)
		if !errors.Is(err, errors.NotFound) {
			return made, err
		}
		p.image = nil // a newer image has just replaced it
	}
	return p.m.opts.Fleet.Create(ctx, account, req)
}

// catchUp updates a session that started from an image of its repository to the newest commit, in the background. The
// agent may read meanwhile, and its changes are preserved.
func (r *runner) catchUp(done prepared) {
	if done.synced != nil { // by the bundle
		r.publish(draft{EventSynced, Event{Synced: done.synced}})
		return
	}
	if done.image == nil {
		return
	}
	s := r.session()
	r.catching = true
	synced := Synced{RepoImage: *done.image, Behind: -1, Commit: done.repos[0].Base}
	r.m.work.Go(func() {
		ctx := logf.With(r.m.ctx, "session_id", r.id)
		behind, commit, err := r.m.tree(s, done.sandbox).CatchUp(ctx, s.Dir, synced.Branch, synced.RepoImage.Commit)
		if err != nil {
			synced.Behind, synced.Error = -1, logf.Redacted(errors.Message(err))
		} else {
			synced.Behind, synced.Commit = behind, commit
			r.m.opts.Repos.Saw(ctx, synced.RepoImage, synced.Behind)
		}
		if ctx.Err() != nil {
			return
		}
		err = r.call(ctx, func() error {
			r.catching = false
			if r.session().Base == done.repos[0].Base && r.session().SandboxID == done.sandbox {
				r.change(func(s *Session) {
					s.Repos = slices.Clone(s.Repositories())
					s.Base, s.Repos[0].Base, s.Repos[0].Start = synced.Commit, synced.Commit, synced.Commit
				})
			}
			r.publish(draft{EventSynced, Event{Synced: &synced}})
			return nil
		})
		if err != nil && errors.KindOf(err) != errors.Gone {
			logf.Errorf(ctx, "tell that the repository is up to date: %v", err)
		}
	})
}
