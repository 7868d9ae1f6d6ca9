package sandbox

import (
	"context"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/event"
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
}

// Drafts returns the drafts that publish e: in the sandbox's stream, named by its ID, and in the stream of its
// account.
func (e Event) Drafts() []event.Draft {
	sb := e.Sandbox
	data := eventData{SandboxID: sb.ID, Name: sb.Name, Status: sb.Status, Reason: sb.Reason,
		FailedStage: sb.FailedStage, ImageID: sb.ImageID,
		SnapshotID: orDefault(e.Image, sb.SnapshotID), SnapshotError: sb.SnapshotError}
	if e.Type == EventStage {
		data.Stage = &e.Stage
	}
	if e.Type == EventDenied {
		data.Denial = &e.Denial
	}
	return []event.Draft{
		{Stream: sb.ID, Type: string(e.Type), Data: data},
		{Stream: event.AccountStream(sb.Account), Type: string(e.Type), Data: data},
	}
}

// Publish returns a function for Options.Event that publishes to j. Close the Fleet before j.
func Publish(ctx context.Context, j *event.Journal) func(Event) {
	return func(e Event) { j.Post(ctx, e.Drafts()...) }
}
