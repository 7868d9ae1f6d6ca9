// Package volume provides named file trees that outlive sandboxes.
package volume

import (
	"context"
	"io"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Provider stores volumes. It is safe for concurrent use.
type Provider interface {
	// Create returns the volume of that name, and creates it if missing. It returns Invalid for an
	// invalid name.
	Create(ctx context.Context, name string) (Volume, error)
	// Open returns an existing volume, or NotFound.
	Open(ctx context.Context, name string) (Volume, error)
	// List returns all volumes, sorted by name.
	List(ctx context.Context) ([]Info, error)
	// Delete removes a volume and its files. It returns NotFound if the volume does not exist, and
	// Conflict while a sandbox uses it.
	Delete(ctx context.Context, name string) error
}

// Volume is a named file tree. Paths are slash-separated and relative to the volume; "" and "/" are
// its root. Paths that leave the volume, also through symbolic links, are Invalid.
type Volume interface {
	Name() string
	// Commit flushes everything that sandboxes have written to the disk. Reload makes changes of
	// other machines visible.
	Commit(ctx context.Context) error
	Reload(ctx context.Context) error
	// CopyIn and CopyOut work like those of engine.Sandbox.
	CopyIn(ctx context.Context, dir string, tar io.Reader) error
	CopyOut(ctx context.Context, path string) (io.ReadCloser, error)
	// ReadDir lists a directory, sorted by name, or returns NotFound.
	ReadDir(ctx context.Context, dir string) ([]Entry, error)
	// Remove removes a file or a whole directory, or returns NotFound.
	Remove(ctx context.Context, path string) error
}

// Directory is implemented by volumes whose files are in a directory of this machine.
type Directory interface {
	// Dir returns the directory, or "". Its content may be hostile.
	Dir() string
	// Notes returns a directory for records about the volume, such as its last sync. It is outside
	// of the volume's files and is deleted with the volume. Writers must create it. It is "" if Dir
	// is.
	Notes() string
	// Use marks the volume as used by who until release is called. release may be called more than
	// once. Use returns NotFound if the volume was deleted.
	Use(who string) (release func(), err error)
}

// Info describes a volume in a List.
type Info struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created_at"`
	Size    int64     `json:"size_bytes"` // of its files
	Files   int64     `json:"files"`
}

// Entry is an entry of a directory.
type Entry struct {
	Name     string    `json:"name"`
	Mode     uint32    `json:"mode"` // as in struct stat: type and permission bits
	Size     int64     `json:"size_bytes"`
	Modified time.Time `json:"modified_at"`
	Link     string    `json:"link,omitempty"` // target of a symbolic link
}

var namePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// CheckName returns Invalid if name is not valid for a volume.
func CheckName(name string) error {
	if !namePattern().MatchString(name) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.150q cannot be a volume's name", name),
			"use 1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit")
	}
	return nil
}
