package session

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/logf"
)

// Delivery is a prompt, or an answer to a question, that the server writes to the agent's input. The server records
// it before it writes. After a restart, the next server compares the record with the engine's count of input bytes
// that the process received, and writes the lost part again.
type Delivery struct {
	Message string `json:"message"`        // ID of the message whose turn it belongs to
	Process string `json:"process"`        // ID of the agent's process
	At      int64  `json:"at"`             // input bytes written to the process before
	Size    int    `json:"size"`           // bytes
	Text    []byte `json:"text,omitempty"` // text of an answer; a prompt is rebuilt from its message
}

// maxDeliveries is how many deliveries of a turn are recorded. The agent has received the older ones, since it waits
// for the answer to each question.
const maxDeliveries = 16

// recordDelivery appends a delivery to the turn's record. Text is nil for the prompt, whose record replaces those of
// the previous turn.
func (s *Session) recordDelivery(d Delivery) {
	if d.Text == nil {
		s.Deliveries = nil
	}
	s.Deliveries = append(slices.Clone(s.Deliveries), d)
	if over := len(s.Deliveries) - maxDeliveries; over > 0 {
		s.Deliveries = s.Deliveries[over:]
	}
}

// delivery returns the record of a text that is about to be written.
func (r *runner) delivery(message string, size int, text []byte) Delivery {
	return Delivery{Message: message, Process: r.session().Process, At: r.agent.Written, Size: size, Text: text}
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
func (r *runner) deliverAgain(ctx context.Context, d Delivery) {
	s := r.session()
	i := slices.IndexFunc(s.Deliveries, func(o Delivery) bool {
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
	r.change(func(s *Session) {
		s.Deliveries = slices.Clone(s.Deliveries)
		s.Deliveries[i] = d
	})
	r.agent.Write(text[received:])
}

// turn returns the message with this ID if its turn is under way or deferred, else nil.
func (r *runner) turn(id string) *Message {
	for _, m := range []*Message{r.current, r.deferred} {
		if m != nil && m.ID == id {
			return m
		}
	}
	return nil
}
