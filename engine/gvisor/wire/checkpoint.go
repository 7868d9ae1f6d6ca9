package wire

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
)

// Names of what is in a checkpoint's directory.
const (
	CheckpointFile  = "checkpoint.json" // Saved; written last
	CheckpointRoot  = "root.erofs"      // the image
	CheckpointInit  = "init.erofs"      // the init program's
	CheckpointState = "kernel"          // gVisor's kernel
	CheckpointIndex = "pages.index"     // where which page of memory is
	CheckpointPages = "pages"           // memory, and the writable layer
)

// Saved is what a checkpoint says of itself.
type Saved struct {
	Version   string          // of gVisor
	Platform  string          // of gVisor
	Rootless  bool            // the sandbox had but one user of this machine
	Ref       string          // of the sandbox, which is in the names of its containers
	Prepared  bool            // its container had been prepared
	Hostname  string          // what its init program was told
	MachineID string          `json:",omitempty"` // what its init program was told; "" in checkpoints of earlier versions
	Claim     ClaimArgs       // with which commands start
	Limits    engine.Limits   // that it had
	Commands  []SavedCommand  // that go on
	Started   int             // commands ever
	Files     map[string]File // what is in the directory besides
}

// File is what tells that a file of a checkpoint is whole.
type File struct {
	Size int64
	Sum  uint32 // CRC-32C
}

// SavedCommand is a command that goes on.
type SavedCommand struct {
	ID      string
	Args    []string
	Started time.Time
	PID     int32 // in the sandbox
	Inside  int32 // the same in its container
	Number  int   // of its first file (layer.KeptFile)
	Stdin   bool  // its input is open
}

// GVisor is the version of gVisor that Harvest is built with, which a checkpoint must have: gVisor itself compares but those of its own releases. A
// test holds it against go.mod.
const GVisor = "v0.0.0-20260905035102-160fafc42237"

// maxSaved is the largest CheckpointFile that is read.
const maxSaved = 16 << 20

// ReadSaved reads what the checkpoint in dir says of itself. NotFound: there is none. Invalid: it is not one.
func ReadSaved(dir string) (*Saved, error) {
	name := filepath.Join(dir, CheckpointFile)
	info, err := os.Stat(name)
	if errors.IsNotExist(err) {
		return nil, errors.Remedy(errors.Explainf(err, errors.NotFound, "there is no such checkpoint"), "make another one of a running sandbox")
	}
	if err != nil || info.Size() > maxSaved {
		return nil, errors.Errorf("look at checkpoint %s: %v", name, err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, errors.Wrapf(err, "read checkpoint")
	}
	return ParseSaved(b)
}

// ParseSaved reads what CheckpointFile has. Invalid: it is damaged.
func ParseSaved(b []byte) (*Saved, error) {
	var s Saved
	if err := json.Unmarshal(b, &s); err != nil || s.Ref == "" || len(s.Files) == 0 || s.Started < 0 {
		return nil, Damaged(errors.Errorf("%s: %v", CheckpointFile, err))
	}
	numbers := map[int]bool{}
	for _, c := range s.Commands {
		if c.Number < 0 || numbers[c.Number] || c.PID <= 0 || c.Inside <= 0 || c.ID == "" {
			return nil, Damaged(errors.Errorf("command %+v", c))
		}
		numbers[c.Number] = true
	}
	return &s, nil
}

// Damaged is the error of a checkpoint that is not as it was written.
func Damaged(err error) error {
	return errors.Remedy(errors.Explainf(err, errors.Invalid, "the checkpoint is damaged"), "remove it, and make another one of a running sandbox")
}
