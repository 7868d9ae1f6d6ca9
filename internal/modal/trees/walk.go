package trees

import (
	"context"
	"io/fs"
	"os"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Walk calls visit for all files below root, without root itself, in the order of their names. Links are not followed,
// and cannot lead out of root. Files that are removed meanwhile are skipped. visit may return fs.SkipDir.
func Walk(ctx context.Context, root *os.Root, visit func(name string, info fs.FileInfo) error) error {
	return fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.IsNotExist(err):
			return nil
		case err != nil:
			return err
		case name == ".":
			return nil
		}
		info, err := root.Lstat(name)
		switch {
		case errors.IsNotExist(err):
			return nil
		case err != nil:
			return err
		}
		return visit(name, info)
	})
}
