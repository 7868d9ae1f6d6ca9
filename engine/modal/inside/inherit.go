package inside

import (
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/engine/proc"
	"github.com/RelevanceAI/harvest/errors"
)

// ownerName is the file beside the commands' directories that says whose commands they are.
const ownerName = "owner"

// inherit deals with what the image has of commands, because it is a snapshot of a sandbox: those of another sandbox are forgotten; those of
// the same one, which was carried over, are kept, and what ran has ended.
func inherit(dir, id string) error {
	file := filepath.Join(filepath.Dir(dir), ownerName)
	owner, err := os.ReadFile(file)
	if err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "look for earlier commands")
	}
	if string(owner) == id {
		return proc.EndAll(dir)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return errors.Wrapf(err, "look for earlier commands")
	}
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(dir, name.Name())); err != nil {
			return errors.Wrapf(err, "forget the commands of another sandbox")
		}
	}
	return proc.WriteFile(file, []byte(id))
}
