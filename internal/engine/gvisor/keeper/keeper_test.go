package keeper

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
)

// TestRoomInVolumes checks that gVisor receives a volume's free space when it is nearly full, at each change then, and
// when it is far from full again.
func TestRoomInVolumes(t *testing.T) {
	t.Parallel()
	r := rooms{sent: map[string]int64{}}
	var sent []int64
	var fails error
	send := func(_ string, left int64) error {
		sent = append(sent, left)
		return fails
	}
	for _, left := range []int64{nearFull + 1, nearFull, nearFull, 5, -3, 0} {
		r.set("/data", left, send)
	}
	fails = errors.Newf(errors.Unavailable, "the sandbox starts")
	r.set("/data", 7, send)
	fails = nil
	for _, left := range []int64{7, nearFull * 2, nearFull * 3} {
		r.set("/data", left, send)
	}
	if want := []int64{nearFull, 5, 0, 7, 7, layer.Plenty}; !slices.Equal(sent, want) {
		t.Errorf("sent %v, want %v", sent, want)
	}
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755), os.WriteFile(filepath.Join(dir, "a", "f"),
		make([]byte, 100<<10), 0o644)); err != nil {
		t.Fatal(err)
	}
	if size, files := diskUsage(dir); files != 3 || size < 100<<10 {
		t.Errorf("%d bytes, %d files", size, files)
	}
}

// process is a short form of a process.
func process(pid, ppid, pgid int32) kept.Process {
	return kept.Process{PID: pid, Parent: ppid, Group: pgid}
}

// mission: A3
func TestCensusFindsAllThatACommandStarted(t *testing.T) {
	t.Parallel()
	all := []kept.Process{
		process(2, 0, 2),  // the container's first process
		process(3, 0, 3),  // the command
		process(4, 3, 3),  // its child
		process(5, 2, 5),  // a daemon: orphan in its own session
		process(6, 5, 6),  // a child of the daemon that cleared its environment
		process(7, 2, 5),  // an orphan in the daemon's group that cleared its environment
		process(8, 2, 8),  // another command's daemon
		process(9, 0, 9),  // another command
		process(10, 2, 4), // an orphan in a group whose leader is the command's child
	}
	asked := 0
	known := newCensus(func(pid int32) []byte {
		asked++
		return []byte(map[int32]string{
			3: "A=b\x00" + marker + "=p7", 5: marker + "=p7\x00X=1", 8: marker + "=p70\x00Y=" + marker + "=p7",
			9: marker + "=p8",
		}[pid])
	})
	mine := func(owner string) bool { return owner == "p7" }
	if got, want := known.choose(all, mine), []int32{3, 4, 5, 6, 7, 10}; !slices.Equal(got, want) {
		t.Errorf("chosen are %v, want %v", got, want)
	}
	if asked != 4 {
		t.Errorf("%d environments were read, want those of 4 processes", asked)
	}
	// The command is gone meanwhile; its group's members still belong to it.
	if got := known.choose([]kept.Process{all[0], process(11, 2, 3), process(12, 2, 12)}, mine); !slices.Equal(got,
		[]int32{11}) {
		t.Errorf("later, chosen are %v", got)
	}
	for range 2 * killSignals {
		known.choose(all[:3], mine)
	}
	if got := known.choose(all[:3], mine); len(got) != 0 {
		t.Errorf("what is dead is still chosen: %v", got)
	}
	if got := known.choose(nil, mine); got != nil {
		t.Errorf("of nothing, chosen are %v", got)
	}
}

func TestStartedBefore(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{"p5": true, "p6": false, "p66": false, "": true} {
		if got := startedBefore(id, 5); got != want {
			t.Errorf("%q before p5: %t", id, got)
		}
	}
}

func TestExitOf(t *testing.T) {
	t.Parallel()
	for status, want := range map[unix.WaitStatus]engine.Exit{
		0:      {},
		3 << 8: {Code: 3},
		9:      {Code: 137, Signal: "KILL"},
		15:     {Code: 143, Signal: "TERM"},
	} {
		if got := exitOf(status); got != want {
			t.Errorf("exitOf(%#x) = %+v, want %+v", uint32(status), got, want)
		}
	}
	if got := describe(9); got != "signal SIGKILL" {
		t.Errorf("describe: %q", got)
	}
	if got := describe(2 << 8); got != "exit code 2" {
		t.Errorf("describe: %q", got)
	}
}
