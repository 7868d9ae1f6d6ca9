// Package volume provides named file trees that outlive sandboxes.
package volume

import (
	"context"
	"io"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
)

// Provider keeps volumes. All methods may be called concurrently.
type Provider interface {
	// Create returns the volume of that name, made if missing. Invalid for a bad name.
	Create(ctx context.Context, name string) (Volume, error)
	// Open returns an existing volume. NotFound otherwise.
	Open(ctx context.Context, name string) (Volume, error)
	// List returns all volumes by name.
	List(ctx context.Context) ([]Info, error)
	// Delete removes a volume and its files. NotFound if there is none, Conflict while a sandbox uses it.
	Delete(ctx context.Context, name string) error
}

// Volume is a named file tree. Paths are slash-separated and relative to the volume; "" and "/" are its root. No path
// leaves the volume, through symbolic links neither: such paths are Invalid.
type Volume interface {
	Name() string
	// Commit returns when everything that sandboxes have written is durable. Reload makes what others wrote visible here.
	Commit(ctx context.Context) error
	Reload(ctx context.Context) error
	// CopyIn and CopyOut are as engine.Sandbox has them.
	CopyIn(ctx context.Context, dir string, tar io.Reader) error
	CopyOut(ctx context.Context, path string) (io.ReadCloser, error)
	// ReadDir lists a directory, by name. NotFound if there is none.
	ReadDir(ctx context.Context, dir string) ([]Entry, error)
	// Remove removes a file or a whole directory. NotFound if there is none.
	Remove(ctx context.Context, path string) error
}

// Directory is what a volume whose files are a directory of this machine also is.
type Directory interface {
	// Dir is the directory, "" if there is none after all. What is in it may be hostile.
	Dir() string
	// Notes is a directory for what is remembered of the volume, such as its last sync: not one of its files, and gone with it. Whoever
	// writes there makes it. "" where Dir is.
	Notes() string
	// Use marks the volume as used by who until release is called, which may be repeated. NotFound if it is gone.
	Use(who string) (release func(), err error)
}

// Info is a volume as List shows it.
type Info struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created_at"`
	Size    int64     `json:"size_bytes"` // of its files
	Files   int64     `json:"files"`
}

// Entry of a directory.
type Entry struct {
	Name     string    `json:"name"`
	Mode     uint32    `json:"mode"` // as in struct stat: type and permission bits
	Size     int64     `json:"size_bytes"`
	Modified time.Time `json:"modified_at"`
	Link     string    `json:"link,omitempty"` // target of a symbolic link
}

var namePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// CheckName returns Invalid if name cannot be a volume's.
func CheckName(name string) error {
	if !namePattern().MatchString(name) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.150q cannot be a volume's name", name),
			"use 1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit")
	}
	return nil
}
