package userns

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Map returns the map of a user namespace whose users are the range from first.
func Map(first int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: Size}}
}

// Namespace returns a user namespace whose users are the range from first. It contains no process. program is any
// executable file: a process of it makes the namespace, and ends before its first instruction.
func Namespace(first int, program string) (_ *os.File, err error) {
	f, err := os.Open(program)
	if err != nil {
		return nil, errors.Wrapf(err, "open a program")
	}
	defer f.Close()
	runtime.LockOSThread() // which traces the process: it stops before the first instruction
	defer runtime.UnlockOSThread()
	// By its descriptor, because users of the range may not enter the program's directory.
	p, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), []string{"harvest-users"}, &os.ProcAttr{
		Env: []string{}, Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: Map(first),
			GidMappings: Map(first), Ptrace: true, Pdeathsig: unix.SIGKILL}})
	if err != nil {
		err = errors.Explainf(err, errors.Unsupported, "the server cannot make user namespaces for sandboxes")
		return nil, errors.Remedy(err, "allow them: user.max_user_namespaces above 0, CAP_SETUID, "+
			"CAP_SETGID and CAP_SETFCAP, and program files that all users may read and execute")
	}
	defer func() {
		_ = p.Kill()
		_, _ = p.Wait()
	}()
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	return namespace, errors.Wrapf(err, "open a user namespace")
}

// Mount returns a detached mount of the directory. In it, users see files of the host's user n as those of their
// namespace's user n, and files that they create belong to that user on the host. Without a namespace, the mount shows
// the host's owners.
func Mount(dir string, namespace *os.File) (*os.File, error) {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, flags)
	if err != nil {
		return nil, explain(err, dir, "mount a directory")
	}
	f := os.NewFile(uintptr(fd), dir)
	if namespace == nil {
		return f, nil
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd())})
	if err != nil {
		return nil, explain(errors.Join(err, f.Close()), dir, "map owners")
	}
	return f, nil
}

func explain(err error, dir, what string) error {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		err = errors.Explainf(err, errors.Unsupported, "the file system of %s cannot map the owners of files", dir)
		return errors.Remedy(err, "use Linux 5.12 or later, with the data directory on ext4, XFS or Btrfs")
	case errors.Is(err, unix.EPERM):
		err = errors.Explainf(err, errors.Unsupported, "the server may not map the owners of files in %s", dir)
		return errors.Remedy(err, "run it with CAP_SYS_ADMIN")
	}
	return errors.Wrapf(err, "%s %s", what, dir)
}

// Check reports whether sandboxes with gVisor's program can have users of their own, and files in dir.
// Unsupported: they cannot.
func Check(dir, program string) error {
	first, err := machine.free()
	if err != nil {
		return err
	}
	namespace, err := Namespace(first, program)
	if err != nil {
		return err
	}
	defer namespace.Close()
	mount, err := Mount(dir, namespace)
	if err != nil {
		return err
	}
	return errors.Wrapf(mount.Close(), "unmount")
}
