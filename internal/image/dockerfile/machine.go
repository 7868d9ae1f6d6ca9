package dockerfile

import (
	"context"
	"io"
	"time"

	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/mounts"
)

// Runner starts the machines for RUN and for ADD of URLs. They are isolated like any sandbox.
type Runner interface {
	// Start boots a machine. On failure it leaves nothing behind.
	Start(ctx context.Context, setup Setup) (Machine, error)
	// Volumes returns the volumes of machines. RemoveVolume removes one. It returns NotFound if the
	// volume does not exist, and Conflict while a machine uses it.
	Volumes(ctx context.Context) ([]Volume, error)
	RemoveVolume(ctx context.Context, name string) error
}

// Volume is a volume of machines.
type Volume struct {
	Name    string
	Size    int64 // bytes
	Created time.Time
}

// Setup configures a machine.
type Setup struct {
	Image   string  // id of an image, or of a root file system of a Cache
	Network string  // "default" or "none"
	Mounts  []Mount // volumes; created if missing
	Title   string  // shown in lists of machines
	Bare    bool    // without /tmp, which the image lacks
}

// Mount is a volume of a machine.
type Mount struct {
	Volume, Path string
	ReadOnly     bool
}

// FileMount mounts a file or directory of a machine, or an empty directory, at a path.
type FileMount = mounts.Mount

// MountProgram is the program in machines for Mount and Unmount (engine.Command.Own).
const MountProgram = mounts.Program

// Machine runs the commands of a stage.
type Machine interface {
	// Run runs a command to its end and returns its exit code. If ctx ends, the command is killed.
	Run(ctx context.Context, cmd Command) (int, error)
	// CopyIn unpacks a tar stream below dir, with owners, modes and times.
	CopyIn(ctx context.Context, dir string, tar io.Reader) error
	// Mount mounts files over those of the machine, until Unmount. It makes missing mount points.
	Mount(ctx context.Context, all []FileMount) error
	// Unmount ends these mounts, and removes the mount points that Mount made unless files are in them. It also
	// removes files of the machine.
	Unmount(ctx context.Context, files ...string) error
	// Snapshot writes the difference to the image as an OCI layer.
	Snapshot(ctx context.Context, w io.Writer) error
	// Close ends the machine and removes all its data, even if ctx has ended. It is idempotent.
	Close(ctx context.Context) error
}

// Command is a command to run in a Machine.
type Command struct {
	Args      []string
	Env       map[string]string
	Dir, User string
	// Stdout gets both streams, in the order in which the command writes, if Stderr is nil.
	Stdout, Stderr io.Writer
	// Crashed, if set, is called if the command failed and one of its processes died of a
	// signal such as SIGSEGV that no process had sent.
	Crashed func(what string)
}

// Images is the interface to the library that builds need.
type Images interface {
	image.Builder
	// Root returns the path of the image's EROFS file, and Layer that of a snapshot's layer over
	// it, "" for other images.
	Root(img image.Image) string
	Layer(img image.Image) string
	// Use protects the image from deletion until release is called.
	Use(id, who string) (release func(), err error)
}
