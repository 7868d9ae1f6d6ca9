package api

import (
	"encoding/json"
	"time"
)

// Routes of the inbox.
const (
	Inbox       = "/v1/inbox"        // ?all=
	InboxEvents = "/v1/inbox/events" // ?after=&tail=
	InboxSeen   = "/v1/inbox/seen"
)

// The events of an inbox. Their data is the InboxItem.
const (
	EventInboxAdded  = "inbox.added"
	EventInboxClosed = "inbox.closed"
)

// Values of InboxItem.
const (
	InboxApproval = "approval" // a tool may run only after a decision
	InboxQuestion = "question" // the model asks
	InboxFinished = "finished" // a turn or a session has ended
	InboxSilent   = "silent"   // the agent was silent for too long and may hang
	InboxLogin    = "login"    // a provider no longer accepts a login

	InboxWaiting = "waiting"
)

// InboxItem is something that waits for a person.
type InboxItem struct {
	ID      string    `json:"id"`
	Number  int64     `json:"number"` // of the account; never used again
	Kind    string    `json:"kind"`   // "approval", "question", "finished", "silent" or "login"
	State   string    `json:"state"`  // "waiting", "answered", "withdrawn" or "seen"
	Since   time.Time `json:"since"`
	Closed  time.Time `json:"closed_at,omitzero"`
	Session string    `json:"session_id,omitempty"` // missing in a login
	Title   string    `json:"title,omitempty"`      // of the session
	Agent   string    `json:"agent,omitempty"`
	// SubAgent is the name of the sub-agent that waits; missing for the agent itself.
	SubAgent string `json:"sub_agent,omitempty"`
	What     string `json:"what"`             // one line
	Answer   string `json:"answer,omitempty"` // of an answered item, for people

	// QuestionID is the ID with which POST /v1/sessions/{id}/answers/{question} answers an approval or a question. This
	// and the next fields are those of the event agent.asked.
	QuestionID string          `json:"question_id,omitempty"`
	Tool       string          `json:"tool,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	Text       string          `json:"text,omitempty"` // plan that the agent proposes
	Questions  []Question      `json:"questions,omitempty"`
	Deadline   time.Time       `json:"deadline,omitzero"` // when the agent decides itself
	// Cut means that input, text and questions are missing, because they are too long: only the session has them.
	Cut bool `json:"cut,omitempty"`

	MessageID string  `json:"message_id,omitempty"` // prompt of the turn
	Outcome   string  `json:"outcome,omitempty"`    // of "finished": "completed", "failed", "stopped" or "ended"
	Cost      float64 `json:"cost_usd,omitempty"`   // of "finished"
	Secret    string  `json:"secret,omitempty"`     // of "login": name of the secret
}

// InboxSeenRequest is the body of POST /v1/inbox/seen: items by number, or all that need no answer, of one session or
// of the account.
type InboxSeenRequest struct {
	Numbers []int64 `json:"numbers,omitempty"`
	Session string  `json:"session_id,omitempty"`
	All     bool    `json:"all,omitempty"`
}
