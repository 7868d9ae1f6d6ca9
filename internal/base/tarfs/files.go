//go:build linux

package tarfs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Op is an operation on single files.
type Op string

// The operations and their answers: JSON values, one a line.
const (
	OpStat   Op = "stat"   // an Entry
	OpList   Op = "list"   // an Entry for each name in a directory, by name
	OpMkdir  Op = "mkdir"  // nothing; an existing directory is no error with Parents
	OpRemove Op = "remove" // nothing; a directory with entries needs Recursive
	OpMove   Op = "move"   // nothing; replacing an existing file needs Overwrite
	OpWatch  Op = "watch"  // Changes until ctx ends, the first of them Ready
)

// Request is one operation.
type Request struct {
	Op        Op     `json:"op"`
	Path      string `json:"path"`
	To        string `json:"to,omitempty"` // of OpMove
	Parents   bool   `json:"parents,omitempty"`
	Recursive bool   `json:"recursive,omitempty"` // of OpRemove and OpWatch
	Overwrite bool   `json:"overwrite,omitempty"`
	Follow    bool   `json:"follow,omitempty"` // of OpStat: describe the target of a symbolic link, under its own path
}

// Entry is a file of any kind.
type Entry struct {
	Name     string    `json:"name"`
	Path     string    `json:"path,omitempty"` // of OpStat
	Mode     uint32    `json:"mode"`           // as in struct stat
	Size     int64     `json:"size_bytes"`
	Modified time.Time `json:"modified_at"`
	Link     string    `json:"link,omitempty"` // target of a symbolic link
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	// Version changes whenever the content or the attributes change, even within the resolution of Modified. It
	// has no other meaning.
	Version string `json:"version,omitempty"`
}

// Change is a change of a file.
type Change struct {
	Kind ChangeKind `json:"kind"`
	Path string     `json:"path,omitempty"`
	// Cookie, if not 0, marks a move instead of a creation or removal. Both sides of a move have the same
	// cookie, if both are visible.
	Cookie uint32 `json:"cookie,omitempty"`
}

// ChangeKind is the kind of a change.
type ChangeKind string

// The kinds of changes.
const (
	Ready   ChangeKind = "ready" // the watch has begun
	Created ChangeKind = "created"
	Changed ChangeKind = "changed"
	Removed ChangeKind = "removed"
	Lagged  ChangeKind = "lagged" // some changes were lost; list again
)

// Tree is a file tree: a *os.Root, which no operation leaves, or Host.
type Tree interface {
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	Readlink(name string) (string, error)
	Open(name string) (*os.File, error)
	Mkdir(name string, perm fs.FileMode) error
	MkdirAll(name string, perm fs.FileMode) error
	Remove(name string) error
	RemoveAll(name string) error
	Rename(from, to string) error
}

// Host is the whole file system of this process, for use inside a sandbox. In it, /proc/self is the first process.
type Host struct{}

// Stat is os.Stat.
func (Host) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// Lstat is os.Lstat.
func (Host) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// Readlink is os.Readlink.
func (Host) Readlink(name string) (string, error) { return os.Readlink(name) }

// Open is os.Open.
func (Host) Open(name string) (*os.File, error) { return os.Open(name) }

// Mkdir is os.Mkdir.
func (Host) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir(name, perm) }

// MkdirAll is os.MkdirAll.
func (Host) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }

// Remove is os.Remove.
func (Host) Remove(name string) error { return os.Remove(name) }

// RemoveAll is os.RemoveAll.
func (Host) RemoveAll(name string) error { return os.RemoveAll(name) }

// Rename is os.Rename.
func (Host) Rename(from, to string) error { return os.Rename(from, to) }

