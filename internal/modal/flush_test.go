package modal_test

import (
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

// committed returns the content of a file of a volume, as clients outside of sandboxes read it, "" without the file.
func (w *world) committed(volume, name string) string {
	file, err := w.control.VolumeGetFile(w.ctx(), pb.VolumeGetFileRequest_builder{VolumeId: volume,
		Path: name}.Build())
	if err != nil {
		return ""
	}
	return string(file.GetData())
}

// TestSyncCommitsVolumes checks that sync in a sandbox commits its volumes: also in a script, and if the server was
// restarted while the command ran. A failed commit is an error of the command.
//
// mission: C1
func TestSyncCommitsVolumes(t *testing.T) {
	w := newWorld(t)
	vol, err := w.sdk.Volumes.FromName(t.Context(), "data", &modal.VolumeFromNameParams{CreateIfMissing: true,
		Version: 2})
	if err != nil {
		t.Fatal(err)
	}
	sb := w.create(&modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/volume": vol}})
	w.output(sb, "sh", "-c", "echo one >volume/f")
	_, _, code := modaltest.Run(t, sb, nil, "sync", "volume/none")
	if code == 0 || w.committed(vol.VolumeID, "f") != "" {
		t.Errorf("a failed sync: exit code %d, and the volume has %q", code, w.committed(vol.VolumeID, "f"))
	}
	if _, said, code := modaltest.Run(t, sb, nil, "sync", "volume"); code != 0 ||
		w.committed(vol.VolumeID, "f") != "one\n" {
		t.Errorf("sync: %q, exit code %d; the volume has %q", said, code, w.committed(vol.VolumeID, "f"))
	}
	w.output(sb, "sh", "-c", "echo two >volume/f; sync volume")
	if got := w.committed(vol.VolumeID, "f"); got != "two\n" {
		t.Errorf("after sync in a script the volume has %q", got)
	}
	w.output(sb, "sh", "-c", "echo three >volume/f; sync /tmp")
	if got := w.committed(vol.VolumeID, "f"); got != "two\n" {
		t.Errorf("after sync of another directory the volume has %q", got)
	}
	w.started(sb.SandboxID, pb.TaskExecStartRequest_builder{ExecId: "over", CommandArgs: []string{"sh", "-c",
		"until test -e go; do sleep 0.01; done; sync volume"}})
	w.restart()
	if sb, err = w.sdk.Sandboxes.FromID(t.Context(), sb.SandboxID, nil); err != nil {
		t.Fatal(err)
	}
	w.output(sb, "touch", "go")
	ctx, task := w.started(sb.SandboxID, pb.TaskExecStartRequest_builder{ExecId: "next",
		CommandArgs: []string{"true"}})
	end, err := w.router.TaskExecWait(ctx, pb.TaskExecWaitRequest_builder{TaskId: task, ExecId: "over"}.Build())
	if got := w.committed(vol.VolumeID, "f"); err != nil || end.GetCode() != 0 || got != "three\n" {
		t.Errorf("after a restart: %v, %v; the volume has %q", end, err, got)
	}
	if _, err := w.control.VolumeDelete(w.ctx(), pb.VolumeDeleteRequest_builder{
		VolumeId: vol.VolumeID}.Build()); err != nil {
		t.Fatal(err)
	}
	if _, said, code := modaltest.Run(t, sb, nil, "sync", "volume"); code != 1 ||
		!strings.Contains(said, "the volume is not committed") {
		t.Errorf("sync of a deleted volume: %q, exit code %d", said, code)
	}
}
