package modal_test

import (
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// fleetID is the Fleet's name of a sandbox.
func fleetID(id string) string {
	_, rest, _ := strings.Cut(id, "-")
	return "sbx_" + strings.ToLower(rest)
}

// TestVolumesOfSandboxesThatEndedWithoutAServer checks that the next server commits the volume changes of sandboxes
// that ended while no server ran: in the order of their ends, including sandboxes that the Fleet does not know, and
// once. Their sidecars end then.
//
// mission: C1
func TestVolumesOfSandboxesThatEndedWithoutAServer(t *testing.T) {
	w := newWorld(t)
	vol, err := w.sdk.Volumes.FromName(t.Context(), "data", &modal.VolumeFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	mount := &modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/volume": vol}, Timeout: time.Minute}
	first, second, lost := w.create(mount), w.create(mount), w.create(mount)
	for name, sb := range map[string]*modal.Sandbox{"first": first, "second": second, "lost": lost} {
		w.output(sb, "sh", "-c", "echo "+name+" >volume/"+name+"; echo "+name+" >volume/last")
	}
	base, err := w.control.ImageGetOrCreate(w.ctx(),
		pb.ImageGetOrCreateRequest_builder{Image: pb.Image_builder{DockerfileCommands: []string{"FROM base"}}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	beside, err := w.control.SandboxContainerCreateV2(w.ctx(), pb.SandboxContainerCreateV2Request_builder{
		SandboxId: first.SandboxID, ContainerName: "beside",
		Definition: pb.Sandbox_builder{ImageId: base.GetImageId()}.Build(),
	}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	w.sdk.Close()
	for _, sb := range []*modal.Sandbox{second, first} {
		if err := w.fleet.Destroy(t.Context(), "personal", fleetID(sb.SandboxID)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.fleet.Close(t.Context()), w.engine.Lose(fleetID(lost.SandboxID)),
		w.engine.Close()); err != nil {
		t.Fatal(err)
	}
	w.openFleet()
	w.serve()
	third := w.create(mount)
	if got := w.output(third, "sh", "-c",
		"cd volume; cat first second lost last; echo third >last"); got != "first\nsecond\nlost\nlost\n" {
		t.Fatalf("the volume has %q", got)
	}
	if _, err := w.fleet.Ended(t.Context(), "personal", fleetID(beside.GetContainerId())); err != nil {
		t.Errorf("the sidecar: %v", err)
	}
	if code, err := third.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil || code != 137 {
		t.Fatalf("ended with %d, %v", code, err)
	}
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	w.sdk.Close()
	w.serve() // which does nothing again
	if got := w.output(w.create(mount), "cat", "volume/last"); got != "third\n" {
		t.Errorf("the volume has %q", got)
	}
	kept, err := w.db.Records().IDs(t.Context(), records.View)
	if err != nil || len(kept) != 1 {
		t.Errorf("of the copies there are %v, %v", kept, err)
	}
	all, err := w.engine.Volumes().List(t.Context())
	if err != nil || len(all) != 2 {
		t.Errorf("there are the volumes %v, %v", all, err)
	}
}
