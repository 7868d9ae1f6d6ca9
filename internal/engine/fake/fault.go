package fake

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Op is an operation into which tests can inject errors and delays.
type Op string

// The operations.
const (
	OpCreate  Op = "create"
	OpOpen    Op = "open"
	OpList    Op = "list"
	OpWarm    Op = "warm"
	OpClaim   Op = "claim"
	OpStart   Op = "start"
	OpCopyIn  Op = "copy in"
	OpCopyOut Op = "copy out"
	OpFiles   Op = "files"
	OpDestroy Op = "destroy"
)

// FailNext makes the next call of op return err. Several errors are returned one per call. With nil, one call
// succeeds.
func (e *Engine) FailNext(op Op, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail[op] = append(e.fail[op], err)
}

// Delay makes every call of op take d longer, unless its context ends. OpCreate, which also applies to Warm,
// waits after half of the work. OpOpen and OpList do not wait.
func (e *Engine) Delay(op Op, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.delay[op] = d
}

// Lose makes the sandbox with that Spec.ID vanish, as after a power failure.
func (e *Engine) Lose(id string) error {
	sb, err := e.byID(id)
	if err != nil {
		return err
	}
	return sb.destroy(context.Background(), engine.End{Lost: true, Detail: "It is lost."})
}

// EndOOM ends the sandbox with that Spec.ID as if it had run out of memory. It still must be destroyed.
func (e *Engine) EndOOM(id string) error {
	sb, err := e.byID(id)
	if err != nil {
		return err
	}
	sb.finish(engine.End{OutOfMemory: true, Detail: "It used more memory than its limit."})
	if err := sb.save(); err != nil {
		return err
	}
	return sb.table().KillAll(context.Background())
}

func (e *Engine) byID(id string) (*sandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, sb := range e.sandboxes {
		if sb.Handle().ID == id {
			return sb, nil
		}
	}
	return nil, errors.Newf(errors.NotFound, "there is no sandbox %.100s", id)
}

func (e *Engine) fault(op Op) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.fail[op]) == 0 {
		return nil
	}
	err := e.fail[op][0]
	e.fail[op] = e.fail[op][1:]
	return err
}

func (e *Engine) pause(ctx context.Context, op Op) error {
	e.mu.Lock()
	d := e.delay[op]
	e.mu.Unlock()
	if d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	return errors.Wrapf(ctx.Err(), "%s", op)
}
