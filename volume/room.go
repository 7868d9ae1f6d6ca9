package volume

import (
	"context"
	"io/fs"
	"os"
	"path"

	"github.com/RelevanceAI/harvest/errors"
)

// Limited is implemented by volumes that limit the number of their files and directories.
type Limited interface {
	// Admit counts the files and directories of the volume, whose root is files. The returned function must be called
	// before one is created at a path below the root, and returns Exhausted if the volume has no room for it and for
	// the missing directories above it.
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
	has := 0
	err := walk(ctx, files, func(fs.FileInfo) bool {
		has++
		return has < most
	})
	return func(name string) error {
		if has += missing(files, name); has > most {
			return errors.Remedy(errors.Newf(errors.Exhausted, "volume %q: more than %d files and directories",
				shown(v.name), most), "remove some, or have the operator raise limits.volume_files")
		}
		return nil
	}, err
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
