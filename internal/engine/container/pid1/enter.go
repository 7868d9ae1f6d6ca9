package pid1

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Files of /proc and /sys that show or change this machine rather than the container, as in the default configuration
// of OCI runtimes: https://github.com/moby/moby/blob/master/daemon/pkg/oci/defaults.go. Hidden ones are empty.
var (
	hidden = []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap",
		"/sys/firmware"}
	fixed = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// devices are the devices of the machine that a container has.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// kept are the capabilities that root of a container can have, within the container's user namespace: those of OCI
// runtimes.
const kept = 1<<unix.CAP_AUDIT_WRITE | 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_KILL | 1<<unix.CAP_MKNOD | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_RAW |
	1<<unix.CAP_SETFCAP | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_SETUID | 1<<unix.CAP_SYS_CHROOT

// enter makes the container's file system the root of this process, and gives up the privileges that it needs for that.
// It runs on the thread that starts commands.
func enter(a *EnterArgs, files []*os.File) error {
	want := 1 + len(a.Mounts)
	if a.Layer {
		want++
	}
	if len(files) != want {
		return errors.Errorf("%d files for a root and %d volumes", len(files), len(a.Mounts))
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil { // its cgroup is the root
		return failed(err, "make a namespace of cgroups")
	}
	system, err := openSystem()
	defer system.close()
	if err != nil {
		return err
	}
	if err := pivot(files[0]); err != nil {
		return err
	}
	files = files[1:]
	if a.Layer {
		if err := fill(files[0]); err != nil { // before there are mounts in the way
			return err
		}
		files = files[1:]
	}
	if err := system.mount(); err != nil {
		return err
	}
	for i, m := range a.Mounts {
		if err := attach(files[i], m.Path, m.ReadOnly); err != nil {
			return err
		}
	}
	for _, f := range a.Files {
		if err := replace(f); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte(a.Hostname)); err != nil {
		return failed(err, "set the host name")
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := limitFiles(uint64(a.OpenFile)); err != nil {
		return err
	}
	return drop(a)
}

// limitFiles limits the open files of each process to n, or to the limit of this machine if that is lower: a container
// cannot exceed it. 0 is no limit but that.
func limitFiles(n uint64) error {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return failed(err, "read the limit of open files")
	}
	if n == 0 || n > now.Max {
		n = now.Max
	}
	return failed(syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}), "limit open files to %d", n)
}

// pivot makes a detached mount the root of this mount namespace, and unmounts the old one.
func pivot(root *os.File) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failed(err, "separate the mounts of the container")
	}
	// Any directory will do: the mount becomes the root right away.
	const place = "/proc"
	if err := unix.MoveMount(int(root.Fd()), "", unix.AT_FDCWD, place, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return failed(err, "mount the image")
	}
	if err := unix.Fchdir(int(root.Fd())); err != nil {
		return failed(err, "enter the image")
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return failed(err, "make the image the root")
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return failed(err, "leave the file system of the machine")
	}
	return failed(unix.Chdir("/"), "enter the root")
}

// system are the detached mounts of the kernel's file systems.
type system struct {
	proc, sys, group *os.File
	devices          map[string]*os.File
}

// openSystem opens them while the machine's own are visible: the kernel mounts /proc and /sys in a user namespace only
// then.
func openSystem() (s *system, err error) {
	s = &system{devices: map[string]*os.File{}}
	if s.proc, err = detached("proc", nil, 0); err != nil {
		return s, err
	}
	if s.sys, err = detached("sysfs", nil, unix.MOUNT_ATTR_RDONLY); err != nil {
		return s, err
	}
	// Without version 2 of cgroups, the container has none.
	s.group, _ = detached("cgroup2", nil, unix.MOUNT_ATTR_RDONLY)
	for _, name := range devices {
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev/"+name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return s, failed(err, "open the device %s", name)
		}
		s.devices[name] = os.NewFile(uintptr(fd), name)
	}
	return s, nil
}

func (s *system) close() {
	for _, f := range []*os.File{s.proc, s.sys, s.group} {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, f := range s.devices {
		_ = f.Close()
	}
}

// mount attaches them below the root, and hides what is not for the container.
func (s *system) mount() error {
	if err := attach(s.proc, "/proc", false); err != nil {
		return err
	}
	if err := attach(s.sys, "/sys", false); err != nil {
		return err
	}
	if s.group != nil {
		if err := attach(s.group, "/sys/fs/cgroup", false); err != nil {
			return err
		}
	}
	if err := s.mountDevices(); err != nil {
		return err
	}
	for _, path := range fixed {
		if err := fix(path); err != nil {
			return err
		}
	}
	for _, path := range hidden {
		if err := hide(path); err != nil {
			return err
		}
	}
	return nil
}

func (s *system) mountDevices() error {
	for _, m := range []struct {
		path, kind string
		options    map[string]string
		flags      int
	}{
		{"/dev", "tmpfs", map[string]string{"mode": "755", "size": "65536k"}, unix.MOUNT_ATTR_NOSUID},
		{"/dev/pts", "devpts", map[string]string{"ptmxmode": "0666", "mode": "0620", "gid": "5"},
			unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC},
		{"/dev/shm", "tmpfs", map[string]string{"mode": "1777"}, unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV},
		{"/dev/mqueue", "mqueue", nil, unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC},
	} {
		f, err := detached(m.kind, m.options, m.flags)
		if err != nil {
			return err
		}
		err = attach(f, m.path, false)
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	for name, f := range s.devices {
		path := "/dev/" + name
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			return failed(err, "create %s", path)
		}
		if err := moveTo(f, path); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, "/dev/"+link); err != nil {
			return failed(err, "create /dev/%s", link)
		}
	}
	return nil
}

