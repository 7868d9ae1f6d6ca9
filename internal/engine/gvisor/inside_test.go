package gvisor_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// These tests cover the environment of programs inside: privileges, file systems, files of /proc, debuggers.

// runAs runs a script of the shell as a user.
func runAs(t *testing.T, sb engine.Sandbox, user, script string) string {
	t.Helper()
	var out strings.Builder
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sh", "-c", script}, User: user, Stdout: &out,
		Stderr: &out})
	if err != nil {
		t.Fatalf("start %q: %v", script, err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatalf("wait for %q: %v", script, err)
	}
	return out.String()
}

// withCapability copies python3 to /tmp/python with CAP_NET_RAW in its file capabilities, like Debian's ping.
const withCapability = `cp /usr/bin/python3 /tmp/python && chmod 755 /tmp/python && python3 -c '
import os, struct
os.setxattr("/tmp/python", "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))'`

const openRawSocket = `/tmp/python -c '
import socket
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
print("raw")' 2>&1 | tail -1`

// mission: A1
func TestSetuidPrograms(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	sb := create(t, open(t, dir), engine.Spec{ID: "one", Limits: engine.Limits{Processes: 40}})
	runAs(t, sb, "root", "cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id; cp /usr/bin/id /tmp/id-of-group && "+
		"chgrp 4321 /tmp/id-of-group && chmod 2755 /tmp/id-of-group;"+withCapability)
	for _, test := range []struct{ name, user, script, want string }{
		{"setuid", "1234", "/tmp/id -u", "0\n"},
		{"setgid", "1234", "/tmp/id-of-group -g", "4321\n"},
		{"a setuid program of the image", "nobody", "stat -c '%a %U' /usr/bin/passwd; passwd -S | cut -d ' ' -f 1,2",
			"4755 root\nnobody L\n"},
		{"a setgid program of the image", "nobody",
			"stat -c '%a %G' /usr/bin/chage; chage -l nobody | grep -c '^Last password change'", "2755 shadow\n1\n"},
		{"the file that both read", "nobody", "cat /etc/shadow 2>&1 | grep -c 'Permission denied'", "1\n"},
		{"file capabilities", "1234", openRawSocket, "raw\n"},
		{"no privileges without either", "1234", "id -u; grep CapEff /proc/self/status",
			"1234\nCapEff:\t0000000000000000\n"},
		{"su", "root", "su nobody -s /bin/sh -c 'id -un'", "nobody\n"},
		{"mount", "root", "mount -t tmpfs none /mnt && touch /mnt/x && umount /mnt && ls /mnt", ""},
		{"mtab", "1234", "readlink /etc/mtab; grep -c ' / ' /etc/mtab", "/proc/mounts\n1\n"},
		{"FUSE", "root", `python3 -c '
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % os.open("/dev/fuse", os.O_RDWR)
if libc.mount(b"test", b"/mnt", b"fuse", 0, options): raise OSError(ctypes.get_errno(), "mount")
print(open("/proc/mounts").read().count(" /mnt fuse "))'`, "1\n"},
	} {
		if got := runAs(t, sb, test.user, test.script); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
	// Root can mount gVisor's control groups, and sees its own group as their root: the limit of processes stays.
	forks := `echo 5000 >/sys/fs/cgroup/pids.max; mkdir /cg; mount -t cgroup2 none /cg; echo max >/cg/pids.max; unshare -C sh -c 'echo max >/sys/fs/cgroup/pids.max'
python3 -c '
import os, time
n = 0
try:
    while n < 200:
        if os.fork() == 0: os.closerange(0, 3); time.sleep(1000)
        n += 1
except BlockingIOError: pass
print("forks", n)' | tail -1`
	if got := runAs(t, sb, "root", forks); !strings.Contains(got, "forks ") || strings.Contains(got, "forks 200") {
		t.Errorf("root lifts the limit of processes: %q", got)
	}
}

func TestNoSetuid(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	volumes, err := volume.OpenDir(filepath.Join(dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = volumes.Close() })
	e, err := gvisor.Open(t.Context(), gvisor.Options{Dir: dir, Images: images(t), Volumes: volumes,
		Executable: testenv.KeeperBinary(t), Sentry: testenv.SentryBinary(t),
		Tools: testenv.ToolsBinary(t), NoSetuid: true})
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, e, engine.Spec{ID: "one"})
	runAs(t, sb, "root", "cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id;"+withCapability)
	if got := runAs(t, sb, "1234", "/tmp/id -u;"+openRawSocket); strings.Contains(got, "raw") ||
		!strings.HasPrefix(got, "1234\n") {
		t.Errorf("programs gain privileges: %q", got)
	}
	if got := runAs(t, sb, "nobody", "passwd -S; chage -l nobody"); strings.Contains(got, "nobody L") ||
		strings.Contains(got, "Last") {
		t.Errorf("programs of the image gain privileges: %q", got)
	}
}

