package agent

import (
	"io"
	"path"
	"runtime"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/abi"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/internal/engine/ocilayer"
)

// agent answers requests within gVisor's process.
type agent struct {
	kernel    *kernel.Kernel // valid once ready is closed
	ready     chan struct{}
	rooms     rooms
	terminals terminals
}

// watchedCalls are system calls that every sandbox's init program makes, and that are rare in other programs.
// It makes the first one when it starts, and the second one when it continues after a checkpoint.
var watchedCalls = []string{"capset", "pause"}

// readyTime limits how long a request waits for the first init program, which has just been started.
const readyTime = 10 * time.Second

// watch obtains the kernel when the first program makes one of watchedCalls. gVisor offers no other way.
func (a *agent) watch() {
	host := map[string]arch.Arch{"amd64": arch.AMD64, "arm64": arch.ARM64}[runtime.GOARCH]
	table, ok := kernel.LookupSyscallTable(abi.Linux, host)
	if !ok {
		return
	}
	var once sync.Once
	crashes := watchCrashes(a)
	for number, call := range table.Table {
		own := call.Fn
		if _, sends := sendingCalls[call.Name]; sends {
			call.Fn = crashes.watchSender(call.Name, own)
			table.Table[number] = call
		}
		if creates, ok := creatingCalls[call.Name]; ok {
			call.Fn = a.rooms.watch(creates, own)
			table.Table[number] = call
		}
		if buffer, reads := readingCalls[call.Name]; reads {
			call.Fn = a.terminals.watch(buffer, own)
			table.Table[number] = call
		}
		if call.Name == "ioctl" {
			call.Fn = watchLoopback(own)
			table.Table[number] = call
		}
		if !slices.Contains(watchedCalls, call.Name) {
			continue
		}
		call.Fn = func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr,
			*kernel.SyscallControl, error) {
			once.Do(func() {
				a.kernel = t.Kernel()
				replaceCreator(a.kernel)
				close(a.ready)
			})
			return own(t, number, args)
		}
		table.Table[number] = call
	}
	table.Init() // rebuilds the lookup table
}

func (a *agent) answer(r layer.Request, file io.ReadWriter) error {
	if r.Keep != nil {
		return a.keep(r, file)
	}
	if len(r.Room) > 0 {
		return a.setRoom(r.Room)
	}
	if r.Hostname != "" {
		return a.setHostname(r.Container, r.Hostname)
	}
	v, err := a.open(r.Container)
	if err != nil {
		return err
	}
	defer v.close()
	if r.Apply {
		return apply(v, r.Mounted, file)
	}
	v.k.Pause()
	defer v.k.Unpause()
	return v.write(r.Path, file)
}

// view is a container's root file system without its mounts, with the permissions of root.
type view struct {
	k     *kernel.Kernel
	ctx   context.Context
	creds *auth.Credentials
	root  vfs.VirtualDentry
	mount *vfs.Mount

	dir    string // directory of the file that was opened last
	parent vfs.VirtualDentry
}

// started waits until the kernel is known, for at most readyTime.
func (a *agent) started() error {
	select {
	case <-a.ready:
		return nil
	case <-time.After(readyTime):
		return errors.Errorf("no program has made one of the system calls %v", watchedCalls)
	}
}

// first returns the main task of a container's first process.
func (a *agent) first(container string) (*kernel.Task, error) {
	if err := a.started(); err != nil {
		return nil, err
	}
	for _, tg := range a.kernel.RootPIDNamespace().ThreadGroups() {
		leader := tg.Leader()
		if leader != nil && leader.ContainerID() == container && leader.Parent() == nil &&
			leader.Origin != kernel.OriginExec {
			return leader, nil
		}
	}
	return nil, errors.Newf(errors.Conflict, "the sandbox has ended")
}

// setHostname sets the host name that the first process of a container sees, and all others that share its namespace.
func (a *agent) setHostname(container, hostname string) error {
	first, err := a.first(container)
	if err != nil {
		return err
	}
	uts := first.GetUTSNamespace()
	if uts == nil {
		return errors.Newf(errors.Conflict, "the sandbox has ended")
	}
	ctx := a.kernel.SupervisorContext()
	defer uts.DecRef(ctx)
	uts.SetHostName(ctx, hostname)
	return nil
}

func (a *agent) open(container string) (*view, error) {
	first, err := a.first(container)
	if err != nil {
		return nil, err
	}
	k := a.kernel
	ctx := k.SupervisorContext()
	mntns := first.MountNamespace()
	if mntns == nil || !mntns.TryIncRef() {
		return nil, errors.Newf(errors.Conflict, "the sandbox has ended")
	}
	defer mntns.DecRef(ctx)
	root := mntns.Root(ctx)
	defer root.DecRef(ctx)
	// Reading a file must not change its access time.
	mount := k.VFS().NewDisconnectedMount(root.Mount().Filesystem(), root.Dentry(),
		&vfs.MountOptions{Flags: vfs.MountFlags{NoATime: true}})
	return &view{k: k, ctx: ctx, creds: auth.NewRootCredentials(k.RootUserNamespace()), mount: mount,
		root: vfs.MakeVirtualDentry(mount, root.Dentry())}, nil
}

