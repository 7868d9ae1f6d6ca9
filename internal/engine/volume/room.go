package volume

import (
	"context"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Limited is implemented by volumes that limit the number of their files and directories.
type Limited interface {
	// Admit returns the room in the volume whose root is files.
	Admit(ctx context.Context, files *os.Root) (Room, error)
}

// Room limits the files and directories of a volume for one change from outside of sandboxes.
type Room interface {
	// Make calls create, which creates a file or directory at a path below the root. It returns Exhausted if the
	// volume has no room for it and for the missing directories above it. Its first call counts the files and
	// directories of the volume. create must not call Make or Move.
	Make(path string, create func() error) error
	// Move calls rename, which renames a file that Make created. Files are not counted meanwhile: one whose name
	// changes could be missed. rename must not call Make or Move.
	Move(rename func() error) error
}

// Admit is Limited.Admit for any volume. Volumes without a limit have room for everything.
func Admit(ctx context.Context, v Volume, files *os.Root) (Room, error) {
	if l, ok := v.(Limited); ok {
		return l.Admit(ctx, files)
	}
	return unlimited{}, nil
}

// unlimited is a Room for everything.
type unlimited struct{}

func (unlimited) Make(_ string, create func() error) error { return create() }
func (unlimited) Move(rename func() error) error           { return rename() }

// SetFileLimit limits the files and directories of each volume for changes from outside of sandboxes; 0 means no
// limit. Engines limit sandboxes.
func (l *Local) SetFileLimit(files int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.files = files
}

// Admit implements Limited.
func (v *local) Admit(ctx context.Context, files *os.Root) (Room, error) {
	v.l.mu.Lock()
	most := v.l.files
	v.l.mu.Unlock()
	if most <= 0 {
		return unlimited{}, nil
	}
	return &room{ctx: ctx, root: files, most: most, name: shown(v.name)}, nil
}

// room counts the files and directories of a volume. While there is room for all paths with new directories above
// them, it does not look at the paths.
type room struct {
	ctx  context.Context
	root *os.Root
	most int
	name string

	making sync.RWMutex // held to read while a path is created or renamed, and to write while exact begins

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

func (r *room) Make(name string, create func() error) error {
	r.making.RLock()
	defer r.making.RUnlock()
	ok, err := r.take(name)
	if err == nil && !ok {
		r.making.RUnlock()
		err = r.look()
		r.making.RLock()
		if err == nil {
			_, err = r.take(name)
		}
	}
	if err != nil {
		return err
	}
	return create()
}

func (r *room) Move(rename func() error) error {
	r.making.RLock()
	defer r.making.RUnlock()
	return rename()
}

// look counts all files exactly, once all that are admitted exist.
func (r *room) look() error {
	r.making.Lock()
	defer r.making.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.exact {
		return nil
	}
	if err := r.count(); err != nil {
		return err
	}
	r.exact = true
	return nil
}

// take takes the room for a path. It returns false if the files must be counted exactly before.
func (r *room) take(name string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.counted {
		if err := r.count(); err != nil {
			return false, err
		}
		r.counted = true
	}
	if !r.exact {
		all := strings.Count(name, "/") + 1
		if r.has+all > r.most {
			return false, nil
		}
		r.has += all
		return true, nil
	}
	n := missing(r.root, name)
	if n > 0 && r.has+n > r.most {
		return false, errors.Remedy(errors.Newf(errors.Exhausted, "volume %q: more than %d files and directories",
			r.name, r.most), "remove some, or have the operator raise limits.volume_files")
	}
	r.has += n
	return true, nil
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
