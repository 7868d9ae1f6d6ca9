package volsync

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	smithy "github.com/aws/smithy-go"
	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// modes are the modes that somebody gave to the directory at each path. Directories that exist only in the keys of
// other programs have 0755.
type modes map[string]map[fs.FileMode]bool

func (m modes) given(path string, mode fs.FileMode) {
	if m[path] == nil {
		m[path] = map[fs.FileMode]bool{}
	}
	m[path][mode] = true
}

// moved gives a path the modes of another one, too.
func (m modes) moved(from, to string) {
	for mode := range m[from] {
		m.given(to, mode)
	}
}

// above gives the directories above a path a mode.
func (m modes) above(path string, mode fs.FileMode) {
	for dir := tree.Parent(path); dir != ""; dir = tree.Parent(dir) {
		m.given(dir, mode)
	}
}

// strange returns the path of a directory with a mode that nobody gave it, or "".
func (m modes) strange(t *testing.T, dir string) string {
	t.Helper()
	found := ""
	must(t, filepath.WalkDir(dir, func(full string, d fs.DirEntry, err error) error {
		if err != nil || full == dir || !d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		path, _ := filepath.Rel(dir, full)
		if mode := info.Mode().Perm(); !m[path][mode] {
			found = path + " with " + mode.String()
		}
		return nil
	}))
	return found
}

// makeDirs makes the directories of a machine's path, with modes that no default has.
func (w *world) makeDirs(m *machine, dir string) {
	if dir == "" {
		return
	}
	w.makeDirs(m, tree.Parent(dir))
	mode := []fs.FileMode{0o700, 0o711, 0o750}[len(w.written)%3]
	if err := os.Mkdir(filepath.Join(m.dir, dir), mode); err == nil {
		w.modes.given(dir, mode)
	} else if !os.IsExist(err) {
		must(w.t, err)
	}
}

// moreActions are those of a newer set of rules.
func (w *world) moreActions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"hard link": func(rt *rapid.T) {
			m, i := w.machine(rt)
			from, to := w.there(rt, m), w.path(rt, m)
			if from == to || strings.HasPrefix(to, from+"/") || strings.HasPrefix(from, to+"/") {
				rt.Skip("beneath itself")
			}
			content := modelFiles(w.t, m.dir)[from]
			w.note("%d: %s is %s, too", i, from, to)
			aside := filepath.Join(m.state, "linked")
			must(w.t, os.Link(filepath.Join(m.dir, from), aside))
			w.room(m, to, "made way for "+content)
			must(w.t, os.Rename(aside, filepath.Join(m.dir, to)))
			_ = os.Remove(aside) // two names of one file: the rename did nothing
			w.arrives(m, to, content)
		},
		"chmod directory": func(rt *rapid.T) {
			m, i := w.machine(rt)
			dir := tree.Parent(w.there(rt, m))
			if dir == "" {
				rt.Skip("the root")
			}
			mode := rapid.SampledFrom([]fs.FileMode{0o705, 0o770}).Draw(rt, "mode")
			w.note("%d: %s gets %v", i, dir, mode)
			w.modes.given(dir, mode)
			must(w.t, os.Chmod(filepath.Join(m.dir, dir), mode))
		},
		"rename directory": func(rt *rapid.T) {
			m, i := w.machine(rt)
			from := tree.Parent(w.there(rt, m))
			to := rapid.SampledFrom([]string{"d", "c", "a/x", "b"}).Draw(rt, "to")
			if from == "" || from == to || strings.HasPrefix(to, from+"/") || strings.HasPrefix(from, to+"/") {
				rt.Skip("beneath itself")
			}
			w.note("%d: the directory %s is renamed to %s", i, from, to)
			aside := filepath.Join(m.state, "renamed")
			for path, content := range modelFiles(w.t, m.dir) {
				if strings.HasPrefix(path, from+"/") {
					w.leaves(path, content, "renamed with "+from)
				}
			}
			must(w.t, os.Rename(filepath.Join(m.dir, from), aside))
			w.room(m, to, "made way for a directory")
			must(w.t, os.Rename(aside, filepath.Join(m.dir, to)))
			must(w.t, filepath.WalkDir(filepath.Join(m.dir, to), func(full string, _ fs.DirEntry, err error) error {
				path, _ := filepath.Rel(m.dir, full)
				w.modes.moved(from+strings.TrimPrefix(path, to), path)
				return err
			}))
			for path, content := range modelFiles(w.t, m.dir) {
				if strings.HasPrefix(path, to+"/") {
					w.arrives(m, path, content)
				}
			}
		},
		"foreign directory": func(rt *rapid.T) {
			key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "key") + "/"
			w.note("another program stores the directory %s", key)
			w.modes.given(strings.TrimSuffix(key, "/"), 0o755)
			_, err := w.b.Put(w.t.Context(), key, nil, crc64nvme.Checksum(nil), nil)
			var refused smithy.APIError
			if !errors.As(err, &refused) { // some servers cannot have it beside a file
				must(w.t, err)
			}
		},
		"alone":         func(rt *rapid.T) { w.alone(rt, rapid.IntRange(0, len(w.all)-1).Draw(rt, "machine")) },
		"edited during": func(rt *rapid.T) { w.editedDuring(rt) },
	}
}