func TestFileSystemsHaveSizesOfTheSandbox(t *testing.T) {
	testenv.Root(t)
	sb := create(t, open(t, testenv.DataDir(t)),
		engine.Spec{ID: "one", Limits: engine.Limits{Memory: 256 << 20, Disk: 512 << 20}})
	if got := runAs(t, sb, "root", "df -B1 --output=size /dev/shm | tail -1"); strings.TrimSpace(got) != "134217728" {
		t.Errorf("/dev/shm has %q bytes, want half of the memory limit", got)
	}
	if got := runAs(t, sb, "root", "df -B1 --output=size,target | awk 'NR > 1 && $1 > 512*1024*1024'"); got != "" {
		t.Errorf("larger than memory and disk limit:\n%s", got)
	}
	if got := runAs(t, sb, "1234",
		"head -c 200M /dev/zero 2>&1 >/dev/shm/large; stat -c %s /dev/shm/large"); !strings.Contains(got,
		"No space left") || !strings.HasSuffix(got, "\n134217728\n") {
		t.Errorf("writing more than /dev/shm holds: %q", got)
	}
}

// TestCgroupFilesHaveTheLimits checks that programs that read the files of control groups find the sandbox's limits. A
// limit of one processor is time of one, on two of them: docs/inside.md describes this.
func TestCgroupFilesHaveTheLimits(t *testing.T) {
	testenv.Root(t)
	e := open(t, testenv.DataDir(t))
	const show = "cd /sys/fs/cgroup && cat cpu.max memory.max pids.max; nproc; grep -c ^processor /proc/cpuinfo; " +
		`python3 -c "import os; print(len(os.sched_getaffinity(0)))"; echo 1 2>/dev/null >memory.max; cat memory.max`
	for id, test := range map[string]struct {
		limits engine.Limits
		want   string
	}{
		"one": {engine.Limits{CPU: 1, Memory: 512 << 20, Processes: 40},
			"100000 100000\n536870912\n41\n2\n2\n2\n536870912\n"},
		"half": {engine.Limits{CPU: 0.5, Memory: 256 << 20}, "50000 100000\n268435456\nmax\n2\n2\n2\n268435456\n"},
	} {
		if got := runAs(t, create(t, e, engine.Spec{ID: id, Limits: test.limits}), "root", show); got != test.want {
			t.Errorf("%+v: got %q, want %q", test.limits, got, test.want)
		}
	}
}