// Do runs req in tree and writes the answer to w. Kinds: those of Explain, and Conflict if the target exists
// already or a directory is not empty.
func Do(ctx context.Context, tree Tree, req Request, w io.Writer) error {
	name := req.Path
	if name == "" {
		name = "."
	}
	out := json.NewEncoder(w)
	if _, host := tree.(Host); host {
		name = ofFirst(name, req.Follow || req.Op == OpList || req.Op == OpWatch)
		req.To = ofFirst(req.To, false)
	}
	switch req.Op {
	case OpStat:
		e, err := stat(tree, name, req.Follow)
		if err != nil {
			return Explain(err, name)
		}
		return out.Encode(e)
	case OpList:
		return list(ctx, tree, name, out)
	case OpMkdir:
		if req.Parents {
			return Explain(tree.MkdirAll(name, 0o777), name)
		}
		err := tree.Mkdir(name, 0o777)
		if errors.Is(err, fs.ErrExist) {
			return errors.Remedy(errors.Explainf(err, errors.Conflict, "%.200q exists already", name),
				"choose another name, or give parents to accept an existing directory")
		}
		return Explain(err, name)
	case OpRemove:
		return remove(tree, name, req.Recursive)
	case OpMove:
		return move(tree, name, req.To, req.Overwrite)
	case OpWatch:
		return watch(ctx, tree, name, req.Recursive, out)
	}
	return errors.Errorf("there is no operation %q", req.Op)
}

func stat(tree Tree, name string, follow bool) (Entry, error) {
	if follow {
		if _, host := tree.(Host); host {
			// Only the kernel can follow the links of /proc to open files, whose targets are not paths.
			if real, err := filepath.EvalSymlinks(name); err == nil {
				name = real
			}
		}
	}
	look := tree.Lstat
	if follow {
		look = tree.Stat
	}
	info, err := look(name)
	if err != nil {
		return Entry{}, err
	}
	e := entry(tree, name, info)
	e.Path = name
	return e, nil
}

func entry(tree Tree, name string, info fs.FileInfo) Entry {
	e := Entry{Name: path.Base(name), Size: info.Size(), Modified: info.ModTime().UTC(),
		Mode: uint32(info.Mode().Perm())}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Mode, e.UID, e.GID = st.Mode, int(st.Uid), int(st.Gid)
		e.Version = fmt.Sprintf("%x-%x-%x-%x", st.Ino, st.Ctim.Nano(), st.Mtim.Nano(), st.Size)
	}
	if info.Mode().Type() == fs.ModeSymlink {
		e.Link, _ = tree.Readlink(name) // best effort: the link may be gone
	}
	return e
}

func list(ctx context.Context, tree Tree, name string, out *json.Encoder) error {
	dir, err := tree.Open(name)
	if err != nil {
		return Explain(err, name)
	}
	defer dir.Close()
	if info, err := dir.Stat(); err == nil && !info.IsDir() {
		return errors.Newf(errors.Invalid, "%.200q is not a directory", name)
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return Explain(err, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(a, b) })
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		full := path.Join(name, n)
		info, err := tree.Lstat(full)
		if errors.IsNotExist(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return Explain(err, full)
		}
		if err := out.Encode(entry(tree, full, info)); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a file, or a directory.
func remove(tree Tree, name string, recursive bool) error {
	if base := path.Clean(name); base == "/" || base == "." {
		return errors.Newf(errors.Invalid, "the root of all files cannot be removed")
	}
	if !recursive {
		err := tree.Remove(name)
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
			return errors.Remedy(errors.Explainf(err, errors.Conflict, "the directory %.200q is not empty", name),
				"give recursive to remove its contents, too")
		}
		return Explain(err, name)
	}
	if _, err := tree.Lstat(name); err != nil {
		return Explain(err, name)
	}
	return Explain(tree.RemoveAll(name), name)
}

func move(tree Tree, from, to string, overwrite bool) error {
	source, err := tree.Lstat(from)
	if err != nil {
		return Explain(err, from)
	}
	if target, err := tree.Lstat(to); err == nil {
		switch {
		case !overwrite:
			return errors.Remedy(errors.Newf(errors.Conflict, "%.200q exists already", to),
				"choose another name, or give overwrite to replace it")
		case target.IsDir() && !source.IsDir():
			return errors.Remedy(errors.Newf(errors.Conflict, "%.200q is a directory", to),
				"give the name that the file is to have in it")
		}
	}
	err = tree.Rename(from, to)
	if errors.Is(err, syscall.EXDEV) {
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "%.200q and %.200q are on different file systems",
			from, to), "copy it, and remove the original")
	}
	if errors.Is(err, fs.ErrExist) { // includes ENOTEMPTY
		return errors.Remedy(errors.Explainf(err, errors.Conflict, "the directory %.200q is not empty", to),
			"remove it first")
	}
	return Explain(err, to)
}
