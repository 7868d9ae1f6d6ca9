package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/host"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
)

// keep prepares the processes of a container for a checkpoint. When gVisor restores one, it ends processes that were
// started by its exec, and their descendants, because the caller that waited for them no longer exists, nor do its open
// files of the host. In Harvest, that caller is the keeper, which waits again and provides such files. So keep makes
// the processes children of the container's first one, as if they had been started inside, and gives their files the
// names under which the keeper provides others. No process in the sandbox may start or end until keep returns. It
// writes the PIDs in the container to file.
func (a *agent) keep(r layer.Request, file io.Writer) error {
	init, err := a.first(r.Container)
	if err != nil {
		return err
	}
	if err := a.terminals.releaseAll(); err != nil {
		return err
	}
	k := a.kernel
	root := k.RootPIDNamespace()
	name := k.ContainerName(r.Keep.Root)
	for _, tg := range root.ThreadGroups() {
		leader := tg.Leader()
		if leader == nil || leader.ContainerID() != r.Container || tg == init.ThreadGroup() ||
			leaves(tg, root, r.Keep.Leave) {
			continue
		}
		for _, t := range k.TaskSet().Root.Tasks() {
			if t.ThreadGroup() != tg {
				continue
			}
			t.Origin = kernel.OriginUnknown
			if t.Parent() == nil {
				if err := adopt(init, t); err != nil {
					return err
				}
			}
			if err := keepFiles(t, name, r.Keep.Files); err != nil {
				return err
			}
		}
	}
	inside := make([]int32, len(r.Keep.Commands))
	for i, pid := range r.Keep.Commands {
		if tg := root.ThreadGroupWithID(kernel.ThreadID(pid)); tg != nil {
			inside[i] = int32(init.PIDNamespace().IDOfThreadGroup(tg))
		}
	}
	return errors.Wrapf(json.NewEncoder(file).Encode(inside), "report the ids of processes")
}

// leaves reports whether a process or one of its ancestors is among those that are not preserved.
func leaves(tg *kernel.ThreadGroup, root *kernel.PIDNamespace, pids []int32) bool {
	for {
		if slices.Contains(pids, int32(root.IDOfThreadGroup(tg))) {
			return true
		}
		parent := tg.Leader().Parent()
		if parent == nil {
			return false
		}
		tg = parent.ThreadGroup()
	}
}

// adopt makes a task without a parent a child of parent.
func adopt(parent, child *kernel.Task) error {
	up, err := field[*kernel.Task](child, "parent")
	if err != nil {
		return err
	}
	children, err := field[map[*kernel.Task]struct{}](parent, "children")
	if err != nil {
		return err
	}
	*up = parent
	(*children)[child] = struct{}{}
	return nil
}

// keepFiles names a task's open files of the host.
func keepFiles(t *kernel.Task, container string, files []layer.KeptFile) (err error) {
	ctx := t.Kernel().SupervisorContext()
	t.WithMuLocked(func(t *kernel.Task) {
		if t.FDTable() == nil { // the task is exiting
			return
		}
		t.FDTable().ForEach(ctx, func(_ int32, file *vfs.FileDescription, _ kernel.FDFlags) bool {
			dentry, ok := file.Dentry().Impl().(*kernfs.Dentry)
			if !ok {
				return true
			}
			inode := dentry.Inode()
			if reflect.TypeOf(inode).String() == hostInode {
				err = keepFile(inode, file.IsWritable(), container, files)
			}
			return err == nil
		})
	})
	return err
}

// hostInode is gVisor's type for an open file of the host.
const hostInode = "*host.inode"

// keepFile gives a file the keeper's name for it. Pipes that are unknown to the keeper belong to ended
// commands.
func keepFile(inode kernfs.Inode, writable bool, container string, files []layer.KeptFile) error {
	fd, err := field[int](inode, "hostFD")
	if err != nil {
		return err
	}
	key, err := field[checkpoint.ResourceID](inode, "restoreKey")
	if err != nil {
		return err
	}
	restorable, err := field[bool](inode, "restorable")
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(*fd, &st); err != nil {
		return errors.Wrapf(err, "look at a file of the host")
	}
	number := layer.EmptyFile
	i := slices.IndexFunc(files, func(f layer.KeptFile) bool { return f.Device == st.Dev && f.Inode == st.Ino })
	switch {
	case i >= 0:
		number = files[i].Number
	case st.Mode&unix.S_IFMT != unix.S_IFIFO:
		return errors.Newf(errors.Conflict,
			"a program in the sandbox has a terminal or a connection that came from outside")
	case writable:
		number = layer.SinkFile
	}
	*key, *restorable = host.MakeResourceID(container, number), true
	return nil
}

// field returns an unexported field of gVisor's struct that of points to. The version of gVisor is pinned.
// Tests detect a change.
func field[T any](of any, name string) (*T, error) {
	v := reflect.ValueOf(of).Elem().FieldByName(name)
	if !v.IsValid() || v.Type() != reflect.TypeFor[T]() {
		return nil, errors.Errorf("gVisor's %T has no field %s of the type %s", of, name,
			fmt.Sprint(reflect.TypeFor[T]()))
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr())), nil
}
