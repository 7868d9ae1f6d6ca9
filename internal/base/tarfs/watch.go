//go:build linux

package tarfs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// maxWatched is the most directories of one watch.
const maxWatched = 8192

// maxKnown is the most names that one watch remembers, of about 100 bytes each.
const maxKnown = 500_000

// watched are the reported inotify events. They include writes to a file that stays open.
const watched = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// watcher reports changes below a directory. It does not see changes made outside this kernel. A sandbox has
// its own kernel, so the changes of other sandboxes on a shared volume are invisible.
type watcher struct {
	tree      Tree
	top       string
	recursive bool
	f         *os.File // inotify descriptor
	dirs      map[int32]string
	out       *json.Encoder
	last      Change
	names     known            // in the watched directories: a move to one of them replaces a file
	found     map[string]int64 // created files reported early, and the offset at which their own events have arrived
	read      int64            // bytes of events read: the offset
	rest      int64            // of these, the bytes after the current event
	temporary uint32           // cookie of the last move away from a temporary name
}

func watch(ctx context.Context, tree Tree, name string, recursive bool, out *json.Encoder) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return errors.Explainf(err, errors.Unsupported, "files cannot be watched here")
	}
	w := &watcher{tree: tree, top: name, recursive: recursive, f: os.NewFile(uintptr(fd), "inotify"),
		dirs: map[int32]string{}, out: out,
		names: known{max: maxKnown}, found: map[string]int64{}}
	defer w.f.Close()
	defer context.AfterFunc(ctx, func() { _ = w.f.Close() })()
	if err := w.add(name, true, false); err != nil {
		return err
	}
	if err := out.Encode(Change{Kind: Ready}); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := w.f.Read(buf)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return errors.Wrapf(err, "read what changed")
		}
		if done, err := w.tell(buf[:n]); done || err != nil {
			return err
		}
		maps.DeleteFunc(w.found, func(_ string, until int64) bool { return until <= w.read })
	}
}

// host returns the path of name for the kernel's watch.
func (w *watcher) host(name string) string {
	if root, ok := w.tree.(*os.Root); ok {
		return filepath.Join(root.Name(), name)
	}
	return name
}

// add watches name and, in a recursive watch, its subdirectories. A missing directory is ignored, unless it is
// the top. With report, its content is reported as created, because it may be older than the watch.
func (w *watcher) add(name string, top, report bool) error {
	info, err := w.tree.Lstat(name)
	if err == nil && top {
		info, err = w.tree.Stat(name)
	}
	if err != nil {
		if top {
			return Explain(err, name)
		}
		return nil
	}
	if !info.IsDir() && !top {
		return nil
	}
	if len(w.dirs) >= maxWatched {
		return errors.Remedy(errors.Newf(errors.Exhausted, "there are more than %d directories to watch", maxWatched),
			"watch one further below, or not recursively")
	}
	id, err := unix.InotifyAddWatch(int(w.f.Fd()), w.host(name), watched)
	if err != nil {
		if !top && errors.IsNotExist(err) {
			return nil
		}
		return errors.Explainf(err, errors.Exhausted, "%.200q cannot be watched", name)
	}
	w.dirs[int32(id)] = name
	if !info.IsDir() {
		return nil
	}
	dir, err := w.tree.Open(name)
	if err != nil {
		return nil // an unreadable directory has no visible changes
	}
	defer dir.Close()
	entries, _ := dir.ReadDir(-1) // as many as can be read
	pending := w.pending()
	for _, e := range entries {
		full := path.Join(name, e.Name())
		if Temporary(e.Name()) {
			continue
		}
		w.names.add(full)
		if report {
			if pending > w.read-w.rest {
				w.found[full] = pending
			}
			if err := w.say(Change{Kind: Created, Path: full}); err != nil {
				return err
			}
		}
		if w.recursive && e.Type() == fs.ModeDir {
			if err := w.add(full, false, report); err != nil {
				return err
			}
		}
	}
	return nil
}

// pending returns the offset after all events that the kernel has queued so far (TIOCINQ is FIONREAD).
func (w *watcher) pending() int64 {
	n, err := unix.IoctlGetInt(int(w.f.Fd()), unix.TIOCINQ)
	if err != nil {
		n = 0 // a file in a new directory may then be reported twice
	}
	return w.read + int64(n)
}

