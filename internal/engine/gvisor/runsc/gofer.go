package runsc

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/RelevanceAI/harvest/client/errors"
)

// mountPatience limits how long the file server examines the directories that it serves.
const mountPatience = 30 * time.Second

// FileServer is gVisor's gofer: a process that opens files of the host for a container that mounts directories
// of the host. It ends with the container.
type FileServer struct {
	Pid    int
	Files  []*os.File    // the sandbox's ends of the connections, one per served mount
	Mounts []specs.Mount // the spec's mounts, as resolved by the file server
	wait   func()
	kill   func()
}

// ServeFiles starts the file server of a container. bundle is the directory with the spec as config.json. The spec has
// a user namespace with mappings. volumes are the mounts whose entries in the spec have mappings, too, by mount point.
// They are detached. The caller closes the files.
func (s *Sandbox) ServeFiles(id, bundle string, spec *specs.Spec, confs []MountConf,
	volumes map[string]*os.File) (f *FileServer, err error) {
	f = &FileServer{}
	defer func() {
		if err != nil {
			f.Destroy()
			f.CloseFiles()
		}
	}()
	cmd := s.command("runsc-gofer")
	cmd.Env = []string{}
	isolate(cmd, spec)
	var d donations
	defer d.close()
	d.open("log-fd", s.opts.Config.LogFilename, os.O_CREATE|os.O_WRONLY|os.O_APPEND)
	d.transfer(cmd)
	cmd.Args = append(cmd.Args, "gofer", "--bundle", bundle, "--gofer-mount-confs="+joined(confs))
	d.open("spec-fd", filepath.Join(bundle, "config.json"), os.O_RDONLY)
	mounts, theirs, err := os.Pipe()
	if err != nil {
		return f, errors.Wrapf(err, "pipe")
	}
	defer mounts.Close()
	d.own("mounts-fd", theirs)
	ours, rpc, err := socketPair("gofer rpc")
	if err != nil {
		return f, err
	}
	defer ours.Close()
	d.own("rpc-fd", rpc)
	for _, c := range confs {
		if c.Lower != Gofer {
			continue
		}
		ours, theirs, err := socketPair("gofer")
		if err != nil {
			return f, err
		}
		f.Files = append(f.Files, ours)
		d.own("io-fds", theirs)
	}
	d.transfer(cmd)
	if d.err != nil {
		return f, d.err
	}
	cmd.Args = append(cmd.Args, id)
	if err := cmd.Start(); err != nil {
		return f, errors.Wrapf(err, "start gVisor's file server")
	}
	d.close() // so that the pipe ends with the process
	f.Pid, f.kill = cmd.Process.Pid, func() { _ = cmd.Process.Kill() }
	f.wait = sync.OnceFunc(func() { _ = cmd.Wait() })
	if err := openMountsFor(f.Pid, ours, volumes); err != nil {
		return f, err
	}
	_ = mounts.SetReadDeadline(time.Now().Add(mountPatience)) // pipes support deadlines
	b, err := io.ReadAll(mounts)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errors.Explainf(err, errors.Unavailable, "a volume does not answer")
		return f, errors.Remedy(err, "check the file system of the volume, and try again")
	}
	if err == nil {
		err = json.Unmarshal(b, &f.Mounts)
	}
	return f, errors.Wrapf(err, "read the mounts from gVisor's file server")
}

// CloseFiles closes this process's copies of the files.
func (f *FileServer) CloseFiles() {
	for _, file := range f.Files {
		_ = file.Close()
	}
	f.Files = nil
}

// Destroy ends the process. It is idempotent.
func (f *FileServer) Destroy() {
	if f.kill != nil {
		f.kill()
		f.wait()
	}
}

func socketPair(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "socket pair")
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// openMountsFor serves the file server with this PID until the file server closes its end of the connection.
func openMountsFor(pid int, conn *os.File, volumes map[string]*os.File) error {
	fd, err := unix.FcntlInt(conn.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return errors.Wrapf(err, "duplicate a socket")
	}
	socket, err := unet.NewSocket(fd)
	if err != nil {
		return errors.Join(errors.Wrapf(err, "gofer rpc"), unix.Close(fd))
	}
	rpc := urpc.NewServer()
	rpc.Register(&goferToHostRPC{pid: pid, volumes: volumes})
	rpc.StartHandling(socket)
	return nil
}

// goferToHostRPC holds the methods that the file server may call. gVisor requires this name.
type goferToHostRPC struct {
	pid     int
	volumes map[string]*os.File
}

type openMountArgs struct {
	Mount *specs.Mount
	Flags uint32
}

type openMountResult struct{ urpc.FilePayload }

// OpenMount opens a mount's source as it is visible to the file server, whose user may not open it. A mount with mapped
// owners is open already, and the file server attaches it.
func (g *goferToHostRPC) OpenMount(args *openMountArgs, result *openMountResult) error {
	if len(args.Mount.UIDMappings) > 0 {
		f, ok := g.volumes[args.Mount.Destination]
		if !ok {
			return errors.Errorf("no mount for %s", args.Mount.Destination)
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) // the result's files are closed when they are sent
		if err != nil {
			return errors.Wrapf(err, "duplicate a mount")
		}
		result.Files = []*os.File{os.NewFile(uintptr(fd), args.Mount.Destination)}
		return nil
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		done <- g.open(args.Mount.Source, result)
	}()
	return <-done
}

// open opens source in the file server's mount namespace. It changes the namespace of the thread.
func (g *goferToHostRPC) open(source string, result *openMountResult) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return errors.Wrapf(err, "unshare the working directory")
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", g.pid))
	if err != nil {
		return errors.Wrapf(err, "open the file server's mount namespace")
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return errors.Wrapf(err, "join the file server's mount namespace")
	}
	f, err := os.OpenFile(source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Wrapf(err, "open a mount's source")
	}
	result.Files = []*os.File{f}
	return nil
}
