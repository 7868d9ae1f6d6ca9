package inside

import (
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/engine/proc"
)

// ownerName is the file next to the commands' directories that names the sandbox they belong to.
const ownerName = "owner"

// inherit handles commands in the image, which exist if it is a snapshot of a sandbox. Commands of another
// sandbox are deleted. Those of the same sandbox, which was carried over, are kept, and marked as ended if they
// were running.
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
	return atomicfile.Write(file, []byte(id), 0o600)
}
