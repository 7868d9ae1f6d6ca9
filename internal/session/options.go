package session

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// Change is a change of a session's options; nil leaves an option as it is.
type Change struct {
	Model    *string         // "" means the agent's default
	Effort   *string         // "" means the agent's default
	Approval *agent.Approval //
	Limits   *records.Limits
}

// ChangeOptions changes options of a session that has not ended. Limits hold at once, the others from the next prompt
// that the agent gets: it is then started again, and continues its conversation. Kinds: Invalid, Gone.
func ChangeOptions(ctx context.Context, m *Manager, account, ref string, c Change) (s records.Session, err error) {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return s, err
	}
	err = r.call(ctx, func() error {
		s = r.session()
		next, limits := s.NextOptions(), s.Limits
		set(&next.Model, c.Model)
		set(&next.Effort, c.Effort)
		set(&next.Approval, c.Approval)
		set(&limits, c.Limits)
		if err := checkOptions(next, limits); err != nil {
			return err
		}
		changed := next != s.NextOptions() || limits != s.Limits
		r.change(func(s *records.Session) {
			if s.Limits, s.Next = limits, &next; next == s.Options() {
				s.Next = nil
			}
		})
		if changed {
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
