package tarfs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
)

// maxWatched is how many directories one Watch sees.
const maxWatched = 8192

// watched are the events of inotify that are told; writes to a file that stays open are among them.
const watched = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// watcher tells changes below a directory. Changes that come from elsewhere than this kernel, which in a sandbox is its own, are not
// seen: those that other sandboxes make on a shared volume.
type watcher struct {
	tree      Tree
	top       string
	recursive bool
	f         *os.File // of inotify
	dirs      map[int32]string
	out       *json.Encoder
	last      Change
	found     map[string]bool // reported as created before their own events came
	temporary uint32          // cookie of the last move away from a temporary name
}

func watch(ctx context.Context, tree Tree, name string, recursive bool, out *json.Encoder) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return errors.Explainf(err, errors.Unsupported, "files cannot be watched here")
	}
	w := &watcher{tree: tree, top: name, recursive: recursive, f: os.NewFile(uintptr(fd), "inotify"), dirs: map[int32]string{}, out: out, found: map[string]bool{}}
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
	}
}

// host returns the path on which the kernel can watch name.
func (w *watcher) host(name string) string {
	if root, ok := w.tree.(*os.Root); ok {
		return filepath.Join(root.Name(), name)
	}
	return name
}

// add watches name and, if all below it are to be watched, its directories. Of one that is gone by then, nothing is said, unless it is the
// top. With report, everything in it is reported as created: it was made before the directory was watched.
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
		return errors.Remedy(errors.Newf(errors.Exhausted, "there are more than %d directories to watch", maxWatched), "watch one further below, or not recursively")
	}
	id, err := unix.InotifyAddWatch(int(w.f.Fd()), w.host(name), watched)
	if err != nil {
		if !top && errors.IsNotExist(err) {
			return nil
		}
		return errors.Explainf(err, errors.Exhausted, "%.200q cannot be watched", name)
	}
	w.dirs[int32(id)] = name
	if !w.recursive || !info.IsDir() {
		return nil
	}
	dir, err := w.tree.Open(name)
	if err != nil {
		return nil // what cannot be read has nothing to see
	}
	defer dir.Close()
	entries, _ := dir.ReadDir(-1) // as much of it as can be read
	for _, e := range entries {
		full := path.Join(name, e.Name())
		if report && !Temporary(e.Name()) {
			w.found[full] = true
			if err := w.say(Change{Kind: Created, Path: full}); err != nil {
				return err
			}
		}
		if e.Type() == fs.ModeDir {
			if err := w.add(full, false, report); err != nil {
				return err
			}
		}
	}
	return nil
}

// tell tells what inotify says in buf. It is done when the top is gone.
func (w *watcher) tell(buf []byte) (done bool, err error) {
	for len(buf) >= unix.SizeofInotifyEvent {
		id, mask := int32(binary.NativeEndian.Uint32(buf)), binary.NativeEndian.Uint32(buf[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[12:]))
		if end > len(buf) {
			return false, errors.Errorf("half an event of inotify")
		}
		cookie := binary.NativeEndian.Uint32(buf[8:])
		name := string(bytes.TrimRight(buf[unix.SizeofInotifyEvent:end], "\x00"))
		buf = buf[end:]
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
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		c.Kind = Created
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		c.Kind = Removed
	}
	if Temporary(path.Base(name)) {
		if mask&unix.IN_MOVED_FROM != 0 {
			w.temporary = cookie
		}
		return nil
	}
	switch {
	case c.Kind == Removed:
		delete(w.found, name)
	case c.Kind == Created && w.found[name]: // it was reported when its directory was
		delete(w.found, name)
		return nil
	case c.Kind == Created && cookie != 0 && cookie == w.temporary:
		c.Cookie = 0 // its other name was never reported
	}
	if c.Kind == Created && w.recursive && mask&unix.IN_ISDIR != 0 {
		if err := w.say(c); err != nil {
			return err
		}
		return w.add(name, false, true)
	}
	if c == w.last && c.Kind == Changed { // a program that writes a file in pieces has changed it once
		return nil
	}
	return w.say(c)
}

// temporary begins the names under which files are written before they have their own.
const temporary = ".harvest-"

// TemporaryName returns a name under which a file is written, which a watch does not report.
func TemporaryName() string { return temporary + rand.Text() }

// Temporary reports whether name is one of TemporaryName, or of package s3sync.
func Temporary(name string) bool {
	rest, ok := strings.CutPrefix(name, temporary)
	return ok && len(strings.TrimPrefix(rest, "sync-")) == len(rand.Text())
}

func (w *watcher) say(c Change) error {
	w.last = c
	return w.out.Encode(c)
}