// TestSparseFiles checks that neither the disk limit nor df counts the holes of a file, and that data in them counts.
// The text of docs/inside.md on du and lseek is for a gVisor that behaves as checked here.
//
// mission: A3
func TestSparseFiles(t *testing.T) {
	testenv.Root(t)
	sb := create(t, open(t, testenv.DataDir(t)), engine.Spec{ID: "one", Limits: engine.Limits{Disk: 64 << 20}})
	used := func(after string) int64 {
		t.Helper()
		got := runAs(t, sb, "root", "cd /root && "+after+" && df -B1 --output=used . | tail -1")
		n, err := strconv.ParseInt(strings.TrimSpace(got), 10, 64)
		if err != nil {
			t.Fatalf("df after %q: %q", after, got)
		}
		return n
	}
	const piece, slack = 16 << 20, 2 << 20
	before := used("true")
	for _, step := range []struct {
		script string
		grows  int64
	}{
		{"truncate -s 1G sparse", 0},
		{"dd if=/dev/zero of=sparse bs=1M count=16 seek=512 conv=notrunc status=none", piece},
		{"head -c 16M /dev/zero >data", 2 * piece},
		{"rm sparse", piece},
		{"rm data", 0},
	} {
		if grown := used(step.script) - before; grown < step.grows-slack || grown > step.grows+slack {
			t.Errorf("df shows %d bytes more after %q, want about %d", grown, step.script, step.grows)
		}
	}
	if got := runAs(t, sb, "root", "cd /root; truncate -s 1G hole; "+
		"dd if=/dev/zero of=hole bs=1M count=128 conv=notrunc 2>&1 | head -1; rm hole"); !strings.Contains(got,
		"No space left on device") {
		t.Errorf("writing 128 MiB into a hole, with a disk limit of 64 MiB: %q", got)
	}
	got := runAs(t, sb, "root", `cd /root; truncate -s 1M hole; stat -c '%b blocks' hole; python3 -c '
import os
for whence in os.SEEK_DATA, os.SEEK_HOLE:
    try: print(os.lseek(os.open("hole", os.O_RDONLY), 0, whence))
    except OSError as e: print(e.strerror)'`)
	if want := "2048 blocks\nInvalid argument\nInvalid argument\n"; got != want {
		t.Errorf("a file of one hole of 1 MiB: %q, want %q; docs/inside.md describes this", got, want)
	}
}

