package main

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/claude"
)

// The measures of P6. Its peer is Harvest itself.
const (
	firstWord    = "create, until the agent's first line after a prompt"
	takeMemory   = "checkpoint of the started agent, until it is durable"
	startedAnew  = "the agent started anew"
	agentTimeout = time.Minute
)

// asked is an agent's program with its prompt.
type asked struct {
	stdin io.WriteCloser
	mu    sync.Mutex
	lines int           // guarded by mu
	more  chan struct{} // guarded by mu; closed with the next line
}

func newAsked() (*asked, engine.Stdio) {
	in, stdin := io.Pipe()
	a := &asked{stdin: stdin, more: make(chan struct{})}
	return a, engine.Stdio{Stdin: in, Stdout: a, Stderr: io.Discard}
}

func (a *asked) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := bytes.Count(p, []byte("\n")); n > 0 {
		a.lines += n
		close(a.more)
		a.more = make(chan struct{})
	}
	return len(p), nil
}

// tell writes a line and waits for one.
func (a *asked) tell(ctx context.Context, line []byte) error {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	a.mu.Lock()
	before := a.lines
	a.mu.Unlock()
	if _, err := a.stdin.Write(line); err != nil {
		return errors.Wrapf(err, "write to the agent")
	}
	for {
		a.mu.Lock()
		lines, more := a.lines, a.more
		a.mu.Unlock()
		if lines > before {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "wait for the agent")
		}
	}
}

// agentLibrary opens the library that contains the agent image: the run's, or the one beside it that tests have
// built. It also returns the library's directory.
func (l *lab) agentLibrary(ctx context.Context) (images *image.Library, dir, id string, err error) {
	for _, dir := range []string{l.opts.images, filepath.Join(l.opts.images+"-agent", "images")} {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		images, err := image.OpenLibrary(dir, image.Sources{})
		if err != nil {
			return nil, "", "", err
		}
		if img, err := images.Find(ctx, "agent"); err == nil {
			return images, dir, img.ID, nil
		}
	}
	return nil, "", "",
		errors.Errorf("its image is not there: \"harvest image build agent\", and -images names the library")
}

// P6
func benchPrepared(ctx context.Context, l *lab, r *recorder) (err error) {
	images, _, id, err := l.agentLibrary(ctx)
	if err != nil {
		r.missing("Claude Code", err)
		return nil
	}
	dir := filepath.Join(l.dir, "prepared")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return errors.Wrapf(err, "make a data directory")
	}
	e, err := gvisor.Open(ctx, gvisor.Options{Dir: dir, Images: images, Executable: l.programs.Keeper,
		Sentry: l.programs.Sentry, Tools: l.programs.Tools})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	spec := engine.Spec{ID: "agent", Image: id, Limits: l.limits, Network: engine.Network{Mode: engine.NetworkNone}}
	first, take := r.measure(firstWord, "ms"), r.measure(takeMemory, "ms")
	first.Aim = &Aim{Peer: startedAnew, AtMost: 0.2}
	checkpoint := filepath.Join(dir, "checkpoint")
	process, err := l.checkpointed(ctx, e, spec, checkpoint, r, take)
	if err != nil {
		return err
	}
	size, err := sizeOf(checkpoint)
	if err != nil {
		return err
	}
	r.note("the checkpoint has %.0f MiB, without the image; the model cannot be reached, and the first line comes before it is asked", float64(size)/(1<<20))
	return r.turns(ctx, r.count(1, 10), []*Measure{first}, side{harvest, func(ctx context.Context) (sample, error) {
		spec := spec
		spec.Checkpoint, spec.Image = checkpoint, ""
		return inSandbox(ctx, e, spec, func(sb engine.Sandbox) error {
			a, stdio := newAsked()
			defer a.stdin.Close()
			if _, err := sb.(engine.ProcessOpener).OpenProcess(ctx, process, stdio); err != nil {
				return err
			}
			return a.tell(ctx, conversation().Prompt("", "hello"))
		})
	}}, side{startedAnew, func(ctx context.Context) (sample, error) {
		return inSandbox(ctx, e, spec, func(sb engine.Sandbox) error {
			a, _, err := startAgent(ctx, sb)
			if err != nil {
				return err
			}
			defer a.stdin.Close()
			return a.tell(ctx, conversation().Prompt("", "hello"))
		})
	}})
}

func conversation() agent.Conversation { return claude.Agent{}.Open(agent.Setup{}) }

// inSandbox measures from the creation of a sandbox to the end of work in it.
func inSandbox(ctx context.Context, e *gvisor.Engine, spec engine.Spec,
	work func(sb engine.Sandbox) error) (s sample, err error) {
	begin := time.Now()
	sb, err := e.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sb.Destroy(context.WithoutCancel(ctx))) }()
	if err := work(sb); err != nil {
		return nil, err
	}
	return sample{firstWord: ms(time.Since(begin))}, nil
}

// startAgent starts Claude Code without a reachable model.
func startAgent(ctx context.Context, sb engine.Sandbox) (*asked, engine.Process, error) {
	a, stdio := newAsked()
	cmd := claude.Agent{}.Command(agent.Setup{Access: &agent.Access{Kind: agent.AccessKey, Token: "none",
		URL: "http://127.0.0.1:1"}})
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio.Stdin, stdio.Stdout, stdio.Stderr
	p, err := sb.Start(ctx, cmd)
	return a, p, err
}

// checkpointed starts an agent, lets it answer once, and makes a checkpoint in dir. It returns the process.
func (l *lab) checkpointed(ctx context.Context, e *gvisor.Engine, spec engine.Spec, dir string, r *recorder,
	take *Measure) (process string, err error) {
	sb, err := e.Create(ctx, spec)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, sb.Destroy(context.WithoutCancel(ctx))) }()
	a, p, err := startAgent(ctx, sb)
	if err != nil {
		return "", err
	}
	defer a.stdin.Close()
	if err := a.tell(ctx, conversation().Begin()); err != nil {
		return "", err
	}
	if err := pause(ctx, quiet); err != nil { // until its background work is done
		return "", err
	}
	err = r.turns(ctx, r.count(1, 5), []*Measure{take}, side{harvest, func(ctx context.Context) (sample, error) {
		if err := os.RemoveAll(dir); err != nil {
			return nil, errors.Wrapf(err, "remove checkpoint")
		}
		return timed(take.Name, func() error { return sb.(engine.Checkpointer).Checkpoint(ctx, dir) })
	}})
	return p.ID(), err
}

// sizeOf returns the bytes of a checkpoint's own files, without those shared with the image.
func sizeOf(dir string) (total int64, err error) {
	all, err := os.ReadDir(dir)
	for _, f := range all {
		info, failed := f.Info()
		if err = errors.Join(err, failed); err == nil && f.Name() != wire.CheckpointRoot &&
			f.Name() != wire.CheckpointInit {
			total += info.Size()
		}
	}
	return total, errors.Wrapf(err, "read checkpoint")
}
