package testenv

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// stale is how long an unused directory of Cache stays. It exceeds the duration of any test run.
const stale = 24 * time.Hour

// Cache returns a directory that all tests of this user share across packages and runs, for expensive
// artefacts. Its name contains a checksum of sources, so that a change of the code that fills it leads to a new
// directory. Sources are files and directories of the module; their tests do not count. Cache removes
// directories of the same name that were not used for a day.
func Cache(t testing.TB, name string, sources ...string) string {
	t.Helper()
	sum, err := checksum(root(t), sources)
	if err != nil {
		t.Fatal(err)
	}
	parent, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := cacheIn(filepath.Join(parent, "harvest-test"), name, sum)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// checksum returns a checksum of the names and contents of files below module.
func checksum(module string, sources []string) (string, error) {
	h := sha256.New()
	for _, source := range sources {
		err := filepath.WalkDir(filepath.Join(module, source), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, _ = io.WriteString(h, strings.TrimPrefix(path, module)+"\x00")
			_, err = io.Copy(h, f)
			_, _ = h.Write([]byte{0})
			return err
		})
		if err != nil {
			return "", errors.Wrapf(err, "read %s", source)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// cacheIn creates the directory name-sum in parent, marks it as used, and removes stale ones.
func cacheIn(parent, name, sum string) (string, error) {
	dir := filepath.Join(parent, name+"-"+sum)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", errors.Wrapf(err, "make the shared directory")
	}
	now := time.Now()
	if err := os.Chtimes(dir, now, now); err != nil {
		return "", errors.Wrapf(err, "mark the shared directory as used")
	}
	others, err := filepath.Glob(filepath.Join(parent, name+"-????????????????"))
	if err != nil {
		return "", errors.Wrapf(err, "list the shared directories")
	}
	for _, other := range others {
		if info, err := os.Stat(other); err == nil && now.Sub(info.ModTime()) > stale {
			// Best effort: another process may remove it at the same time.
			_ = os.RemoveAll(other)
		}
	}
	return dir, nil
}
