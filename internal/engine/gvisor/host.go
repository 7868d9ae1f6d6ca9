package gvisor

import (
	"os"
	"path/filepath"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
)

// trash removes directories in the background. It renames them first. Otherwise, on ext4, creating files is
// slow right after the deletion of a similar tree in the same place.
type trash struct {
	dir     string
	pending tasks.Group
}

// openTrash starts to remove the remains of an earlier process.
func openTrash(dir string) *trash {
	t := &trash{dir: dir}
	t.pending.Go(func() {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			discard(filepath.Join(dir, e.Name()))
		}
	})
	return t
}

// put moves path away immediately, and removes it later; after close, before it returns.
func (t *trash) put(path string) error {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return errors.Wrapf(err, "create trash")
	}
	to := filepath.Join(t.dir, ulid.Make().String())
	if err := os.Rename(path, to); err != nil {
		if errors.IsNotExist(err) {
			return nil
		}
		return errors.Wrapf(err, "throw away")
	}
	if !t.pending.Go(func() { discard(to) }) {
		discard(to)
	}
	return nil
}

// discardTries is how often a directory is removed in which a process that was just killed may still create files.
const discardTries = 5

// discard removes a directory. What is left is removed by the next server.
func discard(dir string) {
	for n := range discardTries {
		if os.RemoveAll(dir) == nil {
			return
		}
		<-time.After(time.Duration(n) * 20 * time.Millisecond)
	}
}

// close waits for the removals.
func (t *trash) close() { t.pending.Close() }
