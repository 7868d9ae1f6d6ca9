package session

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/models"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/text"
)

// ask sends the agent a prompt of Harvest's own and returns its reply. The turn is one of the session, with events,
// cost and limits; its messages have the purpose. ask does not wait for other turns: Conflict. Its time limit is
// SummaryWait.
func (r *runner) ask(ctx context.Context, purpose, prompt string) (string, error) {
	if !models.Needed(programOf(r.m, r.session().Agent)) {
		return "", errors.Newf(errors.Unsupported, "the agent has no model")
	}
	var m records.Message
	ended := make(chan records.Message, 1)
	err := r.call(ctx, func() (err error) {
		if r.current != nil || len(r.queue) > 0 || r.held || !r.ready {
			return errors.Newf(errors.Conflict, "the agent is working on another prompt")
		}
		if err := r.exhausted(); err != nil {
			return err
		}
		if m, err = r.enqueue(ctx, prompt, purpose); err == nil {
			r.waiters[m.ID] = ended
		}
		return err
	})
	if err != nil {
		return "", err
	}
	limit := time.NewTimer(r.m.opts.SummaryWait)
	defer limit.Stop()
	select {
	case m = <-ended:
		if m.State != records.Completed {
			return "", errors.Newf(errors.Unavailable, "the agent's turn is %s: %s", m.State, text.Cut(m.Reply, 500))
		}
		return m.Reply, nil
	case <-r.gone:
		return "", hasEnded(r.id)
	case <-limit.C:
		r.withdraw(ctx, m.ID, "it exceeded its time limit")
		return "", errors.Newf(errors.Timeout, "the agent's turn exceeded %s", r.m.opts.SummaryWait)
	case <-ctx.Done():
		r.withdraw(ctx, m.ID, "the caller disconnected")
		return "", errors.Wrapf(ctx.Err(), "ask the agent of session %s", r.id)
	}
}

// withdraw ends a turn that ask began.
func (r *runner) withdraw(ctx context.Context, id, why string) {
	_ = r.call(context.WithoutCancel(ctx), func() error { // fails only if the session has ended
		delete(r.waiters, id)
		if r.current != nil && r.current.ID == id {
			r.interrupt(why)
			return nil
		}
		return r.cancel(id)
	})
}

// tellWaiter passes a message that has ended to the caller that waits for it.
func (r *runner) tellWaiter(m records.Message) {
	if ended := r.waiters[m.ID]; ended != nil {
		ended <- m
		delete(r.waiters, m.ID)
	}
}
