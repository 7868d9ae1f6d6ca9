package record

import (
	"cmp"
	"context"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Event describes a change of a sandbox.
type Event struct {
	Type    EventType
	Sandbox Sandbox
	Stage   Stage         // of EventStage
	Image   string        // ID, of EventSnapshotted
	Denial  engine.Denial // of EventDenied
	Use     Use           // of EventCredentialUsed and EventCredentialRefused
}

// Use is a request of a sandbox with a credential, or with the placeholder of one that it may not use.
type Use struct {
	Time   time.Time `json:"time"`
	Secret string    `json:"secret"`
	Key    string    `json:"key"` // of the pair
	Host   string    `json:"host"`
	Method string    `json:"method"`
	Path   string    `json:"path"`             // without the query
	Status int       `json:"status,omitempty"` // of the answer; 0 without one
	// Count is the number of equal requests since the last event about them, if it is not the first one; Time is that
	// of the last.
	Count int `json:"count,omitempty"`
	// Refused is the reason for which the credential was not used, one sentence; "" if it was.
	Refused string `json:"refused,omitempty"`
}

// FailedLogin is the data of EventCredentialFailed.
type FailedLogin struct {
	Secret string `json:"secret"`
	Reason string `json:"reason"` // one sentence without a period
}

// EventType is the type of an event, as clients see it.
type EventType string

// Types of sandbox events.
const (
	EventStarting   EventType = "sandbox.starting"
	EventQueued     EventType = "sandbox.queued" // queued for its boot
	EventStage      EventType = "sandbox.stage"
	EventReady      EventType = "sandbox.ready"
	EventOOM        EventType = "sandbox.oom"
	EventLost       EventType = "sandbox.lost"
	EventFailed     EventType = "sandbox.failed"
	EventTerminated EventType = "sandbox.terminated"
	EventDenied     EventType = "egress.denied" // the network policy refused a connection or a lookup

	EventCredentialUsed    EventType = "credential.used"    // a request got the value of a secret
	EventCredentialRefused EventType = "credential.refused" // a request may not have the value of a secret

	// EventCredentialFailed means that a provider no longer accepts a login. It is in the stream of the account only,
	// with FailedLogin.
	EventCredentialFailed EventType = "credential.failed"

	EventSnapshotted EventType = "sandbox.snapshotted"
	// EventCarried means that the files are in a new sandbox of the engine, and that the commands have ended.
	EventCarried EventType = "sandbox.carried"
	// EventSuspended means that the sandbox is suspended, and EventWoken that it runs again.
	EventSuspended EventType = "sandbox.suspended"
	EventWoken     EventType = "sandbox.woken"
)

// eventData is the data of sandbox events.
type eventData struct {
	SandboxID   string `json:"sandbox_id"`
	Name        string `json:"name,omitempty"`
	Status      Status `json:"status"`
	Reason      string `json:"reason,omitempty"`
	FailedStage string `json:"failed_stage,omitempty"`
	Stage       *Stage `json:"stage,omitempty"` // of sandbox.stage: the completed step
	ImageID     string `json:"image_id,omitempty"`
	// SnapshotID is the image of sandbox.snapshotted. In events about the end of a sandbox it is the snapshot on end,
	// and SnapshotError says why there is none.
	SnapshotID    string `json:"snapshot_id,omitempty"`
	SnapshotError string `json:"snapshot_error,omitempty"`
	// Denial is the refused connection or lookup, of egress.denied.
	Denial *engine.Denial `json:"denial,omitempty"`
	// Use is the request, of credential.used and credential.refused.
	Use *Use `json:"use,omitempty"`
}

// Drafts returns the drafts that publish e: in the sandbox's stream, named by its ID, and in the stream of its
// account.
func (e Event) Drafts() []event.Draft {
	sb := e.Sandbox
	data := eventData{SandboxID: sb.ID, Name: sb.Name, Status: sb.Status, Reason: sb.Reason,
		FailedStage: sb.FailedStage, ImageID: sb.ImageID,
		SnapshotID: cmp.Or(e.Image, sb.SnapshotID), SnapshotError: sb.SnapshotError}
	if e.Type == EventStage {
		data.Stage = &e.Stage
	}
	switch e.Type {
	case EventDenied:
		data.Denial = &e.Denial
	case EventCredentialUsed, EventCredentialRefused:
		data.Use = &e.Use
	}
	return []event.Draft{
		{Stream: sb.ID, Type: string(e.Type), Data: data},
		{Stream: event.AccountStream(sb.Account), Type: string(e.Type), Data: data},
	}
}

// Publish returns a function that publishes events to j. Its callers end before j.
func Publish(ctx context.Context, j *event.Journal) func(Event) {
	return func(e Event) { j.Post(ctx, e.Drafts()...) }
}
