package preparation

import (
	"context"
	"io"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/container"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// Later are lifecycle commands of a dev container.
type Later struct {
	Config string   // path of the devcontainer.json
	Hooks  []string // names of the commands, in their order

	container *container.Environment
	box       shell.Sandbox
}

// Run runs the commands, and reports each that has ended. out returns the writer for the output of a command, which may
// be called concurrently. After a failure no more commands run.
func (l *Later) Run(ctx context.Context, out func(name string) io.Writer, report func(records.Stage)) error {
	for _, name := range l.Hooks {
		if !l.container.Has(name) {
			continue
		}
		if err := stage(name, report, func() error {
			return l.container.Run(ctx, l.box, out(name), name)
		}); err != nil {
			return err
		}
	}
	return nil
}

// stage runs a step and reports its duration.
func stage(name string, report func(records.Stage), run func() error) error {
	begin := time.Now()
	if err := run(); err != nil {
		return errors.Stage(err, name) // the innermost stage counts
	}
	report(records.Stage{Name: name, MS: float64(time.Since(begin).Microseconds()) / 1000})
	return nil
}