// detached returns a new mount of a file system that is attached nowhere yet.
func detached(kind string, options map[string]string, flags int) (*os.File, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, failed(err, "open the file system %s", kind)
	}
	defer unix.Close(fs)
	for name, value := range options {
		if err := unix.FsconfigSetString(fs, name, value); err != nil {
			return nil, failed(err, "set %s=%s of the file system %s", name, value, kind)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, failed(err, "create the file system %s", kind)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, flags)
	if err != nil {
		return nil, failed(err, "mount the file system %s", kind)
	}
	return os.NewFile(uintptr(fd), kind), nil
}

// attach attaches a mount to a directory of the container, which is created if missing. A file is attached to a file.
func attach(mount *os.File, path string, readOnly bool) error {
	if readOnly {
		if err := unix.MountSetattr(int(mount.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE,
			&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return failed(err, "make %s read-only", path)
		}
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return failed(err, "create %s", path)
	}
	return moveTo(mount, path)
}

func moveTo(mount *os.File, path string) error {
	err := unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return failed(err, "mount %s", path)
}

// fix makes a file or directory read-only, if it exists.
func fix(path string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return failed(err, "open %s", path)
	}
	defer unix.Close(fd)
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return failed(err, "make %s read-only", path)
	}
	return failed(unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH), "mount %s", path)
}

// hide covers a file by /dev/null, and a directory by an empty one, if it exists.
func hide(path string) error {
	info, err := os.Lstat(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return failed(err, "look at %s", path)
	}
	if !info.IsDir() {
		return failed(unix.Mount("/dev/null", path, "", unix.MS_BIND, ""), "hide %s", path)
	}
	f, err := detached("tmpfs", map[string]string{"size": "4k"}, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	return moveTo(f, path)
}

// replace writes a file below a directory of the image, which is created if missing, and whose time stays. A symbolic
// link is replaced, not followed.
func replace(f File) error {
	dir, name := filepath.Split(f.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return failed(err, "create %s", dir)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return failed(err, "look at %s", dir)
	}
	temp := filepath.Join(dir, ".harvest-"+strings.TrimPrefix(name, "."))
	if err := os.WriteFile(temp, []byte(f.Content), 0o644); err != nil {
		return failed(err, "write %s", f.Path)
	}
	if err := unix.Rename(temp, f.Path); err != nil {
		return failed(err, "write %s", f.Path)
	}
	return failed(os.Chtimes(dir, info.ModTime(), info.ModTime()), "set the time of %s", dir)
}

// loopbackUp brings the interface lo up.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed(err, "open a socket")
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return failed(err, "name lo")
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return failed(unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr), "bring lo up")
}

// drop gives up the privileges that no program of the container has, in this thread. dropAll follows.
func drop(a *EnterArgs) error {
	if a.NoSetuid {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return failed(err, "refuse new privileges")
		}
	}
	if err := confine(a.Filter); err != nil {
		return err
	}
	return reduce(syscall.RawSyscall)
}

// dropAll does in all threads what drop has done in one. It takes milliseconds, for which no command has to wait.
func dropAll() error { return reduce(syscall.AllThreadsSyscall) }

// reduce gives up all capabilities but kept ones, by call.
func reduce(call func(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, errno syscall.Errno)) error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if kept>>c&1 == 1 {
			continue
		}
		_, _, errno := call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errno != 0 && errno != unix.EINVAL { // the kernel does not know it
			return failed(errno, "drop a capability")
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	low, high := uint32(kept&0xffffffff), uint32(uint64(kept)>>32)
	data := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	_, _, errno := call(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return failed(errno, "drop capabilities")
	}
	return nil
}

// confine installs a filter of system calls for all threads.
func confine(filter []unix.SockFilter) error {
	if len(filter) == 0 {
		return nil
	}
	if len(filter) > unix.BPF_MAXINSNS {
		return errors.Errorf("the filter of system calls has %d instructions", len(filter))
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// The result is the ID of a thread that could not be synchronized.
	stuck, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if errno == 0 && stuck != 0 {
		errno = unix.EBUSY
	}
	if errno != 0 {
		return failed(errno, "install the filter of system calls")
	}
	return nil
}
