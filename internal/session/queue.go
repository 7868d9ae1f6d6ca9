package session

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/text"
)

// enqueue adds a prompt to the queue. purpose is that of a prompt of Harvest's own, otherwise "".
func (r *runner) enqueue(ctx context.Context, prompt, purpose string) (records.Message, error) {
	m, err := r.accept(ctx, records.Message{Prompt: prompt, State: records.Queued, Purpose: purpose})
	if err == nil {
		r.queue = append(r.queue, m)
		r.publish(draft{records.EventQueued, records.Event{MessageID: m.ID, Message: &m, Position: len(r.queue)}})
	}
	return m, err
}

// accept completes and records a new prompt.
func (r *runner) accept(ctx context.Context, m records.Message) (records.Message, error) {
	if err := records.CheckPrompt(m.Prompt); err != nil {
		return records.Message{}, err
	}
	if len(r.queue)+len(r.onHold) >= maxQueue {
		return records.Message{}, errors.Remedy(
			errors.Newf(errors.Exhausted, "%d prompts are already queued", maxQueue),
			"wait until the agent has answered some, or cancel them")
	}
	m.ID, m.Session, m.Created = "msg_"+ids.New(), r.id, time.Now().UTC()
	if err := r.m.opts.Store.PutMessage(ctx, m); err != nil {
		return records.Message{}, errors.Wrapf(err, "record the message")
	}
	if m.Purpose == "" {
		seen(ctx, r.m, r.account, r.id)
		if r.session().Title == "" {
			r.change(func(s *records.Session) { s.Title = text.Title(m.Prompt) })
		}
	}
	return m, nil
}

// holdQueue holds all queued prompts, except those of Harvest's own, for which a caller waits.
func (r *runner) holdQueue() {
	var rest []records.Message
	for _, m := range r.queue {
		if m.Purpose != "" {
			rest = append(rest, m)
			continue
		}
		r.putOnHold(m)
	}
	r.queue = rest
}

// putOnHold holds a prompt that is in no list.
func (r *runner) putOnHold(m records.Message) {
	m.State = records.Held
	r.putMessage(m)
	r.onHold = append(r.onHold, m)
	r.publish(draft{records.EventHeld, records.Event{MessageID: m.ID, Message: &m}})
}

// release queues a prompt that is held; "" means all of them. The queue is in the order of the prompts' creation, as it
// is after a restart of the server.
func (r *runner) release(id string) error {
	found := false
	for _, m := range slices.Clone(r.onHold) {
		if id != "" && m.ID != id {
			continue
		}
		if err := r.exhausted(); err != nil {
			return err
		}
		found = true
		r.onHold = slices.DeleteFunc(r.onHold, func(o records.Message) bool { return o.ID == m.ID })
		m.State = records.Queued
		r.putMessage(m)
		at, _ := slices.BinarySearchFunc(r.queue, m.ID,
			func(o records.Message, id string) int { return cmp.Compare(o.ID, id) })
		r.queue = slices.Insert(r.queue, at, m)
		r.publish(draft{records.EventQueued, records.Event{MessageID: m.ID, Message: &m, Position: at + 1}})
	}
	if id != "" && !found {
		return errors.Remedy(errors.Newf(errors.NotFound, "message %.80q: not held", id),
			"list the queue: harvest queue ls %s", r.id)
	}
	return nil
}

// cancel removes a prompt that is queued or held.
func (r *runner) cancel(id string) error {
	for _, list := range []*[]records.Message{&r.queue, &r.onHold} {
		for i, m := range *list {
			if m.ID == id {
				*list = append((*list)[:i:i], (*list)[i+1:]...)
				r.drop(m, "")
				return nil
			}
		}
	}
	if r.current != nil && r.current.ID == id || r.deferred != nil && r.deferred.ID == id {
		return errors.Remedy(errors.Newf(errors.Conflict, "the agent is already working on the prompt"),
			"stop the turn instead")
	}
	return errors.Newf(errors.NotFound, "message %.80q: neither queued nor held", id)
}

// dropAll cancels all prompts that are queued or held.
func (r *runner) dropAll(why string) {
	for _, m := range slices.Concat(r.queue, r.onHold) {
		r.drop(m, why)
	}
	r.queue, r.onHold = nil, nil
}

// drop cancels a prompt that is queued or held, and publishes that.
func (r *runner) drop(m records.Message, why string) {
	m.State, m.Ended = records.Cancelled, time.Now().UTC()
	r.putMessage(m)
	r.publish(draft{records.EventCancelled, records.Event{Event: agent.Event{Reason: why}, MessageID: m.ID,
		Message: &m}})
	r.tellWaiter(m)
}

// exhausted returns Exhausted if the session has no turns left.
func (r *runner) exhausted() error {
	planned := len(r.queue)
	if r.current != nil {
		planned++
	}
	if r.deferred != nil {
		planned++
	}
	return r.session().Exhausted(planned)
}

// Hold records a prompt that is held: it is sent after a Release. The errors are those of Send.
func (m *Manager) Hold(ctx context.Context, account, ref, prompt string) (msg records.Message, err error) {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return records.Message{}, err
	}
	err = r.call(ctx, func() error {
		if msg, err = r.accept(ctx, records.Message{Prompt: prompt, State: records.Held}); err == nil {
			r.putOnHold(msg)
		}
		return err
	})
	return msg, err
}

// StopHolding is Stop, but also holds the queued prompts until Release. It returns Conflict if there is neither a turn
// nor a queued prompt.
func (m *Manager) StopHolding(ctx context.Context, account, ref string) error {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return err
	}
	return r.call(ctx, func() error {
		if len(r.queue) == 0 || r.current != nil {
			err = r.stop()
		}
		r.holdQueue()
		return err
	})
}

// Release queues a prompt that is held, or all of them if message is "". Kinds: NotFound (the prompt is not held),
// Exhausted (a limit of the session is reached).
func (m *Manager) Release(ctx context.Context, account, ref, message string) error {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return err
	}
	return r.call(ctx, func() error { return r.release(message) })
}

// stop interrupts the current turn for a user.
func (r *runner) stop() error {
	if r.current == nil {
		return errors.Remedy(errors.Newf(errors.Conflict, "the agent has no current turn"),
			"send a prompt, or end the session")
	}
	r.interrupt("a user stopped it")
	return nil
}
