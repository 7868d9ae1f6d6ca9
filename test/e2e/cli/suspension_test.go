package cli_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestSuspension suspends sandboxes of both kinds of isolation, with and without volumes, and wakes them by requests.
// Only a sandbox of gVisor without volumes continues with its processes.
//
// mission: A5
func TestSuspension(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	for name, c := range map[string]struct {
		processes bool
		flags     []string
	}{
		"processes": {processes: true},
		"volumes":   {flags: []string{"-v", "data:/data"}},
		"container": {flags: []string{"--isolation", "container"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := host.New(t, "gvisor", host.GVisor(t))
			h.Env.Setenv("HARVEST_ISOLATION_ALLOWED", "gvisor,container")
			h.Env.Setenv("HARVEST_POOL", "0")
			host.Suspension(t, h, c.processes, func() []string {
				left, err := filepath.Glob(filepath.Join(h.Data, "sandboxes", "*"))
				if err != nil {
					t.Error(err)
				}
				return left
			}, c.flags...)
		})
	}
}

// TestSnapshotOfSuspended checks that a sandbox that ends while it is suspended leaves the snapshot on its end as an
// image that stays.
func TestSnapshotOfSuspended(t *testing.T) {
	t.Parallel()
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Must("sandbox", "create", "--name", "box", "--snapshot-on-end")
	h.Must("sandbox", "exec", "box", "--", "sh", "-c", "echo last >/root/file")
	h.Must("sandbox", "suspend", "box")
	box := h.Sandbox("box")
	h.Must("sandbox", "rm", "box")
	ended := h.Sandbox(box.ID)
	if ended.SnapshotID == "" || ended.SnapshotError != "" {
		t.Fatalf("the snapshot on its end: %q, %s", ended.SnapshotID, ended.SnapshotError)
	}
	t.Cleanup(func() { h.Must("image", "rm", ended.SnapshotID) })
	if got := h.Must("run", "--image", ended.SnapshotID, "--", "cat", "/root/file"); got != "last" {
		t.Errorf("it has %q", got)
	}
	digest := strings.TrimPrefix(ended.SnapshotID, "img_") // the beginning of it
	marks, err := filepath.Glob(filepath.Join(h.Data, "images", digest+"*", "kept"))
	if err != nil || len(marks) != 1 {
		t.Errorf("the mark of an image that stays: %q, %v", marks, err)
	}
}