func (v *view) close() {
	v.leave()
	v.mount.DecRef(v.ctx)
}

// at returns the path operation for a name relative to the root. It does not follow a symbolic link at the end.
func (v *view) at(name string) *vfs.PathOperation {
	return &vfs.PathOperation{Root: v.root, Start: v.root, Path: fspath.Parse(name)}
}

// upper returns the tmpfs that is the container's writable layer. The caller must drop the reference.
func (v *view) upper() (*vfs.Filesystem, error) {
	var found *vfs.Filesystem
	for _, fs := range v.k.VFS().GetFilesystems() {
		if mf := tmpfs.MemoryFileOf(fs); found == nil && mf != nil && mf.ResourceID().Path == "/" {
			found = fs
			continue
		}
		fs.DecRef(v.ctx)
	}
	if found == nil {
		return nil, errors.Errorf("the container has no writable layer")
	}
	return found, nil
}

const statMask = linux.STATX_TYPE | linux.STATX_MODE | linux.STATX_UID | linux.STATX_GID | linux.STATX_MTIME | linux.STATX_SIZE

func (v *view) stat(name string) (linux.Statx, error) {
	return v.k.VFS().StatAt(v.ctx, v.creds, v.at(name), &vfs.StatOptions{Mask: statMask})
}

// resolve returns the name of a directory relative to the root, without symbolic links.
func (v *view) resolve(dir string) (string, error) {
	op := v.at(dir)
	op.FollowFinalSymlink = true
	vd, err := v.k.VFS().GetDentryAt(v.ctx, v.creds, op, &vfs.GetDentryOptions{CheckSearchable: true})
	switch {
	case linuxerr.Equals(linuxerr.ENOENT, err):
		return "", errors.Newf(errors.NotFound, "there is no directory %.200q in the sandbox", dir)
	case linuxerr.Equals(linuxerr.ENOTDIR, err):
		return "", errors.Newf(errors.Invalid, "%.200q in the sandbox is not a directory", dir)
	case err != nil:
		return "", errors.Wrapf(err, "find %s", dir)
	}
	defer vd.DecRef(v.ctx)
	name, err := v.k.VFS().PathnameInFilesystem(v.ctx, vd)
	return path.Clean("/" + name)[1:], errors.Wrapf(err, "find %s", dir)
}

// opened is a file that is looked up once for several operations. gVisor drops looked-up path entries without
// references.
type opened struct {
	v  *view
	vd vfs.VirtualDentry
}

// open looks up a file without following a symbolic link. It keeps the directory open, since the next file is
// usually in the same one.
func (v *view) open(name string) (opened, error) {
	dir, base := path.Split(name)
	if dir != v.dir || !v.parent.Ok() {
		vd, err := v.k.VFS().GetDentryAt(v.ctx, v.creds, v.at(dir), &vfs.GetDentryOptions{})
		if err != nil {
			return opened{}, errors.Wrapf(err, "find %.200q", dir)
		}
		v.leave()
		v.dir, v.parent = dir, vd
	}
	vd, err := v.k.VFS().GetDentryAt(v.ctx, v.creds, &vfs.PathOperation{Root: v.root, Start: v.parent,
		Path: fspath.Parse(base)}, &vfs.GetDentryOptions{})
	return opened{v, vd}, errors.Wrapf(err, "find %.200q", name)
}

// leave releases the directory that open keeps.
func (v *view) leave() {
	if v.parent.Ok() {
		v.parent.DecRef(v.ctx)
		v.parent = vfs.VirtualDentry{}
	}
}

// Close implements ocilayer.File.
func (o opened) Close() { o.vd.DecRef(o.v.ctx) }

func (o opened) path() *vfs.PathOperation { return &vfs.PathOperation{Root: o.v.root, Start: o.vd} }

// Stat implements ocilayer.File.
func (o opened) Stat() (ocilayer.Stat, error) {
	st, err := o.v.k.VFS().StatAt(o.v.ctx, o.v.creds, o.path(), &vfs.StatOptions{Mask: statMask})
	return ocilayer.Stat{Mode: uint32(st.Mode & 0o7777), UID: int(st.UID), GID: int(st.GID),
		Mtime: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec))}, err
}

// Attributes implements ocilayer.File.
func (o opened) Attributes() (map[string]string, error) {
	v := o.v
	names, err := v.k.VFS().ListXattrAt(v.ctx, v.creds, o.path(), 0)
	if linuxerr.Equals(linuxerr.EOPNOTSUPP, err) || len(names) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "list attributes")
	}
	all := make(map[string]string, len(names))
	for _, key := range names {
		if all[key], err = v.k.VFS().GetXattrAt(v.ctx, v.creds, o.path(), &vfs.GetXattrOptions{Name: key}); err != nil {
			return nil, errors.Wrapf(err, "read attribute %.200q", key)
		}
	}
	return all, nil
}
