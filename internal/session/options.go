package session

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/text"
)

// Change is a change of a session; nil leaves a value as it is.
type Change struct {
	Model    *string         // "" means the agent's default
	Effort   *string         // "" means the agent's default
	Approval *agent.Approval //
	Limits   *records.Limits

	// The others are for lists, and can change after the end of the session, too.

	Title    *string // one line; "" means the beginning of the first prompt
	Pinned   *bool
	Archived *bool // true only after the end
}

// listed reports whether the change is for lists alone.
func (c Change) listed() bool {
	return c.Model == nil && c.Effort == nil && c.Approval == nil && c.Limits == nil
}

// Update changes a session. Limits hold at once; model, effort and approval from the next prompt that the agent gets:
// it is then started again, and continues its conversation. Kinds: NotFound, Invalid, Conflict (a session that has not
// ended cannot be archived), Gone (options of a session that has ended).
func Update(ctx context.Context, m *Manager, account, ref string, c Change) (records.Session, error) {
	s, r, err := m.find(ctx, account, ref)
	if err != nil {
		return s, err
	}
	if c.Title != nil {
		if *c.Title = strings.TrimSpace(*c.Title); *c.Title == "" {
			*c.Title, err = firstTitle(ctx, m, s.ID)
		} else {
			err = checkTitle(*c.Title)
		}
		if err != nil {
			return s, err
		}
	}
	if r != nil {
		s, err = updateLive(ctx, r, c)
	}
	if r == nil || errors.KindOf(err) == errors.Gone {
		return updateEnded(ctx, m, s.ID, c)
	}
	return s, err
}

// updateLive changes a session that has not ended. Otherwise it returns Gone, and the session's ID.
func updateLive(ctx context.Context, r *runner, c Change) (records.Session, error) {
	s := records.Session{ID: r.id}
	err := r.call(ctx, func() error {
		if c.Archived != nil && *c.Archived {
			return errors.Remedy(errors.Newf(errors.Conflict, "session %s has not ended, so it cannot be archived",
				r.id), "end it first: harvest end %s", r.id)
		}
		s = r.session()
		next, limits := s.NextOptions(), s.Limits
		set(&next.Model, c.Model)
		set(&next.Effort, c.Effort)
		set(&next.Approval, c.Approval)
		set(&limits, c.Limits)
		if err := checkOptions(next, limits); err != nil {
			return err
		}
		if c.Title != nil || c.Pinned != nil {
			relabel(r, func(s *records.Session) { c.label(s) })
		}
		if c.Title != nil && *c.Title != s.Title {
			r.publish(draft{records.EventRenamed, records.Event{Event: agent.Event{Text: *c.Title}}})
		}
		if !c.listed() {
			r.change(func(s *records.Session) {
				if s.Limits, s.Next = limits, &next; next == s.Options() {
					s.Next = nil
				}
			})
		}
		if next != s.NextOptions() || limits != s.Limits {
			r.publish(draft{records.EventChanged, records.Event{Changed: &records.Changed{Options: next,
				Limits: limits}}})
		}
		if r.agent == nil {
			renew(ctx, r)
		}
		s = r.session()
		return nil
	})
	return s, err
}

// updateEnded changes a session that has ended, whose record no runner writes.
func updateEnded(ctx context.Context, m *Manager, id string, c Change) (records.Session, error) {
	m.labels.Lock()
	defer m.labels.Unlock()
	s, err := m.opts.Store.Session(ctx, id)
	if err != nil {
		return s, err
	}
	if s.Ended.IsZero() || !c.listed() { // without an end: the server is closing
		return s, hasEnded(id)
	}
	c.label(&s)
	return s, m.opts.Store.PutSession(ctx, s)
}

// label changes what is for lists.
func (c Change) label(s *records.Session) {
	set(&s.Title, c.Title)
	set(&s.Pinned, c.Pinned)
	set(&s.Archived, c.Archived)
}

// firstTitle returns the title that a session has unless a person chooses one.
func firstTitle(ctx context.Context, m *Manager, id string) (string, error) {
	messages, err := m.opts.Store.Messages(ctx, id)
	i := slices.IndexFunc(messages, func(one records.Message) bool { return one.Purpose == "" && !one.Own })
	if err != nil || i < 0 {
		return "", err
	}
	return text.Title(messages[i].Prompt), nil
}

// maxTitle limits a title that a person chooses, in bytes.
const maxTitle = 200

func checkTitle(title string) error {
	if len(title) > maxTitle || !utf8.ValidString(title) || strings.ContainsFunc(title, unicode.IsControl) {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid title of %d bytes", len(title)),
			"use one line of at most %d bytes", maxTitle)
	}
	return nil
}

func set[T any](value, to *T) {
	if to != nil {
		*value = *to
	}
}

// maxOption is the size limit for a model or an effort, in bytes.
const maxOption = 200

// checkOptions returns Invalid for options that no agent can have.
func checkOptions(o records.Options, l records.Limits) error {
	if l.Turns < 0 || !(l.Seconds >= 0) || !(l.USD >= 0) {
		return errors.Newf(errors.Invalid, "limits must not be negative")
	}
	if !slices.Contains(agent.Approvals, o.Approval) {
		return errors.Remedy(errors.Newf(errors.Invalid, "unknown approval %.40q", o.Approval),
			"use edits, ask or plan, or omit it: all tools run")
	}
	for name, value := range map[string]string{"model": o.Model, "effort": o.Effort} {
		// They become arguments of the agent's program.
		if len(value) > maxOption || strings.HasPrefix(value, "-") || strings.ContainsFunc(value, unprintable) {
			return errors.Remedy(errors.Newf(errors.Invalid, "invalid %s %.40q", name, value),
				"use a name of the agent's provider, such as %s", map[string]string{"model": "sonnet",
					"effort": "high"}[name])
		}
	}
	return nil
}

func unprintable(c rune) bool { return c < ' ' || c == 0x7f }

// renew makes changed options hold for the next prompt, and reports whether the agent can get it. A program with the
// options of before ends first.
func renew(ctx context.Context, r *runner) bool {
	s := r.session()
	if s.Next == nil {
		return true
	}
	if r.agent != nil {
		if r.renewAt.IsZero() {
			logf.Infof(ctx, "end the agent's process, so that its options change")
			r.renewAt = time.Now().Add(stopGrace(r))
			r.agent.Close()
		}
		return false
	}
	r.renewAt = time.Time{}
	r.change(func(s *records.Session) {
		s.Model, s.Effort, s.Approval, s.Next = s.Next.Model, s.Next.Effort, s.Next.Approval, nil
	})
	return true
}
