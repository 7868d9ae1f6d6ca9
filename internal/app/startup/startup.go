// Package startup is the contract between a command that starts a background server and that server.
package startup

import (
	"encoding/json"
	"io"
	"os"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	// LogName is the name of the log in the data directory.
	LogName = "server.log"
	// LogLimit is the size in bytes at which the log is rotated. One old log is kept.
	LogLimit = 16 << 20
	// StageEngine is the step of a server's start that opens the engine.
	StageEngine = "engine"
	// ReadyFD is where the server reports that it is ready, or why it is not.
	ReadyFD = 3
)

// Readiness is that report.
type Readiness struct {
	Problem *api.Problem `json:"problem,omitempty"` // nil: the server is ready
}

// Report sends the report to the command; a nil error means that the server is ready. The command may be gone,
// which changes nothing.
func Report(err error) {
	pipe := os.NewFile(ReadyFD, "ready")
	var r Readiness
	if err != nil {
		r.Problem = &api.Problem{Code: string(errors.KindOf(err)), Detail: errors.Message(err),
			Stage: errors.StageOf(err), Remedy: errors.RemedyOf(err)}
	}
	_ = json.NewEncoder(pipe).Encode(r)
	_ = pipe.Close()
}

// Await reads the report.
func Await(r io.Reader) (Readiness, error) {
	var answer Readiness
	err := json.NewDecoder(r).Decode(&answer)
	return answer, err
}
