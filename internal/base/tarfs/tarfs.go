// Package tarfs moves file trees in and out as tar streams without ever leaving a directory.
//
// Volumes, the fake engine and the program inside sandboxes share it, so that a tree means the same everywhere.
// All access goes through os.Root: a symbolic link that is swapped in during an operation leads to an error,
// not out of the root.
package tarfs

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// maxLinks is the most symbolic links in a path, as in Linux.
const maxLinks = 40

// Options of Unpack.
type Options struct {
	Owners     bool  // set the numeric owners of the archive; needs the privileges
	SetID      bool  // keep the setuid, setgid and sticky bits
	NoUmask    bool  // the process has the umask 0: files can be created with their modes
	MaxBytes   int64 // content of all files together; 0 means no limit
	MaxEntries int64 // entries of the archive; 0 means no limit
	Naming     Naming
	// Admit, if set, is called with the path below the directory before each entry is written. Its error ends Unpack.
	Admit func(path string) error
	// Skipped, if set, is called for each FIFO and device of the archive instead of creating it.
	Skipped func(name string)
}

// Naming changes the headers of an archive that is read or written.
type Naming struct {
	First  *tar.Header           // nil, or an entry before all others
	Change func(hdr *tar.Header) // nil, or called for each other entry
}

func (n Naming) change(hdr *tar.Header) {
	if n.Change != nil {
		n.Change(hdr)
	}
}

// Empty reports whether n changes nothing.
func (n Naming) Empty() bool { return n.First == nil && n.Change == nil }

// escapes is the error of os.Root for a path that leaves the root. Package os does not export it.
var escapes = sync.OnceValue(func() error {
	root, err := os.OpenRoot("/")
	if err != nil {
		return errors.Internal
	}
	defer root.Close()
	_, err = root.Lstat("..")
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return errors.Internal
})

// Clean returns name as a clean path relative to a root, "." for the root itself. Invalid if name contains NUL
// or climbs out with "..". A leading slash means the root.
func Clean(name string) (string, error) {
	if strings.ContainsRune(name, 0) {
		return "", errors.Newf(errors.Invalid, "the path %.200q contains a NUL byte", name)
	}
	clean := path.Clean(strings.TrimLeft(name, "/"))
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", errors.Newf(errors.Invalid, "the path %.200q leads out of its directory", name)
	}
	return clean, nil
}

// temporary is the name prefix of files that are still being written.
const temporary = ".harvest-"

// Explain gives an error of a file operation on name its kind and a message for clients.
func Explain(err error, name string) error {
	text, kind := "", errors.Kind("")
	switch {
	case err == nil:
		return nil
	case errors.Is(err, escapes()) || errors.Is(err, syscall.EXDEV):
		kind, text = errors.Invalid, "%.200q leads out of its directory"
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		err = errors.Remedy(err, "remove files in the sandbox; if it is below its disk limit, free space on the disk "+
			"of the data directory")
		kind, text = errors.Exhausted, "there is no space left to write %s"
	case errors.Is(err, syscall.EIO):
		err = errors.Remedy(err, "check the disk of the data directory: harvest doctor, and dmesg on the server")
		kind, text = errors.Unavailable, "the disk failed at %s (input/output error)"
	case errors.Is(err, fs.ErrNotExist):
		kind, text = errors.NotFound, "%.200q does not exist"
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		kind, text = errors.Denied, "access to %.200q is not permitted"
	case errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EEXIST):
		kind, text = errors.Invalid, "a part of %.200q is not a directory"
	case errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.ENOTEMPTY):
		kind, text = errors.Invalid, "%.200q is a directory"
	case errors.Is(err, syscall.ELOOP):
		kind, text = errors.Invalid, "%.200q goes through too many symbolic links"
	case errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, syscall.EINVAL):
		kind, text = errors.Invalid, "%.200q is not a usable file name"
	default:
		return errors.Wrapf(err, "%.200q", name)
	}
	if strings.Contains(text, "%s") {
		return errors.Explainf(err, kind, text, shown(name))
	}
	return errors.Explainf(err, kind, text, name)
}

// shown returns name quoted, without the names of temporary files, which clients do not know.
func shown(name string) string {
	if strings.HasPrefix(path.Base(name), temporary) {
		return "the file"
	}
	return fmt.Sprintf("%.200q", name)
}

// openDir opens a directory. The error of os.Root for a file has no sentinel.
func openDir(root *os.Root, name string) (*os.Root, error) {
	dir, err := root.OpenRoot(name)
	if err != nil {
		if info, statErr := root.Stat(name); statErr == nil && !info.IsDir() {
			err = &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
		}
	}
	return dir, err
}

// Resolve follows the symbolic links of a path in root and returns a path without links. Invalid if the path
// leaves root.
//
// os.Root does the same on Linux, and still guards against changes meanwhile. In gVisor's sandboxes, os.Root
// alone is not enough: there, opening a directory follows a symbolic link in spite of O_NOFOLLOW with
// O_DIRECTORY (in the release of September 2026), and os.Root leaves the root through "link/..".
func Resolve(root *os.Root, name string) (string, error) {
	done, links := ".", 0
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			if done == "." {
				return "", Explain(escapes(), name)
			}
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		target, err := root.Readlink(next)
		if err != nil { // not a link, or missing: the operation itself reports it
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", Explain(syscall.ELOOP, name)
		}
		if path.IsAbs(target) {
			return "", Explain(escapes(), name)
		}
		rest = append(strings.Split(strings.TrimRight(target, "/"), "/"), rest...)
	}
	return done, nil
}

// locate converts a clean path to one that os.Root follows. They differ only if the root is the whole file
// system: there, absolute symbolic links, such as /var/run, do not lead out, but os.Root refuses them all.
// follow applies to the last element.
func locate(root *os.Root, name string, follow bool) (string, error) {
	if root.Name() != "/" || name == "." {
		return name, nil
	}
	done, links := ".", 0
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		target, err := root.Readlink(next)
		if err != nil || len(rest) == 0 && !follow {
			done = next // not a link, or missing: the operation itself reports it
			continue
		}
		if links++; links > maxLinks {
			return "", Explain(syscall.ELOOP, name)
		}
		if path.IsAbs(target) {
			done = "."
		}
		rest = append(strings.Split(strings.Trim(path.Clean(target), "/"), "/"), rest...)
	}
	return done, nil
}