// typedAt runs a script of the shell as a user in a terminal, and returns its output.
func typedAt(t *testing.T, sb engine.Sandbox, user, script string) string {
	t.Helper()
	var out strings.Builder
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sh", "-c", script}, User: user, Stdout: &out,
		Terminal: &engine.Size{Rows: 24, Cols: 80}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestTerminalsHaveNames checks terminals that Harvest opens: programs find their names, also of other processes, and
// /proc/mounts stays valid. gVisor does not report terminals of processes, so ps shows none: docs/inside.md describes
// this.
//
// mission: A3
func TestTerminalsHaveNames(t *testing.T) {
	testenv.Root(t)
	sb := create(t, open(t, testenv.DataDir(t)), engine.Spec{ID: "one"})
	for _, user := range []string{"root", "1234"} {
		got := typedAt(t, sb, user, `tty=$(tty); echo "${tty%/*}"
test "$(readlink /proc/$$/fd/2)" = "$tty" && echo link
test "$(python3 -c 'import os; print(os.ttyname(0))')" = "$tty" && echo ttyname
test "$(stat -c %u "$tty")" = "$(id -u)" && echo owner; echo x >/dev/tty
(exec <"$tty"; tty | sed "s,$tty,the same,"; readlink /proc/self/fd/0 | sed "s,$tty,the same,")
grep -c " $tty devpts " /proc/mounts; df >/dev/null && echo df; ls /dev/pts/ptmx; cut -d ' ' -f 7 /proc/self/stat
readlink /proc/self/exe | grep -c host`)
		if want := "/dev/pts\r\nlink\r\nttyname\r\nowner\r\nx\r\nthe same\r\nthe same\r\n1\r\ndf\r\n" +
			"/dev/pts/ptmx\r\n0\r\n0\r\n"; got != want {
			t.Errorf("as %s: got %q, want %q", user, got, want)
		}
	}
	testenv.Eventually(t, "the names of closed terminals are released", func() bool {
		return runAs(t, sb, "root", "ls /dev/pts; grep -c ' /dev/pts/' /proc/mounts") == "ptmx\n0\n"
	})
}

func TestFilesOfInotify(t *testing.T) {
	testenv.Root(t)
	sb := create(t, open(t, testenv.DataDir(t)), engine.Spec{ID: "one"})
	got := runAs(t, sb, "1234",
		"cd /proc/sys/fs; cat inotify/max_user_watches inotify/max_user_instances inotify/max_queued_events file-max "+
			"nr_open pipe-max-size mount-max")
	if want := "1048576\n8192\n16384\n9223372036854775807\n2147483647\n1048576\n10000\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAttachToOwnProcesses checks that debuggers attach to processes of their own user that they have not started:
// with PTRACE_ATTACH, as gdb -p does, and with PTRACE_SEIZE, as strace -p does.
func TestAttachToOwnProcesses(t *testing.T) {
	testenv.Root(t)
	sb := create(t, open(t, testenv.DataDir(t)), engine.Spec{ID: "one"})
	const attach = `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
pid = int(sys.argv[1])
if libc.ptrace(16, pid, None, None): raise OSError(ctypes.get_errno(), "PTRACE_ATTACH")
os.waitpid(pid, 0)
if libc.ptrace(17, pid, None, None): raise OSError(ctypes.get_errno(), "PTRACE_DETACH")
print("attached")`
	// The system call that PTRACE_INTERRUPT interrupts starts again, which PTRACE_SYSCALL reports.
	const seize = `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
pid = int(sys.argv[1])
TRACESYSGOOD = 1
def call(request, name, data=None):
    if libc.ptrace(request, pid, None, data): raise OSError(ctypes.get_errno(), name)
call(0x4206, "PTRACE_SEIZE", TRACESYSGOOD)
call(0x4207, "PTRACE_INTERRUPT")
status = os.waitpid(pid, 0)[1]
if status >> 16 != 128: raise OSError(0, "no PTRACE_EVENT_STOP: %x" % status)
call(24, "PTRACE_SYSCALL")
status = os.waitpid(pid, 0)[1]
if status >> 8 != 5 | 0x80: raise OSError(0, "no stop at a system call: %x" % status)
call(17, "PTRACE_DETACH")
print("attached")`
	for _, user := range []string{"1234", "root"} {
		for name, program := range map[string]string{"PTRACE_ATTACH": attach, "PTRACE_SEIZE": seize} {
			if got := runAs(t, sb, user, "sleep 1000 & python3 -c '"+program+"' $! 2>&1 | tail -1; kill $!"); got !=
				"attached\n" {
				t.Errorf("%s as %s: %q", name, user, got)
			}
		}
	}
	other, err := sb.Start(t.Context(), engine.Command{Args: []string{"sleep", "1000"}, User: "1234"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Kill(t.Context()) })
	for name, program := range map[string]string{"PTRACE_ATTACH": attach, "PTRACE_SEIZE": seize} {
		got := runAs(t, sb, "4321", "python3 -c '"+program+"' $(pgrep -n sleep) 2>&1 | tail -1")
		if !strings.Contains(got, "PermissionError") {
			t.Errorf("%s of another user's process: %q", name, got)
		}
	}
}

// TestMemoryLimitIsNotExceededForLong checks that the kernel ends a sandbox only when gVisor's own share is used up as
// well. A program that passes the limit slowly, or stays a little above it, is ended too.
//
// mission: A6
func TestMemoryLimitIsNotExceededForLong(t *testing.T) {
	testenv.Root(t)
	sb := create(t, open(t, testenv.DataDir(t)), engine.Spec{ID: "one", Limits: engine.Limits{Memory: 128 << 20}})
	exit, out := run(t, sb, "python3", "-c", `
import time
block = bytearray(b"x") * (130 << 20)
print("took it", flush=True)
time.sleep(1000)`)
	if !exit.OutOfMemory || out != "took it\n" {
		t.Errorf("the command ended with %+v, output %q", exit, out)
	}
	if end, err := sb.Wait(t.Context()); err != nil || !end.OutOfMemory {
		t.Errorf("the sandbox ended with %+v, %v", end, err)
	}
}
