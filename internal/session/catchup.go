package session

import (
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// catchUp updates a session that started from an image of its repository to the newest commit, in the background. The
// agent may read meanwhile, and its changes are preserved.
func (r *runner) catchUp(done preparation.Result) {
	if done.Synced != nil { // by the bundle
		r.publish(draft{records.EventSynced, records.Event{Synced: done.Synced}})
		return
	}
	if done.Image == nil {
		return
	}
	s := r.session()
	r.catching = true
	synced := records.Synced{RepoImage: *done.Image, Behind: -1, Commit: done.Repos[0].Base}
	r.m.work.Go(func() {
		ctx := logf.With(r.m.ctx, "session_id", r.id)
		behind, commit, err := r.m.tree(s, done.Sandbox).CatchUp(ctx, s.Dir, synced.Branch, synced.RepoImage.Commit)
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
			if r.session().Base == done.Repos[0].Base && r.session().SandboxID == done.Sandbox {
				r.change(func(s *records.Session) {
					s.Repos = slices.Clone(s.Repositories())
					s.Base, s.Repos[0].Base, s.Repos[0].Start = synced.Commit, synced.Commit, synced.Commit
				})
			}
			r.publish(draft{records.EventSynced, records.Event{Synced: &synced}})
			return nil
		})
		if err != nil && errors.KindOf(err) != errors.Gone {
			logf.Errorf(ctx, "tell that the repository is up to date: %v", err)
		}
	})
}
