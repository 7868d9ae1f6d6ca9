package modal_test

import (
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// TestExecsCountAgainstTheIdleLimit checks that a running command keeps its sandbox from being idle, also after a
// restart of the server. The sandbox's own entrypoint does not.
//
// mission: A5
func TestExecsCountAgainstTheIdleLimit(t *testing.T) {
	w := newWorld(t)
	limited := func() *modal.Sandbox {
		return w.create(&modal.SandboxCreateParams{Timeout: 10 * time.Minute, IdleTimeout: time.Second,
			Command: []string{"sleep", "600"}})
	}
	used := limited()
	id := used.SandboxID
	w.started(id, pb.TaskExecStartRequest_builder{ExecId: "runs", CommandArgs: []string{"cat"}})
	for _, when := range []string{"at first", "after a restart"} {
		if when == "after a restart" {
			w.reopen()
		}
		if code, err := limited().Wait(t.Context(), nil); err != nil ||
			code != 124 { // it shows that the limit has passed
			t.Fatalf("%s: an idle sandbox ended with %d, %v", when, code, err)
		}
		if sb, err := w.fleet.Get(t.Context(), "personal", fleetID(id)); err != nil || sb.Status != record.Running {
			t.Fatalf("%s: the sandbox with a command is %s (%s), %v", when, sb.Status, sb.Reason, err)
		}
	}
	ctx, task := w.started(id, pb.TaskExecStartRequest_builder{ExecId: "other",
		CommandArgs: []string{"true"}}) // with the new server's token
	if _, err := w.router.TaskExecStdinWrite(ctx, pb.TaskExecStdinWriteRequest_builder{TaskId: task, ExecId: "runs",
		Eof: true}.Build()); err != nil {
		t.Fatal(err)
	}
	again, err := w.sdk.Sandboxes.FromID(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if code, err := again.Wait(t.Context(), nil); err != nil || code != 124 {
		t.Errorf("after its command it ended with %d, %v", code, err)
	}
}
