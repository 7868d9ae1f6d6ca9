// Package sandboxtest opens Fleets for tests, on the fake engine with other capabilities.
package sandboxtest

import (
	"cmp"
	"context"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// Main runs the tests of a package whose sandboxes are on the fake engine, without logs.
func Main(m *testing.M) {
	fake.Main()
	logf.Setup(io.Discard, 0, false)
	m.Run()
}

// Engine is the fake engine with the capabilities Can. It records the requests for sandboxes and commands.
type Engine struct {
	*fake.Engine
	Dir   string // of the engine's files
	Can   engine.Capabilities
	Image string                               // ID of the image of every sandbox; empty: the requested one
	Play  func(p *Process, cmd engine.Command) // runs in place of each command; nil: commands are real

	mu       sync.Mutex
	specs    []engine.Spec    // guarded by mu
	commands []engine.Command // guarded by mu
}

// New opens an Engine that cannot find its sandboxes after a restart, so that Fleets end them in Close.
func New(t *testing.T) *Engine {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "engine")
	e, err := fake.Open(dir, fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	can := e.Capabilities()
	can.Reopen = false
	return &Engine{Engine: e, Dir: dir, Can: can}
}

// Open opens a Fleet on e, unless opts name a type that embeds e, with records in a database of its own by default. At
// the end of the test it closes both, and checks that no sandbox is left.
func Open(t *testing.T, e *Engine, opts fleet.Options) *fleet.Fleet {
	t.Helper()
	if opts.Engine == nil {
		opts.Engine = e
	}
	if opts.Store == nil {
		opts.Store = testdb.Open(t).Sandboxes()
	}
	fleet, err := fleet.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := fleet.Close(ctx)
		left, listErr := e.List(ctx)
		if err := errors.Join(err, listErr, e.Close()); err != nil || len(left) > 0 {
			t.Errorf("%v, left: %v", err, left)
		}
	})
	return fleet
}

// Capabilities implements engine.Engine.
func (e *Engine) Capabilities() engine.Capabilities { return e.Can }

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, s engine.Spec) (engine.Sandbox, error) {
	e.mu.Lock()
	e.specs = append(e.specs, s)
	e.mu.Unlock()
	s.Image = cmp.Or(e.Image, s.Image)
	sb, err := e.Engine.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return box{sb, e}, nil
}

// Specs returns the requests for sandboxes, in order.
func (e *Engine) Specs() []engine.Spec {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.specs)
}

// Commands returns the commands that were started, in order.
func (e *Engine) Commands() []engine.Command {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.commands)
}

type box struct {
	engine.Sandbox
	e *Engine
}

func (b box) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	b.e.mu.Lock()
	b.e.commands = append(b.e.commands, cmd)
	b.e.mu.Unlock()
	if b.e.Play == nil {
		return b.Sandbox.Start(ctx, cmd)
	}
	p := &Process{done: make(chan struct{})}
	b.e.Play(p, cmd)
	return p, nil
}

// Process is a played command. It runs until End or Kill.
type Process struct {
	engine.Process
	once sync.Once
	exit engine.Exit
	done chan struct{}
}

// End ends the command.
func (p *Process) End(exit engine.Exit) {
	p.once.Do(func() {
		p.exit = exit
		close(p.done)
	})
}

// Ended reports whether the command has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ID implements engine.Process.
func (p *Process) ID() string { return "p1" }

// Wait implements engine.Process.
func (p *Process) Wait(ctx context.Context) (engine.Exit, error) {
	select {
	case <-p.done:
		return p.exit, nil
	case <-ctx.Done():
		return engine.Exit{}, ctx.Err()
	}
}

// Signal implements engine.Process. The command ignores the signal.
func (p *Process) Signal(context.Context, string) error { return nil }

// Kill implements engine.Process. It takes a second.
func (p *Process) Kill(context.Context) error {
	<-time.After(time.Second)
	p.End(engine.Exit{Code: 137, Signal: "KILL"})
	return nil
}

// Prints returns a Play of commands that print these texts and exit.
func Prints(exit engine.Exit, stdout, stderr string) func(*Process, engine.Command) {
	return func(p *Process, cmd engine.Command) {
		for _, out := range []struct {
			to   io.Writer
			text string
		}{{cmd.Stdout, stdout}, {cmd.Stderr, stderr}} {
			if out.text != "" {
				_, _ = io.WriteString(out.to, out.text)
			}
		}
		p.End(exit)
	}
}
