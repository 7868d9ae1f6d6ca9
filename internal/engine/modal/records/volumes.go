package records

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
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

// Find returns the record of a volume, which Modal may not have yet. Invalid for a bad name, NotFound without a record.
func (v *Volumes) Find(name string) (Volume, error) {
	if err := volume.CheckStored(name); err != nil {
		return Volume{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	n, err := read[Volume](v.path(name), "a volume")
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
	v.mu.Lock()
	defer v.mu.Unlock()
	all, err := readAll[Volume](filepath.Join(v.Dir, "*.json"), "a volume")
	return slices.DeleteFunc(all, func(n Volume) bool { return !n.Made }), err
}

// Write stores a record, and replaces an earlier one.
func (v *Volumes) Write(n Volume) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.write(n)
}

// write is Write with mu held.
func (v *Volumes) write(n Volume) error { return write(v.path(n.Name), n, "a volume") }

// Change updates a record. NotFound if it was removed meanwhile.
func (v *Volumes) Change(name string, change func(*Volume)) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, err := read[Volume](v.path(name), "a volume")
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
