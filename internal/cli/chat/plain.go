package chat

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Times of silence after which a plain conversation reports the reason for the wait.
const (
	firstWord = time.Second
	laterWord = 15 * time.Second
)

// lines runs the conversation in plain lines, which are never redrawn.
func (t *talk) lines(ctx context.Context) error {
	go t.read(t.over, true)
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	quiet := silence{since: time.Now(), pause: firstWord}
	input, text, ready := t.bytes, "", false
	for {
		t.model.Tick(time.Now())
		printed, actions := t.model.Take()
		if len(printed) > 0 {
			quiet = silence{since: t.model.now, pause: firstWord}
		}
		if what := quiet.over(t.model); what != "" {
			printed = append(printed, "("+what+")")
		}
		if !ready && input != nil && t.model.idle() {
			printed, ready = append(printed, "ready; type a prompt, or /help"), true
		}
		if err := t.printLines(printed); err != nil {
			return err
		}
		for _, a := range actions {
			t.do(ctx, a)
		}
		if input == nil && len(t.changing) == 0 && t.model.idle() {
			t.model.Leave()
		}
		if t.model.Done() {
			printed, actions := t.model.Take()
			err := t.printLines(printed)
			t.settle(ctx, actions)
			printed, _ = t.model.Take()
			return errors.Join(err, t.printLines(printed))
		}
		select {
		case <-ctx.Done():
			t.model.Leave()
		case e := <-t.events:
			if err := t.take(e); err != nil {
				return err
			}
		case err := <-t.broken:
			return err
		case o := <-t.outcomes:
			t.outcome(o)
		case line, ok := <-input:
			if !ok {
				input = nil
				continue
			}
			text += string(line)
			if more, ok := strings.CutSuffix(text, `\`); ok {
				text = more + "\n"
				continue
			}
			t.model.Submit(text)
			text = ""
			quiet = silence{since: time.Now(), pause: firstWord}
		case <-tick.C:
		}
	}
}

func (t *talk) printLines(lines []string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(t.Out, line); err != nil {
			return errors.Wrapf(err, "print")
		}
	}
	return nil
}

// silence is a time without output.
type silence struct {
	since time.Time
	pause time.Duration
}

// over returns the reason for the silence if it has lasted long enough to be reported.
func (s *silence) over(m *Model) string {
	what, since := m.Doing()
	if what == "" || m.now.Sub(s.since) < s.pause {
		return ""
	}
	if !since.IsZero() {
		what += ", " + seconds(m.now.Sub(since))
	}
	*s = silence{since: m.now, pause: laterWord}
	return what
}

// idle reports whether there is nothing to wait for.
func (m *Model) idle() bool {
	if !m.seen || m.status == "creating" {
		return false
	}
	return m.current() != nil || m.turn == "" && len(m.queued) == 0 && len(m.sending) == 0 && m.pending == ""
}
