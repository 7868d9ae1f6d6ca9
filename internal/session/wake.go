package session

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// wakePause is the pause between checks of a sandbox that is about to end.
const wakePause = 50 * time.Millisecond

// preparing tells callers how the preparation of a sandbox ends. The zero value has no callers. Only the loop of a
// session uses it.
type preparing struct{ now *prepared }

// prepared is the result for all callers: err is valid once done is closed.
type prepared struct {
	done chan struct{}
	err  error
}

// wait returns the result of the preparation that is under way.
func (p *preparing) wait() *prepared {
	if p.now == nil {
		p.now = &prepared{done: make(chan struct{})}
	}
	return p.now
}

// end passes the result to the callers.
func (p *preparing) end(err error) {
	if p.now != nil {
		p.now.err = err
		close(p.now.done)
		p.now = nil
	}
}

// awake returns a session whose sandbox runs. If the sandbox has ended, another one starts from its last files, as it
// does for a prompt, and awake waits for it. Kinds: Conflict (the repository is not cloned yet), Gone (the session has
// ended, or the files of its sandbox were not stored).
func awake(ctx context.Context, r *runner) (s records.Session, err error) {
	for {
		var wait *prepared
		again := false
		err := r.call(ctx, func() (err error) {
			s = r.session()
			if s.SandboxID == "" || s.Status == records.Creating {
				return errors.Remedy(errors.Newf(errors.Conflict, "the repository is not cloned yet"),
					"wait until the session is ready")
			}
			if r.prepared != nil {
				wait = r.preparing.wait()
				return nil
			}
			wait, again, err = wake(ctx, r, s)
			return err
		})
		if err != nil || wait == nil && !again {
			return s, err
		}
		if wait == nil {
			wait = &prepared{} // done is nil: it never ends
		}
		pause := time.NewTimer(wakePause)
		if !again {
			pause.Stop()
		}
		select {
		case <-wait.done:
			err = wait.err
		case <-pause.C:
		case <-r.gone:
			err = hasEnded(r.id)
		case <-ctx.Done():
			err = errors.Wrapf(ctx.Err(), "wait for the sandbox of session %s", r.id)
		}
		pause.Stop()
		if err != nil {
			return s, err
		}
	}
}

// wake starts another sandbox if that of the session has ended. It returns the result to wait for; again means that the
// end is not complete. It runs on the loop.
func wake(ctx context.Context, r *runner, s records.Session) (wait *prepared, again bool, err error) {
	box, err := r.m.opts.Fleet.Get(ctx, r.account, s.SandboxID)
	switch {
	case errors.KindOf(err) == errors.NotFound:
		return nil, false, filesGone(s.ID)
	case err != nil:
		return nil, false, err
	case !box.Status.Ended():
		return nil, box.Status == record.Stopping, nil
	case box.SnapshotID == "":
		return nil, false, filesGone(s.ID)
	case r.agent != nil: // its end is about to be handled
		return nil, true, nil
	}
	r.ready = false
	r.makeReady(logf.With(r.m.ctx, "session_id", r.id))
	return r.preparing.wait(), false, nil
}

// filesGone is the error of a session whose files were not stored when its sandbox ended.
func filesGone(id string) error {
	return errors.Remedy(errors.Newf(errors.Gone, "the files of session %s no longer exist", id),
		"start a new session with its repository")
}

// stayAsleep handles a failed preparation that no prompt waits for: the session stays, and the next operation tries
// again. It reports false if the session cannot stay. It runs on the loop.
func stayAsleep(r *runner) bool {
	if r.session().Status == records.Creating || len(r.queue) > 0 || r.session().Spare {
		return false
	}
	r.ready = true // as before: the next start of the agent finds that the sandbox has ended
	return true
}
