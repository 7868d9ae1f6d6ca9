package cli_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// abuse tries to reach the host's kernel, devices and processes, and prints a line for each attempt that is not
// contained. Arguments: release of the host's kernel, its name, the architecture.
const abuse = `
import ctypes, errno, os, stat, sys

libc = ctypes.CDLL(None, use_errno=True)
tried = 0

def check(name, contained):
    global tried
    tried += 1
    try:
        if not contained():
            print("NOT CONTAINED:", name)
    except OSError:
        pass  # denied

def cannot_open(path, mode):
    def attempt():
        open(path, mode).close()
        return False
    return attempt

for path in ("/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmem", "/dev/kmsg", "/dev/port", "/dev/kvm", "/dev/sda", "/dev/loop0", "/dev/fuse0"):
    check("read " + path, cannot_open(path, "rb"))
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent",
             "/sys/fs/cgroup/memory/release_agent", "/proc/sys/vm/panic_on_oom", "/sys/power/state"):
    check("write " + path, cannot_open(path, "w"))
calls = {"init_module": (175, 0, 0, 0), "finit_module": (313, 0, 0, 0), "kexec_load": (246, 0, 0, 0, 0), "bpf": (321, 0, 0, 0), "perf_event_open": (298, 0, 0, -1, -1, 0),
         "io_uring_setup": (425, 8, 0), "add_key": (248, 0, 0, 0, 0, 0), "userfaultfd": (323, 0), "fsopen": (430, 0, 0), "move_mount": (429, -1, 0, -1, 0, 0),
         "setns": (308, -1, 0), "iopl": (172, 3), "ioperm": (173, 0, 8, 1), "swapon": (167, 0, 0), "reboot": (169, 0xfee1dead, 672274793, 0x1234567, 0),
         "settimeofday": (164, 0, 0), "open_by_handle_at": (304, -1, 0, 0)} if sys.argv[3] == "amd64" else {}
for name, call in calls.items():
    if name == "settimeofday":
        call = (164, ctypes.byref((ctypes.c_long * 2)(1, 1)), None)
    check(name, lambda: libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in call]) == -1)
def device(kind, major, minor):
    def attempt():
        os.mknod("/tmp/device", kind | 0o600, os.makedev(major, minor))
        try:
            os.read(os.open("/tmp/device", os.O_RDONLY), 1)
            return False
        finally:
            os.unlink("/tmp/device")
    return attempt
check("block device", device(stat.S_IFBLK, 8, 0))
check("memory device", device(stat.S_IFCHR, 1, 1))
check("port device", device(stat.S_IFCHR, 1, 4))
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/var/lib/harvest"):
    check(path, lambda: not os.path.exists(path))
check("release of the kernel", lambda: os.uname().release != sys.argv[1])
check("host name", lambda: os.uname().nodename != sys.argv[2])
check("version of the kernel", lambda: sys.argv[1] not in open("/proc/version").read())
check("processes of the host", lambda: len([p for p in os.listdir("/proc") if p.isdigit()]) < 20)
def descriptors():
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue  # of the list itself
        if int(fd) > 2 and path.startswith("/") and not path.startswith("/proc/"):
            return False
    return True
def sysrq():
    with open("/proc/sysrq-trigger", "w") as f:
        f.write("h")  # the help of the host's kernel, in its log
    return True  # gVisor has its own file there, and the caller looks into the log
check("sysrq", sysrq)
def sparse():
    with open("/tmp/sparse", "wb") as f:
        f.truncate(1 << 50)
    full = os.statvfs("/tmp").f_bfree == 0
    os.unlink("/tmp/sparse")
    return not full
check("sparse file", sparse)
def many():
    files = []
    try:
        while len(files) < 1000000:
            files.append(os.open("/dev/null", os.O_RDONLY))
        return False
    except OSError as e:
        return e.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for fd in files:
            os.close(fd)
check("a million descriptors", many)
def no_new_caps():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["CapBnd"], 16) >> 38 == 0 and (os.getuid() == 0 or int(status["CapEff"], 16) == 0)
check("capabilities", no_new_caps)
check("inherited descriptors", descriptors)
check("root of process 1", lambda: os.path.samestat(os.stat("/proc/1/root/etc/hostname"), os.stat("/etc/hostname")))
print("tried", tried)
`

func tryAbuse(t *testing.T, h *host.Host) {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	kernelLog := sysrqLines(t)
	for _, user := range []string{"0", "1000"} {
		out := h.Must("run", "-u", user, "--", "python3", "-c", abuse, unix.ByteSliceToString(name.Release[:]), own,
			runtime.GOARCH)
		if !strings.HasPrefix(out, "tried ") || len(out) > len("tried 100") {
			t.Errorf("as user %s: %s", user, out)
		}
	}
	if n := sysrqLines(t); n > kernelLog {
		t.Errorf("sandboxes reached /proc/sysrq-trigger of the host: %d lines in its log", n-kernelLog)
	}
}

// sysrqLines returns the number of lines about sysrq in the log of the host's kernel.
func sysrqLines(t *testing.T) int {
	t.Helper()
	log, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("the kernel's log: %v", err)
	}
	defer unix.Close(log)
	lines := 0
	buf := make([]byte, 8<<10)
	for {
		n, err := unix.Read(log, buf)
		if err == unix.EPIPE { // the line was overwritten meanwhile
			continue
		}
		if err != nil || n == 0 {
			return lines
		}
		if strings.Contains(string(buf[:n]), "sysrq: ") {
			lines++
		}
	}
}

// TestAbuse checks that sandboxed programs reach no device, process or setting of the host, and no interface of its
// kernel.
//
// mission: A11
func TestAbuse(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	tryAbuse(t, host.New(t, "gvisor", host.GVisor(t)))
}

// mission: A11
func TestAbuseRootless(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	tryAbuse(t, host.Ordinary(t))
}
