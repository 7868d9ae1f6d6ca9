package keeper

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
)

// TestRoomInVolumes checks that gVisor receives a volume's free space when it is nearly full, at each change then, and
// when it is far from full again.
func TestRoomInVolumes(t *testing.T) {
	t.Parallel()
	r := rooms{sent: map[string]int64{}}
	var sent []int64
	var fails error
	send := func(room layer.Room) error {
		sent = append(sent, room.Left)
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

func TestInitImageHoldsTheProgram(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "init.erofs")
	if err := WriteInit(path); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	program, err := img.Open("init")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	info, err := program.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info.Size()%initBlock != 0 || info.Mode().Perm() != 0o755 {
		t.Errorf("size %d, mode %v", info.Size(), info.Mode())
	}
	before, _ := os.Stat(path)
	if err := WriteInit(path); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("an image that was there was written again")
	}
	if err := WriteInit(filepath.Join(path, "below-a-file")); err == nil {
		t.Error("no error for a path that cannot be")
	}
}

// The engine's tests run the program itself, in prepared sandboxes and others.
func TestInitStack(t *testing.T) {
	t.Parallel()
	args := initArgs("/init", "host", initStep{dir: "/etc", file: "/etc/x", content: "some text\n"})
	stack, err := initStack(args)
	if err != nil {
		t.Fatal(err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(stack[8*i:]) }
	if word(0) != uint64(len(args)) || word(len(args)+1) != 0 {
		t.Errorf("it says that there are %d arguments, and ends with %#x", word(0), word(len(args)+1))
	}
	for i, want := range args {
		text := stack[word(i+1)-initOrders:]
		if got := string(text[:bytes.IndexByte(text, 0)]); got != want {
			t.Errorf("argument %d is %q, want %q", i, got, want)
		}
	}
	if _, err := initStack([]string{strings.Repeat("x", maxInitOrders)}); err == nil {
		t.Error("no error for more than is read")
	}
}

// process is a short form of gVisor's description of a process.
func process(pid, ppid, pgid int32) *runsc.Process {
	return &runsc.Process{PID: pid, PPID: ppid, PGID: pgid}
}

// mission: A3
func TestCensusFindsAllThatACommandStarted(t *testing.T) {
	t.Parallel()
	all := []*runsc.Process{
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
	if got := known.choose([]*runsc.Process{all[0], process(11, 2, 3), process(12, 2, 12)}, mine); !slices.Equal(got,
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

// mission: A9
func TestStartErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		kind    errors.Kind
		message string
	}{
		`failed to find initial working directory "/x": no such file or directory`: {errors.Invalid,
			`there is no directory "/x" in the sandbox to start in`},
		`error finding executable "prog" in PATH`: {errors.Invalid,
			`there is no program "prog" in the sandbox`},
		`loading executable: permission denied`: {errors.Invalid,
			`"prog" cannot be executed`},
		`exec format error`: {errors.Invalid,
			`"prog" is not a program for this machine`},
		`argument list too long`: {errors.Invalid,
			`the arguments and the environment of "prog" are too long`},
		`resource temporarily unavailable`: {errors.Exhausted,
			`the sandbox runs as many processes as it may, which is 64`},
		linuxerr.EAGAIN.Error(): {errors.Exhausted,
			`the sandbox runs as many processes as it may, which is 64`},
		linuxerr.ENOMEM.Error(): {errors.Exhausted,
			`the sandbox has no memory for another command`},
		`cannot allocate memory`: {errors.Exhausted,
			`the sandbox has no memory for another command`},
		linuxerr.EMFILE.Error(): {errors.Exhausted,
			`the sandbox has no open files or disk left for another command`},
		linuxerr.ENFILE.Error(): {errors.Exhausted,
			`the sandbox has no open files or disk left for another command`},
		linuxerr.ENOSPC.Error(): {errors.Exhausted,
			`the sandbox has no open files or disk left for another command`},
		linuxerr.EACCES.Error(): {errors.Invalid,
			`"prog" cannot be executed`},
		linuxerr.EPERM.Error(): {errors.Invalid,
			`"prog" cannot be executed`},
		linuxerr.ELOOP.Error(): {errors.Invalid,
			`"prog" cannot be executed`},
		linuxerr.EISDIR.Error(): {errors.Invalid,
			`"prog" cannot be executed`},
		linuxerr.ENOEXEC.Error(): {errors.Invalid,
			`"prog" is not a program for this machine`},
		linuxerr.E2BIG.Error(): {errors.Invalid,
			`the arguments and the environment of "prog" are too long`},
		linuxerr.ENOENT.Error(): {errors.Invalid,
			`there is no program "prog" in the sandbox`},
		linuxerr.ENOTDIR.Error(): {errors.Invalid,
			`there is no program "prog" in the sandbox`},
		linuxerr.ENAMETOOLONG.Error(): {errors.Invalid,
			`there is no program "prog" in the sandbox`},
	} {
		err := startError(errors.Errorf("%s", text), "prog", "/x", 64)
		if !errors.Is(err, want.kind) || errors.Message(err) != want.message || errors.RemedyOf(err) == "" {
			t.Errorf("%s: kind %v, message %q, remedy %q", text, errors.KindOf(err), errors.Message(err),
				errors.RemedyOf(err))
		}
	}
	if err := startError(errors.Errorf("something else"), "prog", "/", 64); !errors.Is(err, errors.Internal) {
		t.Errorf("an unknown error is %v", errors.KindOf(err))
	}
}

// TestSpecsAreEncodedWhole checks that the encoder covers every field that our specs use.
func TestSpecsAreEncodedWhole(t *testing.T) {
	t.Parallel()
	g := &guest{args: wire.BootArgs{Ref: "r", Dir: "/d", Init: "/i", Limits: engine.Limits{Files: 9, Disk: 1 << 20}}}
	spec := g.mainSpec([]string{"/init", "name"}, "/root.erofs",
		[]wire.Mount{{Source: "/s", Path: "/p", ReadOnly: true}})
	if err := (&guest{}).setUsers(spec); err != nil {
		t.Fatal(err)
	}
	spec.Root.Readonly = true
	ours, err := runsc.EncodeSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	var got, want specs.Spec
	if err := errors.Join(json.Unmarshal(ours, &got), json.Unmarshal(theirs, &want)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("encoded as %s\nwant %s", ours, theirs)
	}
}
