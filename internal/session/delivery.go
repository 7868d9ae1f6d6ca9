package session

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// delivery returns the record of a text that is about to be written.
func (r *runner) delivery(message string, size int, text []byte) records.Delivery {
	return records.Delivery{Message: message, Process: r.session().Process, At: r.agent.Written, Size: size, Text: text}
}

// redeliver writes again the recorded deliveries of an earlier server that the agent did not receive. It first waits
// until the output that the earlier server published has been read again, since an agent's conversation expects its
// lines in order.
func (r *runner) redeliver(ctx context.Context) {
	if !r.recheck || r.behind || r.agent == nil {
		return
	}
	lost := r.lost
	r.recheck, r.lost = false, nil
	for _, d := range lost {
		r.deliverAgain(ctx, d)
	}
	if why := r.session().Stopping; why != "" && r.current != nil {
		r.interrupt(why)
	}
}

// deliverAgain writes the missing part of an earlier server's delivery. It records the new position first.
func (r *runner) deliverAgain(ctx context.Context, d records.Delivery) {
	s := r.session()
	i := slices.IndexFunc(s.Deliveries, func(o records.Delivery) bool {
		return o.At == d.At && o.Process == d.Process &&
			o.Message == d.Message
	})
	m := r.turn(d.Message)
	if m == nil || i < 0 {
		return
	}
	received := 0
	if d.Process == s.Process {
		received = int(min(max(r.agent.Received-d.At, 0), int64(d.Size)))
	}
	if received == d.Size {
		return
	}
	logf.Infof(ctx, "session %s: the agent received %d of %d bytes from the earlier server; the rest is sent", r.id,
		received, d.Size)
	text := d.Text
	if text == nil {
		text = r.conv.Prompt(r.promptID(*m), r.prompt(ctx, *m))
	}
	// The process received part of a different text, which no line can complete.
	if len(text) != d.Size && received > 0 {
		r.agent.Kill(ctx)
		return
	}
	d.Process, d.At, d.Size = s.Process, r.agent.Written-int64(received), len(text)
	r.change(func(s *records.Session) {
		s.Deliveries = slices.Clone(s.Deliveries)
		s.Deliveries[i] = d
	})
	r.agent.Write(text[received:])
}

// turn returns the message with this ID if its turn is under way or deferred, else nil.
func (r *runner) turn(id string) *records.Message {
	for _, m := range []*records.Message{r.current, r.deferred} {
		if m != nil && m.ID == id {
			return m
		}
	}
	return nil
}
