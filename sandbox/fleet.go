package sandbox

import (
	"context"
	"io"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
)

// Fleet runs the sandboxes of one engine. All methods may be called concurrently. A ref is an id, a unique beginning of one, or
// the name of a sandbox that has not ended; sandboxes of other accounts are NotFound.
type Fleet struct{}

var errSoon = errors.Newf(errors.Unavailable, "this part is being written")

// Open recovers what an earlier Fleet on the same engine and store left, and starts the reaper and the warm pool.
func Open(ctx context.Context, opts Options) (*Fleet, error) { return nil, errSoon }

// Close stops watching; sandboxes and their commands keep running, except for warm ones that nobody claimed.
func (f *Fleet) Close(ctx context.Context) error { return errSoon }

// Create makes a sandbox that is ready for commands. On failure the record says so, and the error names the stage.
// Kinds: Invalid, Unsupported, NotFound (image), Conflict (name), Exhausted (quota), and those of engine.Create.
func (f *Fleet) Create(ctx context.Context, account string, req Request) (Sandbox, error) {
	return Sandbox{}, errSoon
}

// Get returns the sandbox of that ref. Invalid if ref is ambiguous.
func (f *Fleet) Get(ctx context.Context, account, ref string) (Sandbox, error) {
	return Sandbox{}, errSoon
}

// List returns sandboxes, newest first.
func (f *Fleet) List(ctx context.Context, account string, filter Filter) ([]Sandbox, error) {
	return nil, errSoon
}

// Extend gives the sandbox timeout to live from now and sets its idle limit; 0 leaves either as it is.
func (f *Fleet) Extend(ctx context.Context, account, ref string, timeout, idle time.Duration) (Sandbox, error) {
	return Sandbox{}, errSoon
}

// Destroy ends the sandbox: running commands get TERM and a moment, then everything is released. It is repeatable.
// When releasing fails, the record says so, the error is returned, and the Fleet goes on trying.
func (f *Fleet) Destroy(ctx context.Context, account, ref string) error { return errSoon }

// Exec starts a command. When ctx ends, the command is killed, unless it is detached.
func (f *Fleet) Exec(ctx context.Context, account, ref string, req ExecRequest) (*Execution, error) {
	return nil, errSoon
}

// ExecCode is Exec for Python code: req.Args must be empty, and its standard input is free for the code to read.
func (f *Fleet) ExecCode(ctx context.Context, account, ref, code string, req ExecRequest) (*Execution, error) {
	return nil, errSoon
}

// Processes lists the commands started in the sandbox, ended ones included as long as their output is kept.
func (f *Fleet) Processes(ctx context.Context, account, ref string) ([]engine.ProcessInfo, error) {
	return nil, errSoon
}

// Attach connects to a command that was started earlier: all output that is kept is written, then what follows. The end of
// ctx ends the attachment, not the command.
func (f *Fleet) Attach(ctx context.Context, account, ref, processID string, stdio engine.Stdio) (*Execution, error) {
	return nil, errSoon
}

// CopyIn unpacks a tar stream below dir, as engine.Sandbox has it.
func (f *Fleet) CopyIn(ctx context.Context, account, ref, dir string, tar io.Reader) error {
	return errSoon
}

// CopyOut returns a tar stream of path, as engine.Sandbox has it. The caller closes it.
func (f *Fleet) CopyOut(ctx context.Context, account, ref, path string) (io.ReadCloser, error) {
	return nil, errSoon
}

// Capabilities says what the engine can do.
func (f *Fleet) Capabilities() engine.Capabilities { return engine.Capabilities{} }

// Stats returns counts of all accounts.
func (f *Fleet) Stats() Stats { return Stats{} }

// Execution is a command that was started or attached to. All methods may be called concurrently.
type Execution struct{}

// ID names the process within its sandbox, for Attach.
func (x *Execution) ID() string { return "" }

// SandboxID is the sandbox's.
func (x *Execution) SandboxID() string { return "" }

// Wait returns how the command ended. Time limits, cancellation and the end of the sandbox are Results too; an error means that
// we do not know how it ended. The end of this ctx ends the waiting only.
func (x *Execution) Wait(ctx context.Context) (Result, error) { return Result{}, errSoon }

// Signal sends a signal by its name, such as "TERM". Invalid for an unknown name.
func (x *Execution) Signal(ctx context.Context, name string) error { return errSoon }

// Resize sets the size of the terminal. Conflict if the command has none.
func (x *Execution) Resize(ctx context.Context, size engine.Size) error { return errSoon }

// Kill ends the command and everything that it started.
func (x *Execution) Kill(ctx context.Context) error { return errSoon }

// Executor runs code, each piece in a fresh sandbox (mission A1).
type Executor struct {
	Fleet   *Fleet
	Account string
	Request Request // of every sandbox; the zero value will do
}

// Execute runs Python code and returns what it did. Whatever happens to the code, its failure, time limit and end for lack of
// memory included, is a Result; an error means that it did not run. Nothing of the sandbox is left behind.
// timeout 0 means 30 minutes.
func (e Executor) Execute(ctx context.Context, code string, timeout time.Duration) (Result, error) {
	return Result{}, errSoon
}

func decodeRequest(data []byte) (Request, error) { return Request{}, errSoon }
