package fleet

import (
	"io"
	"time"

	"github.com/RelevanceAI/harvest/internal/engine"
)

// ForkRequest contains the fields that the copy of a sandbox does not inherit.
type ForkRequest struct {
	Name string            `json:"name,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
}

// ExecRequest is a command to run.
type ExecRequest struct {
	Args     []string // Args[0] is a path, or a name looked up in PATH
	Merged   bool     // both streams go to Stdout, in order, as described for engine.Command
	Own      bool     // Args[0] is one of Harvest's own programs, as described for engine.Command
	Env      map[string]string
	Workdir  string        // "" means the sandbox's
	User     string        // "" means the sandbox's
	Terminal *engine.Size  // nil: pipes
	Timeout  time.Duration // 0 means the default (30 minutes)
	Stdin    io.Reader     // nil is an empty input
	// InputOnce says that no later server can continue Stdin, as described for engine.Command.
	InputOnce bool
	// Stdout and Stderr receive the output as it is printed. If one is nil, Result contains that stream, limited by
	// Capture; that of a detached command is available through Attach only.
	Stdout, Stderr io.Writer
	Truncated      func(bytes int64) // reports missing output, as described for engine.Stdio
	// Detach keeps the command running when ctx of Exec ends. Only if ctx ends before the start is the command
	// canceled.
	Detach bool
	// Background is for Harvest's own commands that wait for work: while only such commands run, the sandbox is idle.
	// All others keep it from becoming idle until they end, detached or not, also after a restart.
	Background bool
}
