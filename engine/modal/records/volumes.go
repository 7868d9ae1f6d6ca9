package records

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/volume"
)

// Volumes are the records of volumes, a file each.
type Volumes struct {
	Dir string // must exist

	mu sync.Mutex // held while records are written or read
}

// Volume is the record of a volume.
type Volume struct {
	Name    string    `json:"name"`  // as in volume.Stored
	Modal   string    `json:"modal"` // its name at Modal
	Created time.Time `json:"created_at"`
	Made    bool      `json:"made,omitempty"` // Modal has it, with its initial directories
	// Size and Files are as of the last time that Harvest measured the volume.
	Size  int64 `json:"size_bytes"`
	Files int64 `json:"files"`
}

// Digest returns a valid file name for any text.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

func (v *Volumes) path(name string) string { return filepath.Join(v.Dir, Digest(name)+".json") }

func readVolume(file string) (n Volume, err error) {
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	return n, errors.Wrapf(err, "read the record of a volume")
}

// Find returns the record of a volume, which Modal may not have yet. Invalid for a bad name, NotFound without a record.
func (v *Volumes) Find(name string) (Volume, error) {
	if err := volume.CheckStored(name); err != nil {
		return Volume{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	n, err := readVolume(v.path(name))
	if errors.IsNotExist(err) {
		return n, volume.NoVolume(name)
	}
	return n, err
}

// Made returns the record of a volume that Modal has. Kinds: those of Find.
func (v *Volumes) Made(name string) (Volume, error) {
	n, err := v.Find(name)
	if err == nil && !n.Made {
		err = volume.NoVolume(name)
	}
	return n, err
}

// All returns the records of all volumes that Modal has.
func (v *Volumes) All() ([]Volume, error) {
	files, err := filepath.Glob(filepath.Join(v.Dir, "*.json"))
	if err != nil {
		return nil, errors.Wrapf(err, "list the volumes")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []Volume
	for _, file := range files {
		n, err := readVolume(file)
		if errors.IsNotExist(err) {
			continue // it was deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		if n.Made {
			all = append(all, n)
		}
	}
	return all, nil
}

// Write stores a record, and replaces an earlier one.
func (v *Volumes) Write(n Volume) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.write(n)
}

// write is Write with mu held.
func (v *Volumes) write(n Volume) error {
	data, err := json.Marshal(n)
	if err == nil {
		err = atomicfile.Write(v.path(n.Name), data, 0o600)
	}
	return errors.Wrapf(err, "record a volume")
}

// Change updates a record. NotFound if it was removed meanwhile.
func (v *Volumes) Change(name string, change func(*Volume)) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, err := readVolume(v.path(name))
	if errors.IsNotExist(err) {
		return volume.NoVolume(name)
	}
	if err != nil {
		return err
	}
	change(&n)
	return v.write(n)
}

// Remove removes a record, if there is one.
func (v *Volumes) Remove(name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := os.Remove(v.path(name)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "remove the record of a volume")
	}
	return nil
}
