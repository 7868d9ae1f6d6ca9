// Package inner is the program keeper inside the program harvest: `make build` builds the one and puts it into the other. A harvest that
// was built without it, as plain `go build` does, starts itself as keeper instead.
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

const prefix = "keeper-"

// Unpack writes the program to dir, where it stays for the next time, and returns its path. Programs of other versions are removed from dir;
// processes of them go on. It is "" if this program has none inside, or if nothing can be executed from dir.
func Unpack(dir string) (string, error) { return unpack(dir, packed) }

func unpack(dir string, packed []byte) (string, error) {
	if len(packed) == 0 {
		return "", nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", errors.Wrapf(err, "make the directory of programs")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Flags&unix.ST_NOEXEC != 0 {
		return "", errors.Wrapf(err, "look at the directory of programs")
	}
	sum := sha256.Sum256(packed)
	path := filepath.Join(dir, prefix+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := write(path, packed); err != nil {
		return "", err
	}
	return path, removeOthers(dir, path)
}

// write makes the file at once: nobody sees a half of it.
func write(path string, packed []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return errors.Wrapf(err, "unpack the keeper")
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
	return errors.Wrapf(err, "unpack the keeper")
}

func removeOthers(dir, path string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if other := filepath.Join(dir, e.Name()); strings.HasPrefix(e.Name(), prefix) && other != path {
			err = errors.Join(err, os.Remove(other))
		}
	}
	return errors.Wrapf(err, "remove programs of other versions")
}
