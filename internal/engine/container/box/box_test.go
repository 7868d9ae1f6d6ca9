package box_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/container/box"
	"github.com/RelevanceAI/harvest/internal/engine/container/filter"
	"github.com/RelevanceAI/harvest/internal/engine/container/pid1"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/userns"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// started is a container with the base image.
type started struct {
	*box.Box
	t   *testing.T
	dir string
}

func start(t *testing.T, a pid1.EnterArgs) *started {
	t.Helper()
	testenv.Root(t)
	runtime.LockOSThread() // the container ends with the thread, and the thread with the test
	lib := imagetest.Library(t)
	img := imagetest.Base(t, lib)
	lease, err := userns.Take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Hold.Close() })
	exe := testenv.ToolsBinary(t)
	users, err := userns.Namespace(lease.First, exe)
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	dir := t.TempDir()
	program, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	b, err := box.Start(box.Options{Program: program, FirstUser: lease.First, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Kill()
		b.Wait()
	})
	root, err := box.Root{Image: lib.Root(img), Dir: dir, First: lease.First, Users: users}.Mount()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := b.Enter(a, root, nil, nil); err != nil {
		t.Fatal(err)
	}
	return &started{b, t, dir}
}

// run runs a script as a user, and returns its output and status.
func (s *started) run(uid uint32, script string) (string, unix.WaitStatus) {
	s.t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		s.t.Fatal(err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Close()
	pid, err := s.Execute(pid1.StartArgs{Args: [][]byte{[]byte("sh"), []byte("-c"), []byte(script)}, Dir: "/", UID: uid,
		GID: uid, Env: [][]byte{[]byte("PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")}}, null, w, w)
	_ = w.Close()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		s.t.Fatal(err)
	}
	status, err := s.WaitPID(pid)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(out), status
}

// TestCommands checks that commands of a container run with their user, their files and their status.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := start(t, pid1.EnterArgs{Hostname: "box", Files: []pid1.File{
		{Path: "/etc/hosts", Content: "127.0.0.1 localhost\n"}}})
	for _, c := range []struct {
		uid    uint32
		script string
		want   string
		code   int
	}{
		{0, "id -u; hostname; cat /etc/hosts; cat /proc/1/comm", "0\nbox\n127.0.0.1 localhost\nharvest-init\n", 0},
		{1234, "id -u; touch /tmp/mine && stat -c %u /tmp/mine; touch /root/x 2>/dev/null || echo refused",
			"1234\n1234\nrefused\n", 0},
		{0, "touch /made && chown 7 /made && stat -c %u:%g /made; exit 3", "7:0\n", 3},
		{0, "python3 -c 'print(6*7)'", "42\n", 0},
		{0, "ip -o addr show lo 2>/dev/null | wc -l >/dev/null; ls /dev | sort | tr '\\n' ' '",
			"fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ", 0},
	} {
		out, status := s.run(c.uid, c.script)
		if out != c.want || status.ExitStatus() != c.code {
			t.Errorf("%s: got %q, status %d; want %q, %d", c.script, out, status.ExitStatus(), c.want, c.code)
		}
	}
	info, err := os.Stat(filepath.Join(s.dir, "files", box.Layer, "made"))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 7 {
		t.Errorf("the layer has %v, %v; want a file of user 7", info, err)
	}
	if _, status := s.run(0, "kill -9 $$"); !status.Signaled() || status.Signal() != unix.SIGKILL {
		t.Errorf("the status is %v, want SIGKILL", status)
	}
}

