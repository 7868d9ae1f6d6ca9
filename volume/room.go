package volume

import (
	"context"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/errors"
)

// Limited is implemented by volumes that limit the number of their files and directories.
type Limited interface {
	// Admit returns a function for the volume whose root is files. It must be called before a file or directory is
	// created at a path below the root, and returns Exhausted if the volume has no room for it and for the missing
	// directories above it. Its first call counts the files and directories of the volume.
	Admit(ctx context.Context, files *os.Root) (func(path string) error, error)
}

// Admit is Limited.Admit for any volume. Volumes without a limit admit everything.
func Admit(ctx context.Context, v Volume, files *os.Root) (func(path string) error, error) {
	if l, ok := v.(Limited); ok {
		return l.Admit(ctx, files)
	}
	return func(string) error { return nil }, nil
}

// SetFileLimit limits the files and directories of each volume for changes from outside of sandboxes; 0 means no
// limit. Engines limit sandboxes.
func (l *Local) SetFileLimit(files int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.files = files
}

// Admit implements Limited.
func (v *local) Admit(ctx context.Context, files *os.Root) (func(path string) error, error) {
	v.l.mu.Lock()
	most := v.l.files
	v.l.mu.Unlock()
	if most <= 0 {
		return func(string) error { return nil }, nil
	}
	return (&room{ctx: ctx, root: files, most: most, name: shown(v.name)}).admit, nil
}

// room counts the files and directories of a volume. While there is room for all paths with new directories above
// them, it does not look at the paths.
type room struct {
	ctx  context.Context
	root *os.Root
	most int
	name string

	mu      sync.Mutex
	counted bool // guarded by mu
	has     int  // guarded by mu; not more than that
	exact   bool // guarded by mu; few are left, so each path is looked up
}

// count counts the files and directories, up to the limit.
func (r *room) count() error {
	r.has = 0
	return walk(r.ctx, r.root, func(fs.FileInfo) bool {
		r.has++
		return r.has < r.most
	})
}

func (r *room) admit(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.counted {
		if err := r.count(); err != nil {
			return err
		}
		r.counted = true
	}
	if !r.exact {
		if all := strings.Count(name, "/") + 1; r.has+all <= r.most {
			r.has += all
			return nil
		}
		if err := r.count(); err != nil {
			return err
		}
		r.exact = true
	}
	n := missing(r.root, name)
	if n > 0 && r.has+n > r.most {
		return errors.Remedy(errors.Newf(errors.Exhausted, "volume %q: more than %d files and directories", r.name,
			r.most), "remove some, or have the operator raise limits.volume_files")
	}
	r.has += n
	return nil
}

// missing returns the number of elements of a path that do not exist.
func missing(root *os.Root, name string) (n int) {
	for name = path.Clean(name); name != "." && name != "/"; name = path.Dir(name) {
		if _, err := root.Lstat(name); !errors.IsNotExist(err) {
			return n // it exists, or its creation fails for another reason
		}
		n++
	}
	return n
}
