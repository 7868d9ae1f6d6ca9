package wire

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Names of the files in a checkpoint's directory.
const (
	CheckpointFile  = "checkpoint.json" // a Saved; written last
	CheckpointRoot  = "root.erofs"      // the image
	CheckpointInit  = "init.erofs"      // the init program's image
	CheckpointState = "kernel"          // gVisor's kernel
	CheckpointIndex = "pages.index"     // positions of the memory pages in CheckpointPages
	CheckpointPages = "pages"           // memory, and the writable layer
)

// Saved is the description of a checkpoint.
type Saved struct {
	Version   string          // version of gVisor
	Platform  string          // platform of gVisor
	Rootless  bool            // the sandbox used a single user of this machine
	Ref       string          // name of the sandbox, part of its containers' names
	Prepared  bool            // its container was prepared
	Hostname  string          // passed to its init program
	MachineID string          // as its init program wrote it
	Claim     ClaimArgs       // defaults of new commands
	Limits    engine.Limits   // limits of the sandbox
	Commands  []SavedCommand  // commands that continue
	Started   int             // number of commands ever started
	Files     map[string]File // the other files in the directory
}

// File verifies the integrity of a checkpoint's file.
type File struct {
	Size int64
	Sum  uint32 // CRC-32C
}

// SavedCommand is a command that continues after a restore.
type SavedCommand struct {
	ID      string
	Args    []string
	Started time.Time
	PID     int32 // in the sandbox
	Inside  int32 // PID in its container
	Number  int   // number of its first file (layer.KeptFile)
	Stdin   bool  // its input is open
}

// GVisor is the version of gVisor that Harvest is built with. A checkpoint must have the same version; gVisor
// itself only compares the versions of its own releases. A test compares it with go.mod.
const GVisor = "v0.0.0-20260905035102-160fafc42237"

// maxSaved is the maximum size of CheckpointFile.
const maxSaved = 16 << 20

// ReadSaved reads the description of the checkpoint in dir. NotFound: dir has no checkpoint. Invalid: it is not
// a valid one.
func ReadSaved(dir string) (*Saved, error) {
	name := filepath.Join(dir, CheckpointFile)
	info, err := os.Stat(name)
	if errors.IsNotExist(err) {
		return nil, errors.Remedy(errors.Explainf(err, errors.NotFound, "checkpoint not found"),
			"make another one of a running sandbox")
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

// ParseSaved parses the content of CheckpointFile. Invalid: it is damaged.
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

// Damaged returns the error for a checkpoint whose files are damaged.
func Damaged(err error) error {
	return errors.Remedy(errors.Explainf(err, errors.Invalid, "the checkpoint is damaged"),
		"remove it, and make another one of a running sandbox")
}
