package session

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/logf"
)

// Delivery is a prompt, or an answer to a question, that the server writes to the agent's input. It is recorded before it is written: the next
// server compares it with the engine's count of the input that the process has received, and writes again what was lost with this server.
type Delivery struct {
	Message string `json:"message"`        // ID of the message whose turn it belongs to
	Process string `json:"process"`        // ID of the agent's process
	At      int64  `json:"at"`             // bytes written to the process before
	Size    int    `json:"size"`           // bytes
	Text    []byte `json:"text,omitempty"` // of an answer; a prompt is made again from its message
}

// maxDeliveries is how many deliveries of a turn are recorded. The agent has received older ones: it waits for the answer to each question.
const maxDeliveries = 16

// recordDelivery records a delivery for the turn of a message and returns its position in the turn's record. Text is nil for the prompt, whose
// record replaces those of the turn before.
func (s *Session) recordDelivery(d Delivery) {
	if d.Text == nil {
		s.Deliveries = nil
	}
	s.Deliveries = append(slices.Clone(s.Deliveries), d)
	if over := len(s.Deliveries) - maxDeliveries; over > 0 {
		s.Deliveries = s.Deliveries[over:]
	}
}

// delivery describes what is about to be written.
func (r *runner) delivery(message string, size int, text []byte) Delivery {
	return Delivery{Message: message, Process: r.session().Process, At: r.agent.written, Size: size, Text: text}
}

// redeliver writes again what an earlier server recorded and the agent did not receive. It waits until the output that the earlier server published
// has been read again, since an agent's conversation expects its lines in order.
func (r *runner) redeliver(ctx context.Context) {
	if !r.recheck || r.behind || r.agent == nil {
		return
	}
	r.recheck = false
	s := r.session()
	if r.agent.counted {
		for i := range s.Deliveries {
			r.deliverAgain(ctx, i)
		}
	}
	if s.Stopping != "" && r.current != nil {
		r.interrupt(s.Stopping)
	}
}

// deliverAgain writes what the agent lacks of the delivery at index i of the record, and records the new position first.
func (r *runner) deliverAgain(ctx context.Context, i int) {
	s := r.session()
	d := s.Deliveries[i]
	m := r.turn(d.Message)
	if m == nil {
		return
	}
	received := 0
	if d.Process == s.Process {
		received = int(min(max(r.agent.received-d.At, 0), int64(d.Size)))
	}
	if received == d.Size {
		return
	}
	logf.Infof(ctx, "session %s: the agent received %d of %d bytes from the earlier server; the rest is sent", r.id, received, d.Size)
	text := d.Text
	if text == nil {
		text = r.conv.Prompt(m.ID, r.prompt(ctx, *m))
	}
	if len(text) != d.Size && received > 0 { // it has a part of another text, which no line completes
		r.agent.kill(ctx)
		return
	}
	d.Process, d.At, d.Size = s.Process, r.agent.written-int64(received), len(text)
	r.change(func(s *Session) {
		s.Deliveries = slices.Clone(s.Deliveries)
		s.Deliveries[i] = d
	})
	r.agent.write(text[received:])
}

// turn returns the message of that ID if its turn is under way or deferred, else nil.
func (r *runner) turn(id string) *Message {
	for _, m := range []*Message{r.current, r.deferred} {
		if m != nil && m.ID == id {
			return m
		}
	}
	return nil
}
