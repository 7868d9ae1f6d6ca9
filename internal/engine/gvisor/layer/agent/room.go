package agent

import (
	"encoding/binary"
	"path"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
)

// rooms holds the file limits of volumes that are nearly full. It identifies a volume by its file system,
// because privileged programs can mount it at other places in the sandbox.
type rooms struct {
	near atomic.Bool // whether there is any
	mu   sync.Mutex
	of   map[*vfs.Filesystem]*atomic.Int64 // guarded by mu
}

// setRoom sets how many files can be created in volumes.
func (a *agent) setRoom(all []layer.Room) error {
	if err := a.started(); err != nil {
		return err
	}
	k := a.kernel
	for _, r := range all {
		found := false
		for _, fs := range k.VFS().GetFilesystems() {
			if fs.FilesystemType().Name() == gofer.Name {
				options, err := field[gofer.InternalFilesystemOptions](fs.Impl(), "iopts")
				if err != nil {
					return err
				}
				if options.UniqueID.Path == r.Path {
					a.rooms.set(fs, r.Left)
					found = true
				}
			}
			fs.DecRef(k.SupervisorContext())
		}
		if !found {
			return errors.Newf(errors.NotFound, "no volume is mounted at %q", r.Path)
		}
	}
	return nil
}

func (r *rooms) set(fs *vfs.Filesystem, left int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case left == layer.Plenty:
		delete(r.of, fs)
	case r.of[fs] != nil:
		r.of[fs].Store(left)
	default:
		if r.of == nil {
			r.of = map[*vfs.Filesystem]*atomic.Int64{}
		}
		n := new(atomic.Int64)
		n.Store(left)
		r.of[fs] = n
	}
	r.near.Store(len(r.of) > 0)
}

// creation describes how a system call may create a file.
type creation struct {
	dir, name, flags int  // indexes of the arguments: directory descriptor, path, open flags; -1 for none
	how              bool // the flags are in an open_how
	follow           bool // creates the target of a symbolic link
}

var creatingCalls = map[string]creation{
	"open":      {dir: -1, name: 0, flags: 1, follow: true},
	"creat":     {dir: -1, name: 0, flags: -1, follow: true},
	"openat":    {dir: 0, name: 1, flags: 2, follow: true},
	"openat2":   {dir: 0, name: 1, flags: 2, how: true, follow: true},
	"mkdir":     {dir: -1, name: 0, flags: -1},
	"mkdirat":   {dir: 0, name: 1, flags: -1},
	"mknod":     {dir: -1, name: 0, flags: -1},
	"mknodat":   {dir: 0, name: 1, flags: -1},
	"symlink":   {dir: -1, name: 1, flags: -1},
	"symlinkat": {dir: 1, name: 2, flags: -1},
	"link":      {dir: -1, name: 1, flags: -1},
	"linkat":    {dir: 2, name: 3, flags: -1},
}

// watch refuses a system call that would create a file in a full volume.
func (r *rooms) watch(c creation, own kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if !r.near.Load() {
			return own(t, number, args)
		}
		creates, inRoot := c.creates(t, args)
		if !creates {
			return own(t, number, args)
		}
		left := r.wanted(t, c, args, inRoot)
		if left == nil {
			return own(t, number, args)
		}
		if left.Add(-1) < 0 {
			left.Add(1)
			return 0, nil, linuxerr.EDQUOT
		}
		result, control, err := own(t, number, args)
		if err != nil {
			left.Add(1)
		}
		return result, control, err
	}
}

// creates reports whether the flags request a new file, and whether the directory is the root of the path.
func (c creation) creates(t *kernel.Task, args arch.SyscallArguments) (creates, inRoot bool) {
	if c.flags < 0 {
		return true, false
	}
	if !c.how {
		return args[c.flags].Uint()&linux.O_CREAT != 0, false
	}
	var how [24]byte // flags, mode, resolve
	if _, err := t.CopyInBytes(args[c.flags].Pointer(), how[:]); err != nil {
		return false, false // the call itself will fail, too
	}
	return binary.LittleEndian.Uint64(how[:])&linux.O_CREAT != 0,
		binary.LittleEndian.Uint64(how[16:])&linux.RESOLVE_IN_ROOT != 0
}

// mostLinks limits the symbolic links that are followed to a missing file, as in Linux.
const mostLinks = 40

// wanted returns the room of the volume in which the call would create a file. It returns nil if the file
// exists, or is not in a volume.
func (r *rooms) wanted(t *kernel.Task, c creation, args arch.SyscallArguments, inRoot bool) *atomic.Int64 {
	name, err := t.CopyInString(args[c.name].Pointer(), linux.PATH_MAX)
	if err != nil || name == "" {
		return nil
	}
	root := t.FSContext().RootDirectory()
	defer func() { root.DecRef(t) }()
	start := startOf(t, c, args)
	defer func() { start.DecRef(t) }()
	if inRoot {
		root.DecRef(t)
		root = start
		root.IncRef()
	}
	at := func(from vfs.VirtualDentry, name string, follow bool) *vfs.PathOperation {
		p := fspath.Parse(name)
		if p.Absolute {
			from = root
		}
		return &vfs.PathOperation{Root: root, Start: from, Path: p, FollowFinalSymlink: follow}
	}
	files, creds := t.Kernel().VFS(), t.Credentials()
	for range mostLinks {
		if vd, err := files.GetDentryAt(t, creds, at(start, name, c.follow), &vfs.GetDentryOptions{}); err == nil {
			vd.DecRef(t)
			return nil
		}
		dir, base := path.Split(path.Clean(name))
		if dir == "" {
			dir = "."
		}
		parent, err := files.GetDentryAt(t, creds, at(start, dir, true), &vfs.GetDentryOptions{})
		if err != nil {
			return nil // the call itself will fail, too
		}
		start.DecRef(t)
		start = parent
		target, err := "", error(linuxerr.EINVAL)
		if c.follow {
			target, err = files.ReadlinkAt(t, creds, at(start, base, false))
		}
		if err != nil {
			return r.room(start.Mount().Filesystem())
		}
		name = target
	}
	return nil
}

// startOf returns the start of a relative path. The caller must drop the reference.
func startOf(t *kernel.Task, c creation, args arch.SyscallArguments) vfs.VirtualDentry {
	if c.dir < 0 || args[c.dir].Int() == linux.AT_FDCWD {
		return t.FSContext().WorkingDirectory()
	}
	file := t.GetFile(args[c.dir].Int())
	if file == nil {
		// The call fails, unless its path is absolute, which needs no start.
		return t.FSContext().WorkingDirectory()
	}
	defer file.DecRef(t)
	vd := file.VirtualDentry()
	vd.IncRef()
	return vd
}

func (r *rooms) room(fs *vfs.Filesystem) *atomic.Int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[fs]
}
