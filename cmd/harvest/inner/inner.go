// Package inner is the programs keeper and sentry inside the program harvest: `make build` builds them and puts them into it. A harvest that
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
	Keeper string // what keeps a sandbox, and runs inside
	Sentry string // gVisor
}

// prefixes of the files' names.
const (
	keeperPrefix = "keeper-"
	sentryPrefix = "sentry-"
)

// Unpack writes the programs to dir, where they stay for the next time. Programs of other versions are removed from dir;
// processes of them go on.
func Unpack(dir string) (Programs, error) { return unpack(dir, packedKeeper, packedSentry) }

func unpack(dir string, keeper, sentry []byte) (Programs, error) {
	if len(keeper) == 0 || len(sentry) == 0 {
		return Programs{}, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Programs{}, errors.Wrapf(err, "make the directory of programs")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Flags&unix.ST_NOEXEC != 0 {
		return Programs{}, errors.Wrapf(err, "look at the directory of programs")
	}
	p := Programs{Keeper: named(dir, keeperPrefix, keeper), Sentry: named(dir, sentryPrefix, sentry)}
	for path, packed := range map[string][]byte{p.Keeper: keeper, p.Sentry: sentry} {
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := write(path, packed); err != nil {
			return Programs{}, err
		}
	}
	return p, removeOthers(dir, p)
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
	if errors.Is(err, unix.ENOSPC) {
		return errors.Remedy(errors.Explainf(err, errors.Exhausted, "there is no room on the disk for the program that keeps sandboxes"), "make 100 MiB of room")
	}
	return errors.Wrapf(err, "unpack a program")
}

func removeOthers(dir string, keep Programs) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		ours := strings.HasPrefix(e.Name(), keeperPrefix) || strings.HasPrefix(e.Name(), sentryPrefix)
		if other := filepath.Join(dir, e.Name()); ours && other != keep.Keeper && other != keep.Sentry {
			err = errors.Join(err, os.Remove(other))
		}
	}
	return errors.Wrapf(err, "remove programs of other versions")
}
