package dockerfile

import (
	"context"
	"io"
	"time"

	"github.com/RelevanceAI/harvest/image"
)

// Runner starts the machines in which RUN and ADD of URLs happen. They are as isolated as any sandbox.
type Runner interface {
	// Start boots a machine. On failure nothing is left behind.
	Start(ctx context.Context, setup Setup) (Machine, error)
	// Volumes returns the volumes that machines had. RemoveVolume removes one: NotFound if there is none, Conflict while a machine has it.
	Volumes(ctx context.Context) ([]Volume, error)
	RemoveVolume(ctx context.Context, name string) error
}

// Volume is a volume that machines had.
type Volume struct {
	Name    string
	Size    int64 // bytes
	Created time.Time
}

// Setup is what a machine is like.
type Setup struct {
	Image   string  // id of an image, or of what a Cache has prepared
	Network string  // "default" or "none"
	Mounts  []Mount // volumes, made if missing
	Title   string  // for people who list what runs
}

// Mount puts a volume at a path.
type Mount struct {
	Volume, Path string
	ReadOnly     bool
}

// Machine is where the commands of a stage run.
type Machine interface {
	// Run runs a command to its end and returns its exit code. When ctx ends, the command is killed.
	Run(ctx context.Context, cmd Command) (int, error)
	// CopyIn unpacks a tar stream below dir, with owners, modes and times.
	CopyIn(ctx context.Context, dir string, tar io.Reader) error
	// Snapshot writes what differs from the image as a layer in the form of OCI.
	Snapshot(ctx context.Context, w io.Writer) error
	// Close ends the machine, also if ctx has ended, and removes all of it. It is repeatable.
	Close(ctx context.Context) error
}

// Command is what runs in a Machine.
type Command struct {
	Args           []string
	Env            map[string]string
	Dir, User      string
	Stdout, Stderr io.Writer
	// Crashed, if set, is called when the command failed and a process of it had died of a signal such as SIGSEGV, which nobody had sent.
	Crashed func(what string)
}

// Images is what builds need of the library.
type Images interface {
	image.Builder
	// Root returns the path of the image's EROFS file, and Layer that of what a snapshot has over it, "" for other images.
	Root(img image.Image) string
	Layer(img image.Image) string
	// Use keeps the image from being deleted until release.
	Use(id, who string) (release func(), err error)
}
