package inbox

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// Kind is the reason why an item waits.
type Kind string

// The kinds.
const (
	Approval Kind = "approval" // a tool may run only after a decision
	Question Kind = "question" // the model asks
	Finished Kind = "finished" // a turn or a session has ended, and nobody has seen the result
	Silent   Kind = "silent"   // the agent was silent for too long and may hang
	Login    Kind = "login"    // a provider no longer accepts a login
)

// Kinds are all kinds.
var Kinds = []Kind{Approval, Question, Finished, Silent, Login}

// Answerable reports whether items of the kind leave the inbox by an answer. The others leave it once they are seen.
func (k Kind) Answerable() bool { return k == Approval || k == Question }

// State is the progress of an item. Only Waiting changes, once.
type State string

// The states.
const (
	Waiting   State = "waiting"
	Answered  State = "answered"  // Answer says how
	Withdrawn State = "withdrawn" // nothing waits any longer: the turn has ended, or the agent continues
	Seen      State = "seen"
)

// Item is something that waits for a person.
type Item struct {
	ID      string    `json:"id"`     // "inb_" and a ULID in lower case
	Number  int64     `json:"number"` // of the account; never used again
	Kind    Kind      `json:"kind"`
	State   State     `json:"state"`
	Since   time.Time `json:"since"`
	Closed  time.Time `json:"closed_at,omitzero"`
	Session string    `json:"session_id,omitempty"` // "" for a login
	Title   string    `json:"title,omitempty"`      // of the session
	Agent   string    `json:"agent,omitempty"`
	// SubAgent is the name of the sub-agent that waits; "" for the agent itself.
	SubAgent string `json:"sub_agent,omitempty"`
	What     string `json:"what"`             // one line
	Answer   string `json:"answer,omitempty"` // of an answered item, for people

	// The fields of approvals and questions are those of the event agent.asked.
	QuestionID string           `json:"question_id,omitempty"`
	Tool       string           `json:"tool,omitempty"`
	Input      json.RawMessage  `json:"input,omitempty"`
	Text       string           `json:"text,omitempty"` // plan that the agent proposes
	Questions  []agent.Question `json:"questions,omitempty"`
	Deadline   time.Time        `json:"deadline,omitzero"` // when the agent decides itself
	// Cut means that input, text or questions were too long and are missing: only the session has them.
	Cut bool `json:"cut,omitempty"`

	MessageID string  `json:"message_id,omitempty"` // prompt of the turn
	Outcome   string  `json:"outcome,omitempty"`    // of Finished: "completed", "failed", "stopped" or "ended"
	Cost      float64 `json:"cost_usd,omitempty"`   // of Finished
	Secret    string  `json:"secret,omitempty"`     // of Login: name of the secret

	Account string `json:"-"`
	// Key tells the items of a session apart: the same fact, found again after a restart, has the same key.
	Key string `json:"-"`
	Due int    `json:"-"` // bits of the receivers that have yet to get the item
}

// Limits of an item's texts, in bytes.
const (
	maxWhat  = 300
	maxAsked = 16 << 10 // of the JSON of input, text and questions together
)

// fit shortens the texts that a program in the sandbox controls.
func (i *Item) fit() {
	i.What, i.SubAgent, i.Tool = Line(i.What), Line(i.SubAgent), Line(i.Tool)
	i.Title, i.Answer = Line(i.Title), Line(i.Answer)
	asked, err := json.Marshal(struct {
		Input     json.RawMessage
		Text      string
		Questions []agent.Question
	}{i.Input, i.Text, i.Questions})
	if err != nil || len(asked) > maxAsked {
		i.Input, i.Text, i.Questions, i.Cut = nil, "", nil, true
	}
}

// Line returns the first line of a text that is not empty, shortened.
func Line(text string) string {
	text, more, _ := strings.Cut(strings.TrimSpace(text), "\n")
	text = strings.TrimSpace(text)
	if len(text) > maxWhat {
		text, more = strings.ToValidUTF8(text[:maxWhat], ""), "more"
	}
	if more != "" {
		text += " …"
	}
	return text
}
