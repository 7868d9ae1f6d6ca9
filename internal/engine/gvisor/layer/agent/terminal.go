package agent

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/devpts"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/host"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/RelevanceAI/harvest/client/errors"
)

// terminals names the terminals of commands. Such a terminal is the host's, and gVisor has no path for it: the
// links in /proc/PID/fd read host:[N]. When a program reads such a link, the terminal gets a number in
// /dev/pts, is mounted there, and the program reads that path. See
// docs/decisions/042-terminals-of-the-host.md.
type terminals struct {
	agent *agent

	mu      sync.Mutex
	all     []*terminal // guarded by mu
	waiting bool        // guarded by mu; a call of releaseLater is scheduled
}

// terminal is a terminal with a name.
type terminal struct {
	link   string // gVisor's text for it, such as host:[7]
	path   string // such as /dev/pts/0
	dentry *vfs.Dentry
	number *vfs.FileDescription // the master that reserves the number
	ns     *vfs.MountNamespace
}

// linkStart is the start of gVisor's texts for files of the host.
const linkStart = "host:["

// longestLink is longer than all of these texts.
const longestLink = 64

// releaseTime is the interval at which the names of unused terminals are released.
const releaseTime = 5 * time.Second

// readingCalls are the system calls that read a link, with the indexes of the buffer among their arguments.
var readingCalls = map[string]int{"readlink": 1, "readlinkat": 2}

// watch replaces gVisor's text for a terminal by a path in the result of a system call.
func (ts *terminals) watch(buffer int, own kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		n, control, err := own(t, number, args)
		if err != nil || n <= uintptr(len(linkStart)) || n > longestLink {
			return n, control, err
		}
		text := make([]byte, n)
		if _, err := t.CopyInBytes(args[buffer].Pointer(), text); err != nil {
			return n, control, nil
		}
		if !strings.HasPrefix(string(text), linkStart) {
			return n, control, nil
		}
		path, err := ts.pathOf(t, string(text))
		if err != nil {
			log.Warningf("Name the terminal %s: %v", text, err)
		}
		if path == "" {
			return n, control, nil
		}
		path = path[:min(len(path), int(args[buffer+1].SizeT()))]
		if _, err := t.CopyOutBytes(args[buffer].Pointer(), []byte(path)); err != nil {
			return 0, control, err
		}
		return uintptr(len(path)), control, nil
	}
}

// pathOf returns the path of the terminal with this link. It is "" if neither t nor an earlier reader has it open.
func (ts *terminals) pathOf(t *kernel.Task, link string) (string, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, known := range ts.all {
		if known.link == link {
			return known.path, nil
		}
	}
	file := openTerminal(t, link)
	if file == nil {
		return "", nil
	}
	defer file.DecRef(t)
	ts.release()
	ts.wait()
	return ts.add(t.ContainerID(), link, file)
}

// openTerminal returns t's open file with this link if it is a terminal. The caller must drop the reference.
func openTerminal(t *kernel.Task, link string) *vfs.FileDescription {
	var all []*vfs.FileDescription
	t.FDTable().ForEach(t, func(_ int32, file *vfs.FileDescription, _ kernel.FDFlags) bool {
		if _, ok := file.Impl().(*host.TTYFileDescription); ok {
			file.IncRef()
			all = append(all, file)
		}
		return true
	})
	root := t.FSContext().RootDirectory()
	defer root.DecRef(t)
	var found *vfs.FileDescription
	for _, file := range all {
		text, err := t.Kernel().VFS().PathnameWithDeleted(t, root, file.VirtualDentry())
		if found == nil && err == nil && text == link {
			found = file
			continue
		}
		file.DecRef(t)
	}
	return found
}

// add mounts a terminal over a new number in the container's /dev/pts. ts.mu is held.
func (ts *terminals) add(container, link string, file *vfs.FileDescription) (string, error) {
	first, err := ts.agent.first(container)
	if err != nil {
		return "", err
	}
	ns := first.MountNamespace()
	if ns == nil || !ns.TryIncRef() {
		return "", errors.Newf(errors.Conflict, "the sandbox has ended")
	}
	one := &terminal{link: link, dentry: file.Dentry(), ns: ns}
	err = ts.mount(one, file.Mount().Filesystem())
	if err != nil {
		ts.drop(one)
		return "", err
	}
	ts.all = append(ts.all, one)
	return one.path, nil
}

