package sandbox

import (
	"context"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/event"
)

// eventData is what events of sandboxes carry.
type eventData struct {
	SandboxID   string `json:"sandbox_id"`
	Name        string `json:"name,omitempty"`
	Status      Status `json:"status"`
	Reason      string `json:"reason,omitempty"`
	FailedStage string `json:"failed_stage,omitempty"`
	Stage       *Stage `json:"stage,omitempty"` // of sandbox.stage: the step that is done
	ImageID     string `json:"image_id,omitempty"`
	// SnapshotID is the image of sandbox.snapshotted, and with the end of a sandbox the one that was made then. SnapshotError says why none was.
	SnapshotID    string `json:"snapshot_id,omitempty"`
	SnapshotError string `json:"snapshot_error,omitempty"`
	// Denial is what was refused, of egress.denied.
	Denial *engine.Denial `json:"denial,omitempty"`
}

// Drafts returns e as it is published: in the stream of the sandbox, whose name is its id, and in that of its account.
func (e Event) Drafts() []event.Draft {
	sb := e.Sandbox
	data := eventData{SandboxID: sb.ID, Name: sb.Name, Status: sb.Status, Reason: sb.Reason, FailedStage: sb.FailedStage, ImageID: sb.ImageID,
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

// Publish returns an Options.Event that publishes to j. Close the Fleet before j.
func Publish(ctx context.Context, j *event.Journal) func(Event) {
	return func(e Event) { j.Post(ctx, e.Drafts()...) }
}
