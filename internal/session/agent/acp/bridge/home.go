package bridge

import (
	"bytes"
	"embed"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// homes has Harvest's own files for the home directories of agents, by the names of their locks.
//
//go:embed all:homes
var homes embed.FS

// furnish writes the files of homes for a lock into the home directory, unless they are there.
func furnish(lock string) error {
	root := "homes/" + lock
	if _, err := fs.Stat(homes, root); lock == "" || err != nil {
		return nil // most agents need none
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return errors.Explainf(err, errors.Invalid, "%s needs a home directory", lock)
	}
	return fs.WalkDir(homes, root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(homes, name)
		if err != nil {
			return err
		}
		path := filepath.Join(home, strings.TrimPrefix(name, root))
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
			return nil
		}
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = os.WriteFile(path, text, 0o644)
		}
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "%s cannot be written, which %s needs", path, lock),
			"give it to the user of the sandbox")
	})
}