// TestMachineIsOutOfReach checks that root of a container can neither see nor change the machine in the known ways.
func TestMachineIsOutOfReach(t *testing.T) {
	t.Parallel()
	s := start(t, pid1.EnterArgs{Hostname: "box"})
	for _, script := range []string{
		"mount -t tmpfs none /mnt", "mknod /tmp/disk b 8 0", "echo 1 >/proc/sys/kernel/panic",
		"echo h >/proc/sysrq-trigger",
		"test -s /proc/kcore", "test -s /proc/keys", "ls -A /sys/firmware | grep .",
		"echo x >/sys/kernel/uevent_helper",
		"hostname other", "unshare -m true", "nsenter -t 1 -m true", "chroot /proc/1/root true && false",
		"kill -9 1; kill -0 1 || true; false", "cat /proc/1/environ", "readlink /proc/1/fd/3",
		"readlink /proc/1/exe", "cat /proc/1/maps | grep .", "dmesg",
		"echo core >/proc/sys/kernel/core_pattern",
	} {
		if out, status := s.run(0, script); status == 0 {
			t.Errorf("%s: succeeded: %s", script, out)
		}
	}
	if out, status := s.run(0, "echo alive"); out != "alive\n" || status != 0 {
		t.Errorf("after all, the container says %q, status %d", out, status)
	}
	if out, _ := s.run(0, "grep Cap /proc/self/status; cat /proc/self/uid_map"); strings.Contains(out,
		"CapBnd:\t000001ffffffffff") {
		t.Errorf("the capabilities are not bounded: %s", out)
	}
}

// TestNetwork checks that a container reaches what the gateway lets it reach, and nothing else.
func TestNetwork(t *testing.T) {
	t.Parallel()
	s := start(t, pid1.EnterArgs{Hostname: "box", Files: []pid1.File{{Path: "/etc/resolv.conf",
		Content: "nameserver " + netstack.IPv4().DNS.String() + "\n"}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello\n")
			_ = c.Close()
		}
	}()
	tap, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	policy, err := gateway.Compile("allow", []string{"192.0.2.7"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	gw, err := netstack.New(t.Context(), netstack.Options{Link: tap, Policy: policy,
		Dial: func(ctx context.Context, network string, _ netip.AddrPort) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer gw.Close()
	const connect = "import socket,sys; print(socket.create_connection((sys.argv[1], 80), 5).recv(99).decode(), end='')"
	if out, _ := s.run(0, "python3 -c \""+connect+"\" 192.0.2.7"); out != "hello\n" {
		t.Errorf("an allowed address: got %q", out)
	}
	if out, status := s.run(0, "python3 -c \""+connect+"\" 192.0.2.8 2>/dev/null"); status == 0 {
		t.Errorf("another address: got %q", out)
	}
}

// TestFilter checks that the filter of system calls refuses what programs do not need, and leaves to them what they do,
// namespaces of their own included.
func TestFilter(t *testing.T) {
	t.Parallel()
	program, err := filter.Program()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, pid1.EnterArgs{Hostname: "box", Filter: program})
	// The arguments are invalid: without a filter, the kernel answers EINVAL, EFAULT, EBADF or ENOKEY.
	const call = `python3 -c "
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
for n in map(int, sys.argv[1:]):
    libc.syscall(n, -1, 0, 0, 0, 0, 0)
    print(n, ctypes.get_errno())
" `
	refused := []int{unix.SYS_ADD_KEY, unix.SYS_BPF, unix.SYS_IO_URING_SETUP, unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL,
		unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PERF_EVENT_OPEN, unix.SYS_REQUEST_KEY, unix.SYS_SWAPON,
		unix.SYS_USERFAULTFD}
	var numbers, want string
	for _, n := range refused {
		numbers += strconv.Itoa(n) + " "
		want += strconv.Itoa(n) + " " + strconv.Itoa(int(unix.EPERM)) + "\n"
	}
	if out, _ := s.run(0, call+numbers); out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	for _, script := range []string{"python3 -c 'import subprocess; subprocess.run([\"true\"], check=True)'",
		"unshare -Ur sh -c 'mount -t tmpfs none /mnt' 2>/dev/null || unshare -Urm sh -c 'mount -t tmpfs none /mnt'",
		"unshare -Urmpf --mount-proc true || unshare -Urmpf true", "git --version", "setpriv --reuid 1234 id -u"} {
		if out, status := s.run(0, script); status != 0 {
			t.Errorf("%s: status %d: %s", script, status.ExitStatus(), out)
		}
	}
}
