// Package programs holds programs inside the program harvest. `make build` builds and embeds them: the server in the
// command line, and the programs keeper, sentry, tools and s3 in the server. A harvest built without them, as by
// plain `go build`, starts itself in their place.
package programs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Programs are paths. They are "" if no programs are embedded, or if the directory does not allow execution.
type Programs struct {
	Keeper string // supervises a sandbox
	Sentry string // gVisor
	Tools  string // runs inside sandboxes
}

// prefixes of the files' names.
const (
	keeperPrefix = "keeper-"
	sentryPrefix = "sentry-"
	toolsPrefix  = "tools-"
	s3Prefix     = "s3-"
	serverPrefix = "server-"
)

// Unpack writes the programs for sandboxes to dir, where they stay for the next start. It removes programs of
// other versions from dir. Their running processes continue.
func Unpack(dir string) (Programs, error) {
	paths, err := unpack(dir, map[string][]byte{keeperPrefix: packedKeeper, sentryPrefix: packedSentry,
		toolsPrefix: packedTools})
	return Programs{Keeper: paths[keeperPrefix], Sentry: paths[sentryPrefix], Tools: paths[toolsPrefix]}, err
}

// S3 unpacks the embedded S3 in the same way.
func S3(dir string) (string, error) {
	paths, err := unpack(dir, map[string][]byte{s3Prefix: packedS3})
	return paths[s3Prefix], err
}

// HasServer reports whether the server is embedded.
func HasServer() bool { return len(packedServer) > 0 }

// Server unpacks the server in the same way, but removes nothing: a server of another version may run.
func Server(dir string) (string, error) {
	paths, err := write(dir, map[string][]byte{serverPrefix: packedServer})
	return paths[serverPrefix], err
}

// RemoveOtherServers removes the servers in dir if this process runs one of them, except that one. The caller has
// the lock of the data directory, so that no other server runs.
func RemoveOtherServers(dir string) error {
	program, err := os.Executable()
	if err != nil || filepath.Dir(program) != dir {
		return nil // this process was not unpacked
	}
	return removeOthers(dir, map[string]string{serverPrefix: program})
}

// ServerInMemory unpacks the server into memory, for commands that must not leave files. Its name is a path, which
// is valid until it is closed.
func ServerInMemory() (*os.File, error) {
	fd, err := unix.MemfdCreate("harvest-server", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, errors.Wrapf(err, "unpack a program into memory")
	}
	f := os.NewFile(uintptr(fd), "/proc/self/fd/"+strconv.Itoa(fd))
	if err := decompress(f, packedServer); err != nil {
		return nil, errors.Join(errors.Wrapf(err, "unpack a program into memory"), f.Close())
	}
	return f, nil
}

// unpack writes programs, by name prefix, removes those of other versions, and returns the paths of all, or of none.
func unpack(dir string, programs map[string][]byte) (map[string]string, error) {
	paths, err := write(dir, programs)
	if len(paths) == 0 || err != nil {
		return nil, err
	}
	return paths, removeOthers(dir, paths)
}

func write(dir string, programs map[string][]byte) (map[string]string, error) {
	paths := map[string]string{}
	for prefix, packed := range programs {
		if len(packed) == 0 {
			return nil, nil
		}
		paths[prefix] = named(dir, prefix, packed)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make the directory of programs")
	}
	if !Executable(dir) {
		return nil, nil
	}
	for prefix, path := range paths {
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := create(path, programs[prefix]); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// Executable reports whether programs can be started from an existing directory.
func Executable(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Flags&unix.ST_NOEXEC == 0
}

// named is the path of a program. Its name contains its digest.
func named(dir, prefix string, packed []byte) string {
	sum := sha256.Sum256(packed)
	return filepath.Join(dir, prefix+hex.EncodeToString(sum[:8]))
}

// create creates the file atomically: no process sees it incomplete.
func create(path string, packed []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return errors.Wrapf(err, "unpack a program")
	}
	defer os.Remove(f.Name()) // gone already unless something failed
	err = decompress(f, packed)
	if err == nil {
		err = f.Chmod(0o755)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errors.Remedy(errors.Explainf(err, errors.Exhausted,
			"no space left on the disk for the programs that harvest includes"), "free 300 MiB")
	}
	return errors.Wrapf(err, "unpack a program")
}

func decompress(w io.Writer, packed []byte) error {
	r, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}

// removeOthers removes the files with the prefix of one of the paths, other than the path itself.
func removeOthers(dir string, keep map[string]string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		for prefix, kept := range keep {
			if strings.HasPrefix(e.Name(), prefix) && path != kept {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}
	return errors.Wrapf(err, "remove programs of other versions")
}
