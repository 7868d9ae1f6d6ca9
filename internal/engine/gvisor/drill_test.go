package gvisor_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper"
)

// These tests cover parts that only this engine has: keepers, gVisor itself, limits of volumes.

func create(t *testing.T, e engine.Engine, spec engine.Spec) engine.Sandbox {
	t.Helper()
	if spec.Image == "" {
		spec.Image = "base"
	}
	sb, err := e.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Destroy(context.Background()); err != nil {
			t.Errorf("destroy: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return sb
}

// run runs a command to its end.
func run(t *testing.T, sb engine.Sandbox, args ...string) (engine.Exit, string) {
	t.Helper()
	var out bytes.Buffer
	p, err := sb.Start(t.Context(), engine.Command{Args: args, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("start %v: %v", args, err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil {
		t.Fatalf("wait for %v: %v", args, err)
	}
	return exit, out.String()
}

// keepers returns the PIDs of the keepers of sandboxes in dir.
func keepers(t *testing.T, dir string) []int {
	t.Helper()
	var pids []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if strings.HasPrefix(string(b), keeper.Name+"\x00"+dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// mission: A1
func TestProgramsRunInsideGVisor(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	sb := create(t, open(t, dir), engine.Spec{ID: "one"})
	if _, out := run(t, sb, "dmesg"); !strings.Contains(out, "Starting gVisor") {
		t.Errorf("dmesg says %q", out)
	}
	if exit, out := run(t, sb, "sh", "-c", "gcc --version && git --version && python3 --version"); exit.Code != 0 ||
		!strings.Contains(out, "Python 3.11") {
		t.Errorf("exit %+v, output %q", exit, out)
	}
	program := "echo 'int main(){return __builtin_puts(\"compiled\") < 0;}' > /tmp/x.c && gcc -o /tmp/x /tmp/x.c && " +
		"/tmp/x"
	if exit, out := run(t, sb, "sh", "-c", program); exit.Code != 0 || out != "compiled\n" {
		t.Errorf("exit %+v, output %q", exit, out)
	}
}

// kill -9 of a keeper ends its sandbox, which is noticed, and leaves nothing that Destroy cannot remove.
func TestKeeperIsKilled(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	sb := create(t, e, engine.Spec{ID: "one", Limits: engine.Limits{Memory: 256 << 20, Processes: 50}})
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sleep", "1000"}, Stdout: &bytes.Buffer{}})
	if err != nil {
		t.Fatal(err)
	}
	pids := keepers(t, dir)
	if len(pids) != 1 {
		t.Fatalf("keepers are %v", pids)
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, errors.Unavailable) {
		t.Errorf("Wait of the command: %v", err)
	}
	if end, err := sb.Wait(t.Context()); err != nil || end.Destroyed || end.OutOfMemory || end.Detail == "" {
		t.Errorf("Wait of the sandbox: %+v, %v", end, err)
	}
	if _, err := sb.Start(t.Context(), engine.Command{Args: []string{"true"}}); !errors.Is(err, errors.Conflict) {
		t.Errorf("Start: %v", err)
	}
}

// kill -9 of gVisor's own process: the keeper notices, and the output up to then is kept.
func TestSentryIsKilled(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	sb := create(t, e, engine.Spec{ID: "one"})
	out := &bytes.Buffer{}
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sh", "-c", "echo before; sleep 1000"},
		Stdout: writerFunc(func(b []byte) (int, error) {
			out.Write(b)
			for _, pid := range keepers(t, dir) {
				lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
				for _, list := range lists {
					children, _ := os.ReadFile(list)
					for _, child := range strings.Fields(string(children)) {
						n, _ := strconv.Atoi(child)
						_ = syscall.Kill(n, syscall.SIGKILL)
					}
				}
			}
			return len(b), nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Signal != "KILL" || out.String() != "before\n" {
		t.Errorf("exit %+v, %v, output %q", exit, err, out)
	}
	if end, err := sb.Wait(t.Context()); err != nil || end.Destroyed || !strings.Contains(end.Detail, "SIGKILL") {
		t.Errorf("end %+v, %v", end, err)
	}
	list, err := sb.(engine.ProcessOpener).Processes(t.Context())
	if err != nil || len(list) != 1 || list[0].Exit == nil {
		t.Errorf("processes %+v, %v", list, err)
	}
	again := &bytes.Buffer{}
	p, err = sb.(engine.ProcessOpener).OpenProcess(t.Context(), list[0].ID, engine.Stdio{Stdout: again})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil || again.String() != "before\n" {
		t.Errorf("kept output %q, %v", again, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// The first process of a sandbox can be killed from inside. That ends the sandbox and nothing else.
func TestInitIsKilledFromInside(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	sb := create(t, e, engine.Spec{ID: "one"})
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sh", "-c", "kill -9 1; sleep 5"},
		Stdout: &bytes.Buffer{}})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = p.Wait(t.Context())
	if end, err := sb.Wait(t.Context()); err != nil || end.Destroyed {
		t.Errorf("end %+v, %v", end, err)
	}
}

// TestHalfMadeSandboxesAreRemoved checks that the next engine removes sandboxes that a dead engine had begun to create.
func TestHalfMadeSandboxesAreRemoved(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	half := filepath.Join(dir, "sandboxes", "01halfmade")
	if err := os.MkdirAll(filepath.Join(half, "root"), 0o700); err != nil {
		t.Fatal(err)
	}
	e := open(t, dir)
	if list, err := e.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v", list, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(half); !errors.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "trash")); len(left) != 0 {
		t.Errorf("the trash still holds %v", left)
	}
}

// mission: A6
func TestVolumeHasTheDiskLimit(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	if _, err := e.Volumes().Create(t.Context(), "data"); err != nil {
		t.Fatal(err)
	}
	sb := create(t, e, engine.Spec{ID: "one", Limits: engine.Limits{Disk: 32 << 20},
		Mounts: []engine.Mount{{Volume: "data", Path: "/data"}}})
	fill := "while true; do dd if=/dev/zero bs=1M count=8 2>/dev/null; sleep 0.2; done >> /data/big"
	exit, _ := run(t, sb, "sh", "-c", fill)
	if !exit.OutOfSpace || exit.Signal != "KILL" {
		t.Errorf("a command that fills a volume ended with %+v", exit)
	}
	if exit, out := run(t, sb, "sh", "-c", "rm /data/big && sleep 2 && echo removed"); exit.Code != 0 ||
		out != "removed\n" {
		t.Errorf("cleaning up: %+v, %q", exit, out)
	}
	if exit, out := run(t, sb, "sh", "-c", "echo small > /data/small && sleep 2 && cat /data/small"); exit.Code != 0 ||
		out != "small\n" {
		t.Errorf("a small file: %+v, %q", exit, out)
	}
}

// TestVolumeHasAFileLimit checks that a sandbox cannot create files beyond the limit of a volume, by any method.
// Existing files can be used and removed.
//
// mission: A6
func TestVolumeHasAFileLimit(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	if _, err := e.Volumes().Create(t.Context(), "data"); err != nil {
		t.Fatal(err)
	}
	sb := create(t, e, engine.Spec{ID: "one", Limits: engine.Limits{VolumeFiles: 300},
		Mounts: []engine.Mount{{Volume: "data", Path: "/data"}}})
	fill := `
import os, errno, time
os.symlink("/data/through-a-link", "/tmp/link")
made, last = 0, time.monotonic()
while True:
    try:
        open("/data/f%d" % made, "x").close()
        made += 1
    except OSError as e:
        print(errno.errorcode[e.errno], 290 <= made < 2000, flush=True)
        break
    if made == 5000:
        print("no limit", flush=True)
        break
os.chdir("/data")
d = os.open("/data", os.O_RDONLY)
for name, call in {
    "mkdir": lambda: os.mkdir("dir"),
    "mkdirat": lambda: os.mkdir("dir", dir_fd=d),
    "symlink": lambda: os.symlink("x", "sym"),
    "link": lambda: os.link("f0", "hard"),
    "mkfifo": lambda: os.mkfifo("/data/fifo"),
    "openat": lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=d),
    "symbolic link": lambda: os.open("/tmp/link", os.O_CREAT | os.O_WRONLY),
    "..": lambda: os.open("/tmp/../data/./new", os.O_CREAT | os.O_WRONLY),
    "/proc": lambda: os.open("/proc/self/fd/%d/new" % d, os.O_CREAT | os.O_WRONLY),
}.items():
    try:
        call()
        print(name, "works")
    except OSError as e:
        if e.errno != errno.EDQUOT:
            print(name, e)
open("/data/f0", "w").write("used")
open("/tmp/elsewhere", "x").close()
try:
    os.mkdir("/data")
except FileExistsError:
    print("exists")
os.rename("f1", "moved")
for i in range(100, 200):
    os.remove("f%d" % i)
until = time.monotonic() + 120
while time.monotonic() < until:
    try:
        os.mkdir("room")
        print("room again")
        break
    except OSError as e:
        time.sleep(0.1)
`
	exit, out := run(t, sb, "python3", "-c", fill)
	if exit.Code != 0 || out != "EDQUOT True\nexists\nroom again\n" {
		t.Errorf("%+v, %q", exit, out)
	}
	// Another mount of the same volume has the same limit.
	again := "mkdir /tmp/again && mount --bind /data /tmp/again && cd /tmp/again && seq 400 | xargs touch"
	if exit, out := run(t, sb, "sh", "-c", again); exit.Code == 0 || !strings.Contains(out, "quota exceeded") {
		t.Errorf("another mount: %+v, %.300q", exit, out)
	}
}

// mission: A9
func TestProgramThatNeedsSharedLibraries(t *testing.T) {
	t.Parallel()
	_, err := gvisor.Open(t.Context(), gvisor.Options{Dir: t.TempDir(), Executable: "/bin/sh"})
	if !errors.Is(err, errors.Unsupported) || !strings.Contains(errors.RemedyOf(err), "CGO_ENABLED=0") {
		t.Errorf("Open: %v, remedy %q", err, errors.RemedyOf(err))
	}
	if _, err := gvisor.Open(t.Context(), gvisor.Options{Dir: t.TempDir(), Executable: "/etc/passwd"}); err == nil {
		t.Error("a text file is taken for the program")
	}
}

func TestCheckSaysWhatWorks(t *testing.T) {
	testenv.Root(t)
	found := map[string]gvisor.Finding{}
	for _, f := range gvisor.Check(t.Context(), testenv.DataDir(t), testenv.Binary(t), "") {
		found[f.Name] = f
		if !f.OK && f.Remedy == "" {
			t.Errorf("%s does not work, and nothing says what to do: %s", f.Name, f.Detail)
		}
	}
	if !found["sandbox"].OK || !strings.Contains(found["sandbox"].Detail, "booted") {
		t.Errorf("a trial sandbox: %+v", found["sandbox"])
	}
	if f := found["system call filter"]; !f.OK {
		t.Errorf("the filter: %+v", f)
	}
	for _, f := range gvisor.Check(t.Context(), testenv.DataDir(t), "/bin/sh", "") {
		if (f.Name == "sandbox" || f.Name == "system call filter") && (f.OK || f.Remedy == "") {
			t.Errorf("with a wrong program: %+v", f)
		}
	}
}

// TestServerDiesAfterCreate checks that the next server finds and can remove a sandbox if the server dies while it
// creates the sandbox.
func TestServerDiesAfterCreate(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	first := open(t, dir)
	sb, err := first.Create(t.Context(), engine.Spec{ID: "one", Image: "base"})
	if err != nil {
		t.Fatal(err)
	}
	second := open(t, dir) // as if first had died: it was not closed
	list, err := second.List(t.Context())
	if err != nil || len(list) != 1 || list[0] != sb.Handle() {
		t.Fatalf("List: %v, %v", list, err)
	}
	again, err := second.Open(t.Context(), list[0])
	if err != nil {
		t.Fatal(err)
	}
	if exit, out := run(t, again, "echo", "still here"); exit.Code != 0 || out != "still here\n" {
		t.Errorf("exit %+v, output %q", exit, out)
	}
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := again.Destroy(deadline); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
}

// A fork bomb is stopped at the limit of processes, is killed by Kill, and the sandbox lives on.
// mission: A3
func TestForkBombIsKilled(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	sb := create(t, open(t, testenv.DataDir(t)),
		engine.Spec{ID: "one", Limits: engine.Limits{Processes: 100, Memory: 2 << 30}})
	const bomb = `
import errno, os
told = False
while True:
    try:
        os.fork()
    except OSError as e:
        if not told:
            told = True
            print(errno.errorcode[e.errno], flush=True)
`
	full := make(chan struct{}, 1)
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"python3", "-c", bomb},
		Stdout: writerFunc(func(b []byte) (int, error) {
			if bytes.Contains(b, []byte("EAGAIN")) {
				select {
				case full <- struct{}{}:
				default:
				}
			}
			return len(b), nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-full:
	case <-time.After(time.Minute):
		t.Fatal("the bomb did not reach the limit in a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begin := time.Now()
	if err := p.Kill(ctx); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	t.Logf("killed in %v", time.Since(begin))
	if exit, err := p.Wait(ctx); err != nil || exit.Signal != "KILL" {
		t.Errorf("exit %+v, %v", exit, err)
	}
	if exit, out := run(t, sb, "sh", "-c", "echo alive; ls /proc | grep -c '^[0-9]'"); exit.Code != 0 ||
		!strings.HasPrefix(out, "alive\n") {
		t.Errorf("afterwards: %+v, %q", exit, out)
	}
}