// mount reserves a number and mounts the terminal, which belongs to the file system from.
func (ts *terminals) mount(one *terminal, from *vfs.Filesystem) error {
	files, ctx, creds := ts.agent.kernel.VFS(), ts.within(one.ns), ts.creds()
	root := one.ns.Root(ctx)
	defer root.DecRef(ctx)
	at := func(path string) *vfs.PathOperation {
		return &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(path)}
	}
	master, err := files.OpenAt(ctx, creds, at("/dev/pts/ptmx"),
		&vfs.OpenOptions{Flags: linux.O_RDWR | linux.O_NOCTTY})
	if err != nil {
		return errors.Wrapf(err, "open /dev/pts/ptmx")
	}
	one.number = master
	reserved, err := field[*devpts.Terminal](master.Impl(), "t")
	if err != nil {
		return err
	}
	number, err := field[uint32](*reserved, "n")
	if err != nil {
		return err
	}
	one.path = "/dev/pts/" + strconv.FormatUint(uint64(*number), 10)
	fs := &vfs.Filesystem{}
	fs.Init(files, terminalType{}, terminalFiles{from.Impl()})
	defer fs.DecRef(ctx)
	mount := files.NewDisconnectedMount(fs, one.dentry,
		&vfs.MountOptions{Flags: vfs.MountFlags{NoSUID: true, NoExec: true}})
	defer mount.DecRef(ctx)
	return errors.Wrapf(files.ConnectMountAt(ctx, creds, mount, at(one.path)), "mount %s", one.path)
}

// drop releases a terminal's name.
func (ts *terminals) drop(one *terminal) {
	ctx := ts.within(one.ns)
	if one.path != "" {
		root := one.ns.Root(ctx)
		_ = ts.agent.kernel.VFS().UmountAt(ctx, ts.creds(), &vfs.PathOperation{Root: root, Start: root,
			Path: fspath.Parse(one.path)}, &vfs.UmountOptions{Flags: linux.MNT_DETACH})
		root.DecRef(ctx)
	}
	if one.number != nil {
		one.number.DecRef(ctx)
	}
	one.ns.DecRef(ctx)
}

// release drops the names of terminals that no program has open. ts.mu is held.
func (ts *terminals) release() {
	ts.all = slices.DeleteFunc(ts.all, func(one *terminal) bool {
		refs, err := field[atomicbitops.Int64](one.dentry.Impl(), "refs")
		if err != nil || refs.Load() > 1 { // one is the mount's
			return false
		}
		ts.drop(one)
		return true
	})
}

// wait makes releaseLater run after releaseTime. ts.mu is held.
func (ts *terminals) wait() {
	if !ts.waiting {
		ts.waiting = true
		time.AfterFunc(releaseTime, ts.releaseLater)
	}
}

// releaseLater calls release at intervals, until no terminal has a name.
func (ts *terminals) releaseLater() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.waiting = false
	if ts.release(); len(ts.all) > 0 {
		ts.wait()
	}
}

// releaseAll is for checkpoints, which cannot contain the mounts. Conflict if a terminal is in use.
func (ts *terminals) releaseAll() error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.release(); len(ts.all) > 0 {
		return errors.Newf(errors.Conflict, "a program in the sandbox has a terminal")
	}
	return nil
}

func (ts *terminals) creds() *auth.Credentials {
	return auth.NewRootCredentials(ts.agent.kernel.RootUserNamespace())
}

// within returns the context of gVisor itself in a mount namespace.
func (ts *terminals) within(ns *vfs.MountNamespace) context.Context {
	return inNamespace{ts.agent.kernel.SupervisorContext(), ns}
}

type inNamespace struct {
	context.Context
	ns *vfs.MountNamespace
}

// Value implements context.Context.
func (c inNamespace) Value(key any) any {
	if key == vfs.CtxMountNamespace {
		c.ns.IncRef()
		return c.ns
	}
	return c.Context.Value(key)
}

// terminalFiles is the file system of a mounted terminal: gVisor's for files of the host, except that the
// terminal has the path at which it is mounted.
type terminalFiles struct{ vfs.FilesystemImpl }

// Release implements vfs.FilesystemImpl. gVisor's own file system stays.
func (terminalFiles) Release(context.Context) {}

// PrependPath implements vfs.FilesystemImpl. The terminal is the root of the mount.
func (terminalFiles) PrependPath(context.Context, vfs.VirtualDentry, vfs.VirtualDentry, *fspath.Builder) error {
	return nil
}

// StatFSAt implements vfs.FilesystemImpl. gVisor's own has no such call, and df would fail.
func (f terminalFiles) StatFSAt(ctx context.Context, rp *vfs.ResolvingPath) (linux.Statfs, error) {
	if !rp.Done() {
		return f.FilesystemImpl.StatFSAt(ctx, rp)
	}
	return vfs.GenericStatFS(linux.DEVPTS_SUPER_MAGIC), nil
}

// terminalType is the type of terminalFiles in /proc/mounts.
type terminalType struct{}

// GetFilesystem implements vfs.FilesystemType. Programs cannot mount one.
func (terminalType) GetFilesystem(context.Context, *vfs.VirtualFilesystem, *auth.Credentials, string,
	vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	return nil, nil, linuxerr.ENODEV
}

// Name implements vfs.FilesystemType.
func (terminalType) Name() string { return devpts.Name }

// Release implements vfs.FilesystemType.
func (terminalType) Release(context.Context) {}
