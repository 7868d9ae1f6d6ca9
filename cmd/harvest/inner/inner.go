// Package inner is the programs keeper, sentry, tools and s3 inside the program harvest: `make build` builds them and puts them into it. A harvest that
// was built without them, as plain `go build` does, starts itself in their place.
package inner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
)

// Programs are paths. They are "" if this program has none inside, or if nothing can be executed from the directory.
type Programs struct {
	Keeper string // what keeps a sandbox
	Sentry string // gVisor
	Tools  string // what runs inside
}

// prefixes of the files' names.
const (
	keeperPrefix = "keeper-"
	sentryPrefix = "sentry-"
	toolsPrefix  = "tools-"
	s3Prefix     = "s3-"
)

// Unpack writes the programs that sandboxes need to dir, where they stay for the next time. Programs of other versions are removed from dir;
// processes of them go on.
func Unpack(dir string) (Programs, error) {
	paths, err := unpack(dir, map[string][]byte{keeperPrefix: packedKeeper, sentryPrefix: packedSentry, toolsPrefix: packedTools})
	return Programs{Keeper: paths[keeperPrefix], Sentry: paths[sentryPrefix], Tools: paths[toolsPrefix]}, err
}

// S3 does the same for the embedded S3.
func S3(dir string) (string, error) {
	paths, err := unpack(dir, map[string][]byte{s3Prefix: packedS3})
	return paths[s3Prefix], err
}

// unpack writes programs, by the prefixes of their names, and returns their paths: of all, or of none.
func unpack(dir string, programs map[string][]byte) (map[string]string, error) {
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
		if err := write(path, programs[prefix]); err != nil {
			return nil, err
		}
	}
	return paths, removeOthers(dir, paths)
}

// Executable reports whether programs can be started from a directory, which is there.
func Executable(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Flags&unix.ST_NOEXEC == 0
}

// named is the path of a program, by its digest.
func named(dir, prefix string, packed []byte) string {
	sum := sha256.Sum256(packed)
	return filepath.Join(dir, prefix+hex.EncodeToString(sum[:8]))
}

// write makes the file at once: nobody sees a half of it.
func write(path string, packed []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return errors.Wrapf(err, "unpack a program")
	}
	defer os.Remove(f.Name()) // gone already unless something failed
	r, err := zstd.NewReader(bytes.NewReader(packed))
	if err == nil {
		_, err = io.Copy(f, r)
		r.Close()
	}
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
		return errors.Remedy(errors.Explainf(err, errors.Exhausted, "there is no room on the disk for the programs that harvest brings along"), "make 150 MiB of room")
	}
	return errors.Wrapf(err, "unpack a program")
}

// removeOthers removes what has a prefix of one of the paths and is not that.
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
