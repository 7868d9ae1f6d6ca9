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

	"github.com/RelevanceAI/harvest/errors"
)

// Op is something to do with single files.
type Op string

// The operations, and what they answer with: JSON values, one a line.
const (
	OpStat   Op = "stat"   // an Entry
	OpList   Op = "list"   // an Entry for each name in a directory, by name
	OpMkdir  Op = "mkdir"  // nothing; a directory that exists is fine with Parents
	OpRemove Op = "remove" // nothing; a directory that is not empty only with Recursive
	OpMove   Op = "move"   // nothing; an existing file is replaced only with Overwrite
	OpWatch  Op = "watch"  // Changes, the first of them Ready, until ctx ends
)

// Request is one operation.
type Request struct {
	Op        Op     `json:"op"`
	Path      string `json:"path"`
	To        string `json:"to,omitempty"` // of OpMove
	Parents   bool   `json:"parents,omitempty"`
	Recursive bool   `json:"recursive,omitempty"` // of OpRemove and OpWatch
	Overwrite bool   `json:"overwrite,omitempty"`
	Follow    bool   `json:"follow,omitempty"` // of OpStat: what a symbolic link leads to, under its own path
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
	// Version changes whenever content or attributes change, also within the resolution of Modified. It says nothing else.
	Version string `json:"version,omitempty"`
}

// Change is something that happened to a file.
type Change struct {
	Kind ChangeKind `json:"kind"`
	Path string     `json:"path,omitempty"`
	// Cookie, if not 0, says that the file was not made or removed but moved: both sides of a move have the same, as far as both are seen.
	Cookie uint32 `json:"cookie,omitempty"`
}

// ChangeKind is what happened.
type ChangeKind string

// The kinds of changes.
const (
	Ready   ChangeKind = "ready" // from now on changes are seen
	Created ChangeKind = "created"
	Changed ChangeKind = "changed"
	Removed ChangeKind = "removed"
	Lagged  ChangeKind = "lagged" // there were more changes than could be told; list again
)

// Tree is where files are: a *os.Root, which nothing leaves, or Host.
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

// Host is all files that this process sees: for one that is inside a sandbox itself.
type Host struct{}

// Stat and the following are those of package os.
func (Host) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// Lstat is that of package os.
func (Host) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// Readlink is that of package os.
func (Host) Readlink(name string) (string, error) { return os.Readlink(name) }

// Open is that of package os.
func (Host) Open(name string) (*os.File, error) { return os.Open(name) }

// Mkdir is that of package os.
func (Host) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir(name, perm) }

// MkdirAll is that of package os.
func (Host) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }

// Remove is that of package os.
func (Host) Remove(name string) error { return os.Remove(name) }

// RemoveAll is that of package os.
func (Host) RemoveAll(name string) error { return os.RemoveAll(name) }

// Rename is that of package os.
func (Host) Rename(from, to string) error { return os.Rename(from, to) }

// Do carries out req in tree and writes the answer to w. What else Explain makes of errors, Conflict says that something is there already, or
// in a directory that was to be empty.
func Do(ctx context.Context, tree Tree, req Request, w io.Writer) error {
	name := req.Path
	if name == "" {
		name = "."
	}
	out := json.NewEncoder(w)
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
			return errors.Remedy(errors.Explainf(err, errors.Conflict, "%.200q exists already", name), "choose another name, or allow that it exists")
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
			real, err := filepath.EvalSymlinks(name)
			if err != nil {
				return Entry{}, err
			}
			name = real
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
	e := Entry{Name: path.Base(name), Size: info.Size(), Modified: info.ModTime().UTC(), Mode: uint32(info.Mode().Perm())}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Mode, e.UID, e.GID = st.Mode, int(st.Uid), int(st.Gid)
		e.Version = fmt.Sprintf("%x-%x-%x-%x", st.Ino, st.Ctim.Nano(), st.Mtim.Nano(), st.Size)
	}
	if info.Mode().Type() == fs.ModeSymlink {
		e.Link, _ = tree.Readlink(name) // it may be gone by now
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
			return errors.Remedy(errors.Explainf(err, errors.Conflict, "the directory %.200q is not empty", name), "remove it with all that is in it, if that is meant: recursive")
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
			return errors.Remedy(errors.Newf(errors.Conflict, "%.200q exists already", to), "choose another name, or allow that it is replaced: overwrite")
		case target.IsDir() && !source.IsDir():
			return errors.Remedy(errors.Newf(errors.Conflict, "%.200q is a directory", to), "give the name that the file is to have in it")
		}
	}
	err = tree.Rename(from, to)
	if errors.Is(err, syscall.EXDEV) {
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "%.200q and %.200q are on different file systems", from, to), "copy it, and remove the original")
	}
	if errors.Is(err, fs.ErrExist) { // ENOTEMPTY is one, too
		return errors.Remedy(errors.Explainf(err, errors.Conflict, "the directory %.200q is not empty", to), "remove it first")
	}
	return Explain(err, to)
}