// arrives records that a machine gave a file of its own the name to.
func (w *world) arrives(m *machine, to, content string) {
	at := [2]string{to, content}
	if other := w.moved[at]; other != nil && other != m {
		w.twice[at] = true
	}
	w.moved[at] = m
	delete(w.gone, at)
}

// alone synchronises a machine twice, without anybody else. The second time, nothing may fail.
func (w *world) alone(rt *rapid.T, i int) {
	list := rapid.Bool().Draw(rt, "list")
	w.note("%d synchronises alone, list: %v", i, list)
	w.syncOne(w.t.Context(), rt, i, list, &attempt{})
	if s := w.syncOne(w.t.Context(), rt, i, list, &attempt{}); s.Failed > 0 {
		w.fail(rt, "the second sync of %d alone fails: %+v", i, s.Failures)
	}
}

// editedDuring edits the volume of a machine in the middle of its sync. It takes the file away in one step, so that it
// knows the content, and puts another one there only if the place is still free.
func (w *world) editedDuring(rt *rapid.T) {
	m, i := w.machine(rt)
	path, list := w.path(rt, m), rapid.Bool().Draw(rt, "list")
	remove := rapid.Bool().Draw(rt, "remove")
	content := w.content(rt)
	at := rapid.IntRange(1, 12).Draw(rt, "when")
	w.note("%d synchronises, list: %v; at request %d %s is removed, and becomes %s: %v", i, list, at, path, content,
		!remove)
	w.replaced[content] = "not written"
	run := &attempt{middle: at, other: func() {
		aside, full := filepath.Join(m.state, "edited"), filepath.Join(m.dir, path)
		if info, err := os.Lstat(full); err == nil && !info.Mode().IsRegular() {
			return
		}
		if os.Rename(full, aside) == nil {
			raw, err := os.ReadFile(aside)
			must(w.t, err)
			w.replaced[string(raw)] = "edited during a sync"
			w.leaves(path, string(raw), "edited during a sync")
			must(w.t, os.Remove(aside))
		}
		must(w.t, os.WriteFile(aside, []byte(content), 0o644))
		if remove || unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, full, unix.RENAME_NOREPLACE) != nil {
			must(w.t, os.Remove(aside))
			return
		}
		delete(w.replaced, content)
		w.note("      %d: %s becomes %s", i, path, content)
	}}
	w.syncOne(w.t.Context(), rt, i, list, run)
	run.nested.Wait()
}

// hidden reports whether a content of another program is still at its key, which no list shows: lists of MinIO leave
// out the keys beneath an object.
func (w *world) hidden(content string) bool {
	key := w.stored[content]
	if key == "" {
		return false
	}
	body := make([]byte, len(content))
	got, err := w.b.Get(w.t.Context(), key, "", 0, int64(len(body)), int64(len(body)), body)
	return err == nil && string(got.Body) == content
}

// newcomer checks that a new machine gets the same files as the others.
func (w *world) newcomer(rt *rapid.T, want map[string]string) {
	w.all = append(w.all, &machine{shmDir(w.t), shmDir(w.t), nil})
	i := len(w.all) - 1
	if s := w.syncOne(w.t.Context(), rt, i, false, &attempt{}); s.Failed+s.Conflicts > 0 {
		w.fail(rt, "the sync of a new machine: %s %+v %+v", s, s.Decided, s.Failures)
	}
	if got := modelSnapshot(w.t, w.all[i].dir); !maps.Equal(got, want) {
		w.fail(rt, "a new machine has %v, machine 0 has %v", got, want)
	}
}

// names returns the paths of a machine's files with one inode.
func (w *world) names(m *machine, path string) []string {
	info, err := os.Lstat(filepath.Join(m.dir, path))
	if err != nil {
		return nil
	}
	inode := info.Sys().(*syscall.Stat_t).Ino
	var all []string
	for name := range modelFiles(w.t, m.dir) {
		if other, err := os.Lstat(filepath.Join(m.dir, name)); err == nil &&
			other.Sys().(*syscall.Stat_t).Ino == inode {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}
