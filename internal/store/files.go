package store

import (
	"io/fs"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// fileError adds kind and text to an error of the file system.
func fileError(err error, path string) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return deniedError(err, path)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fullError(err, path)
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrNotExist):
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "%s cannot be a file", path),
			"give the path of a file in an existing directory")
	}
	return errors.Wrapf(err, "%s", path)
}
