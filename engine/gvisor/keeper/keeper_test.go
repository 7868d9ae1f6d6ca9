package keeper

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/boot/procfs"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
)

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

// process is a short form of what gVisor tells about a process.
func process(pid, ppid, pgid, sid int32, env ...string) procfs.ProcessProcfsDump {
	return procfs.ProcessProcfsDump{Env: env, Status: procfs.Status{PID: pid, PPID: ppid}, Stat: procfs.Stat{PGID: pgid, SID: sid}}
}

// mission: A3
func TestTreeFindsAllThatACommandStarted(t *testing.T) {
	t.Parallel()
	const mark = marker + "=p7"
	all := []procfs.ProcessProcfsDump{
		process(1, 0, 1, 1),
		process(2, 0, 2, 2, mark),                     // the command
		process(3, 2, 2, 2, mark),                     // its child
		process(4, 1, 4, 4, mark, "X=1"),              // a daemon: orphan in a session of its own
		process(5, 4, 5, 4),                           // a child of the daemon that cleared its environment
		process(6, 1, 4, 4),                           // an orphan in the daemon's group
		process(7, 1, 7, 7, marker+"=p70", "Y="+mark), // another command
		process(8, 0, 8, 8, marker+"=p8"),
	}
	if got, want := tree(all, mark), []int32{2, 3, 4, 5, 6}; !slices.Equal(got, want) {
		t.Errorf("tree is %v, want %v", got, want)
	}
	if got := tree(all, marker+"=p99"); len(got) != 0 {
		t.Errorf("tree of nothing is %v", got)
	}
}

func TestIntrudersAreNotWhatCameLater(t *testing.T) {
	t.Parallel()
	sleeper := process(1, 0, 1, 1)
	sleeper.Exe = "/init"
	first := process(2, 0, 2, 2)
	first.Exe = initPath + "/init"
	all := []procfs.ProcessProcfsDump{sleeper, first, process(3, 0, 3, 3, marker+"=p4"), process(4, 3, 3, 3), process(5, 0, 5, 5, marker+"=p6")}
	if got, want := intruders(all, 5), []int32{3, 4}; !slices.Equal(got, want) {
		t.Errorf("intruders are %v, want %v", got, want)
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
		`failed to find initial working directory "/x": no such file or directory`: {errors.Invalid, `there is no directory "/x" in the sandbox to start in`},
		`error finding executable "prog" in PATH`:                                  {errors.Invalid, `there is no program "prog" in the sandbox`},
		`loading executable: permission denied`:                                    {errors.Invalid, `"prog" cannot be executed`},
		`exec format error`:                                                        {errors.Invalid, `"prog" is not a program for this machine`},
		`argument list too long`:                                                   {errors.Invalid, `the arguments and the environment of "prog" are too long`},
		`resource temporarily unavailable`:                                         {errors.Exhausted, `the sandbox runs as many processes as it may`},
	} {
		err := startError(errors.Errorf("%s", text), "prog", "/x")
		if !errors.Is(err, want.kind) || errors.Message(err) != want.message || errors.RemedyOf(err) == "" {
			t.Errorf("%s: kind %v, message %q, remedy %q", text, errors.KindOf(err), errors.Message(err), errors.RemedyOf(err))
		}
	}
	if err := startError(errors.Errorf("something else"), "prog", "/"); !errors.Is(err, errors.Internal) {
		t.Errorf("an unknown error is %v", errors.KindOf(err))
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "a/b.txt", Mode: 0o640, Size: 5, Uid: os.Getuid(), Gid: os.Getgid()}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new")
	var stderr bytes.Buffer
	if code := Tool([]string{Unpack, dir}, &archive, nil, &stderr); code != 0 {
		t.Fatalf("unpack: code %d, %s", code, &stderr)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "a", "b.txt")); err != nil || string(b) != "hello" {
		t.Errorf("unpacked %q, %v", b, err)
	}
	var out bytes.Buffer
	if code := Tool([]string{Pack, filepath.Join(dir, "a", "b.txt")}, nil, &out, &stderr); code != 0 {
		t.Fatalf("pack: code %d, %s", code, &stderr)
	}
	if h, err := tar.NewReader(&out).Next(); err != nil || h.Name != "b.txt" || h.Mode != 0o640 {
		t.Errorf("packed %+v, %v", h, err)
	}
	for _, bad := range [][]string{nil, {"other", "x"}, {Pack, filepath.Join(dir, "nothing")}, {Unpack, filepath.Join(dir, "a", "b.txt")}, {Pack, filepath.Join(dir, "no", "x")}} {
		stderr.Reset()
		if code := Tool(bad, strings.NewReader(""), &out, &stderr); code == 0 {
			t.Errorf("%v: no error", bad)
		}
		var f wire.Failure
		if err := json.Unmarshal(stderr.Bytes(), &f); err != nil || f.Kind == "" {
			t.Errorf("%v: stderr is %q", bad, &stderr)
		}
	}
}

func TestLimitsInside(t *testing.T) {
	t.Parallel()
	l := limitsInside{engine.Limits{CPU: 1.5, Memory: 1 << 30}}
	quota, _ := l.CPUQuota()
	memory, _ := l.MemoryLimit()
	if quota != 150_000 || memory != 1<<30 {
		t.Errorf("quota %d, memory %d", quota, memory)
	}
	none := limitsInside{}
	quota, _ = none.CPUQuota()
	memory, _ = none.MemoryLimit()
	if quota != -1 || memory < 1<<60 {
		t.Errorf("without limits: quota %d, memory %d", quota, memory)
	}
}
