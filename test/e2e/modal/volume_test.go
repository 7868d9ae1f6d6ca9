package modal

import (
	"testing"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

// TestModalSync checks that sync commits a volume while the sandbox runs, as in Modal's guide on volumes: as a command,
// in a script, and in a sidecar. Other sandboxes see the files when they reload.
//
// mission: C1, 8.4
func TestModalSync(t *testing.T) {
	testenv.Long(t)
	h := modalhost.WithBase(t)
	m := newModalClient(t, h, "sync")
	ctx, stub := plain(h, t)
	vol, err := m.sdk.Volumes.FromName(t.Context(), "synced", &modal.VolumeFromNameParams{CreateIfMissing: true,
		Version: 2})
	if err != nil {
		t.Fatal(err)
	}
	committed := func(name string) string {
		file, err := stub.VolumeGetFile(ctx, pb.VolumeGetFileRequest_builder{VolumeId: vol.VolumeID,
			Path: name}.Build())
		if err != nil {
			return ""
		}
		return string(file.GetData())
	}
	params := &modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/data": vol}}
	sb, other := m.create(t, "base", params), m.create(t, "base", params)
	direct := func(_, said string, code int) {
		t.Helper()
		if code != 0 {
			t.Errorf("sync: exit code %d: %s", code, said)
		}
	}
	if out, code := m.run(t, sb, "mkdir /data/d && echo hello >/data/d/f"); code != 0 || committed("d/f") != "" {
		t.Fatalf("before sync: %s, and the volume has %q", out, committed("d/f"))
	}
	direct(modaltest.Run(t, sb, nil, "sync", "/data"))
	if got := committed("d/f"); got != "hello\n" {
		t.Errorf("after sync the volume has %q", got)
	}
	if out, code := m.run(t, other, "ls /data"); code != 0 || out != "" {
		t.Errorf("another sandbox sees %q before it reloads", out)
	}
	if err := other.ReloadVolumes(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if out, _ := m.run(t, other, "cat /data/d/f"); out != "hello\n" {
		t.Errorf("another sandbox reads %q after it has reloaded", out)
	}
	out, code := m.run(t, sb, "cd /data && echo again >d/f && sync /data")
	if code != 0 || committed("d/f") != "again\n" {
		t.Errorf("sync in a script: %s, and the volume has %q", out, committed("d/f"))
	}
	img, err := m.sdk.Images.FromRegistry("base", nil).Build(t.Context(), m.app, nil)
	if err != nil {
		t.Fatal(err)
	}
	side, err := sb.ExperimentalSidecars.Create(t.Context(), "side", img,
		&modal.SidecarCreateParams{Command: []string{"sleep", "300"}, Volumes: map[string]*modal.Volume{"/own": vol}})
	if err != nil {
		t.Fatal(err)
	}
	direct(modaltest.Run(t, side, nil, "sh", "-c", "echo beside >/own/g && sync /own"))
	if got := committed("g"); got != "beside\n" {
		t.Errorf("after sync in a sidecar the volume has %q", got)
	}
}