// tell reports the inotify events in buf. It is done when the top is gone.
func (w *watcher) tell(buf []byte) (done bool, err error) {
	w.read += int64(len(buf))
	for len(buf) >= unix.SizeofInotifyEvent {
		id, mask := int32(binary.NativeEndian.Uint32(buf)), binary.NativeEndian.Uint32(buf[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[12:]))
		if end > len(buf) {
			return false, errors.Errorf("half an event of inotify")
		}
		cookie := binary.NativeEndian.Uint32(buf[8:])
		name := string(bytes.TrimRight(buf[unix.SizeofInotifyEvent:end], "\x00"))
		buf = buf[end:]
		w.rest = int64(len(buf))
		if mask&unix.IN_Q_OVERFLOW != 0 {
			if err := w.say(Change{Kind: Lagged}); err != nil {
				return false, err
			}
			continue
		}
		dir, known := w.dirs[id]
		if !known {
			continue
		}
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0 {
			if dir == w.top {
				return true, w.say(Change{Kind: Removed, Path: dir})
			}
			if mask&unix.IN_IGNORED != 0 {
				delete(w.dirs, id)
			}
			continue
		}
		full := dir
		if name != "" {
			full = path.Join(dir, name)
		}
		if err := w.changed(full, mask, cookie); err != nil {
			return false, err
		}
	}
	return false, nil
}

func (w *watcher) changed(name string, mask, cookie uint32) error {
	c := Change{Kind: Changed, Path: name, Cookie: cookie}
	if Temporary(path.Base(name)) {
		if mask&unix.IN_MOVED_FROM != 0 {
			w.temporary = cookie
		}
		return nil
	}
	isDir := mask&unix.IN_ISDIR != 0
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		if w.wasFound(name) {
			return nil
		}
		c.Kind = Created
		if mask&unix.IN_MOVED_TO != 0 && w.names.has(name) { // an editor's way to save a file
			c.Kind = Changed
		}
		w.names.add(name)
		if cookie != 0 && cookie == w.temporary {
			c.Cookie = 0 // its old name was never reported
		}
		if err := w.say(c); err != nil || !isDir || !w.recursive {
			return err
		}
		return w.add(name, false, true)
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		c.Kind = Removed
		delete(w.found, name)
		w.names.remove(name)
		if isDir {
			w.leave(name)
		}
	case c == w.last: // a program that writes in pieces counts as one change
		return nil
	}
	return w.say(c)
}

// wasFound reports whether name was reported as created when its directory was read, and the current event is
// older than that.
func (w *watcher) wasFound(name string) bool {
	until, ok := w.found[name]
	delete(w.found, name)
	return ok && w.read-w.rest <= until
}

// leave forgets a directory that was removed or moved away, with those below it. If it moved within the tree,
// it is found under its new name.
func (w *watcher) leave(name string) {
	for id, dir := range w.dirs {
		if dir == name || strings.HasPrefix(dir, name+"/") {
			_, _ = unix.InotifyRmWatch(int(w.f.Fd()), uint32(id)) // fails if it is gone
			delete(w.dirs, id)
			w.names.forget(dir)
		}
	}
	w.names.forget(name)
}

// known is a set of paths, by directory, with at most max elements.
type known struct {
	max, count int
	dirs       map[string]map[string]struct{}
}

func (k *known) has(name string) bool {
	_, ok := k.dirs[path.Dir(name)][path.Base(name)]
	return ok
}

func (k *known) add(name string) {
	if k.count >= k.max || k.has(name) {
		return
	}
	dir := path.Dir(name)
	if k.dirs == nil {
		k.dirs = map[string]map[string]struct{}{}
	}
	if k.dirs[dir] == nil {
		k.dirs[dir] = map[string]struct{}{}
	}
	k.dirs[dir][path.Base(name)] = struct{}{}
	k.count++
}

func (k *known) remove(name string) {
	if k.has(name) {
		delete(k.dirs[path.Dir(name)], path.Base(name))
		k.count--
	}
}

// forget removes the names in a directory.
func (k *known) forget(dir string) {
	k.count -= len(k.dirs[dir])
	delete(k.dirs, dir)
}

// TemporaryName returns a name for a file that is being written. A watch does not report it.
func TemporaryName() string { return temporary + rand.Text() }

// Temporary reports whether name is from TemporaryName or package internal/s3/volsync.
func Temporary(name string) bool {
	rest, ok := strings.CutPrefix(name, temporary)
	return ok && len(strings.TrimPrefix(rest, "sync-")) == len(rand.Text())
}

func (w *watcher) say(c Change) error {
	w.last = c
	return w.out.Encode(c)
}
