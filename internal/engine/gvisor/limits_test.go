package gvisor_test

import (
	"bytes"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// TestCommandsBeyondTheProcessLimitAreRefused checks that a command and a terminal beyond the sandbox's limit of
// processes fail with an error that names the limit, and not as a fault of Harvest, and that commands can start again
// when others have ended.
//
// mission: A3
func TestCommandsBeyondTheProcessLimitAreRefused(t *testing.T) {
	testenv.Root(t)
	const most = 20
	sb := create(t, open(t, testenv.DataDir(t)), engine.Spec{ID: "one", Limits: engine.Limits{Processes: most}})
	sleep := engine.Command{Args: []string{"sleep", "1000"}}
	var running []engine.Process
	var refused error
	for refused == nil && len(running) <= most {
		var p engine.Process
		if p, refused = sb.Start(t.Context(), sleep); refused == nil {
			running = append(running, p)
		}
	}
	terminal := sleep
	terminal.Terminal = &engine.Size{Cols: 80, Rows: 24}
	_, alsoRefused := sb.Start(t.Context(), terminal)
	if len(running) > most || len(running) < most/2 {
		t.Errorf("%d commands run, want about %d", len(running), most)
	}
	for name, err := range map[string]error{"a command": refused, "a terminal": alsoRefused} {
		if !errors.Is(err, errors.Exhausted) ||
			!strings.Contains(errors.Message(err), "limit of 20 processes") ||
			!strings.Contains(errors.RemedyOf(err), "--processes") {
			t.Errorf("%s beyond the limit: %v (%s), remedy %q", name, err, errors.KindOf(err), errors.RemedyOf(err))
		}
	}
	for _, p := range running[:2] {
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, "a command starts again", func() bool {
		p, err := sb.Start(t.Context(), engine.Command{Args: []string{"true"}, Stdout: new(bytes.Buffer)})
		if err != nil {
			return false
		}
		exit, err := p.Wait(t.Context())
		return err == nil && exit.Code == 0
	})
}

// everyCreation calls each system call that creates a file, by its number, with a name that does not exist.
const everyCreation = `
import ctypes, errno, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
os.chdir("/data")
d = os.open("/data", os.O_RDONLY)
how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o600, 0)
in_root = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o600, 0x10)
create = os.O_CREAT | os.O_WRONLY
def call(name, number, *args):
    ctypes.set_errno(0)
    if libc.syscall(number, *args) >= 0:
        print(name, "works")
    elif ctypes.get_errno() != errno.EDQUOT:
        print(name, errno.errorcode[ctypes.get_errno()])
call("open", 2, b"n1", create, 0o600)
call("creat", 85, b"n2", 0o600)
call("openat", 257, d, b"n3", create, 0o600)
call("openat2", 437, d, b"n4", how, 24)
call("openat2 in a root", 437, d, b"/n5", in_root, 24)
call("mkdir", 83, b"n6", 0o700)
call("mkdirat", 258, d, b"n7", 0o700)
call("mknod", 133, b"n8", 0o010600, 0)
call("mknodat", 259, d, b"n9", 0o100600, 0)
call("symlink", 88, b"x", b"n10")
call("symlinkat", 266, b"x", d, b"n11")
call("link", 86, b"f0", b"n12")
call("linkat", 265, d, b"f0", d, b"n13", 0)
for i in range(500):
    try:
        socket.socket(socket.AF_UNIX).bind("/data/socket%d" % i)
    except OSError:
        break
print("done")
`

// TestNoCallCreatesFilesInAFullVolume checks each system call that creates files, by its number, and the number of
// files on the host afterwards.
//
// mission: A6
func TestNoCallCreatesFilesInAFullVolume(t *testing.T) {
	testenv.Root(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the numbers of the system calls are those of amd64")
	}
	const most = 300
	e := open(t, testenv.DataDir(t))
	vol, err := e.Volumes().Create(t.Context(), "data")
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, e, engine.Spec{ID: "one", Limits: engine.Limits{VolumeFiles: most},
		Mounts: []engine.Mount{{Volume: "data", Path: "/data"}}})
	count := func() (files int) {
		t.Helper()
		dir := e.Volumes().(interface{ Path(string) string }).Path(vol.Name())
		if err := filepath.WalkDir(dir, func(string, fs.DirEntry, error) error { files++; return nil }); err != nil {
			t.Fatal(err)
		}
		return files
	}
	fill := "cd /data; i=0; while : >f$i; do i=$((i+1)); [ $i -lt 5000 ] || exit 3; done 2>/dev/null; echo full"
	if exit, out := run(t, sb, "bash", "-c", fill); exit.Code != 0 || out != "full\n" {
		t.Fatalf("fill the volume: %+v, %q", exit, out)
	}
	before := count()
	if exit, out := run(t, sb, "python3", "-c", everyCreation); exit.Code != 0 || out != "done\n" {
		t.Errorf("%+v, %q", exit, out)
	}
	if after := count(); before < most || after != before {
		t.Errorf("%d files on the host, and %d before, want about %d", after, before, most)
	}
}
