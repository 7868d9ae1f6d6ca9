package records

import (
	"maps"
	"slices"
	"time"
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

// RecordDelivery appends a delivery to the turn's record. Text is nil for the prompt, whose record replaces those of
// the previous turn.
func (s *Session) RecordDelivery(d Delivery) {
	if d.Text == nil {
		s.Deliveries = nil
	}
	s.Deliveries = append(slices.Clone(s.Deliveries), d)
	if over := len(s.Deliveries) - maxDeliveries; over > 0 {
		s.Deliveries = s.Deliveries[over:]
	}
}

// RecordQuestion records when a question of the current turn was asked.
func (s *Session) RecordQuestion(id string, at time.Time) {
	asked := map[string]time.Time{id: at}
	maps.Copy(asked, s.Asked)
	s.Asked = asked
}
