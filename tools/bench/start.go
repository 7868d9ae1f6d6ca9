package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// The measures of P1 and P2, from the request until the output is complete and until the command's end is
// known. A peer's second figure includes the removal of the container, which Harvest does afterwards.
const (
	printed = "until it has printed"
	exited  = "until it has ended"
	ready   = "until ready for commands"
)

var hello = []string{"python3", "-c", "print(1)"}

// stamp is a writer that records when the output was complete.
type stamp struct {
	want string
	got  bytes.Buffer
	at   time.Time
}

func (s *stamp) Write(p []byte) (int, error) {
	s.got.Write(p)
	if s.at.IsZero() && s.got.Len() >= len(s.want) {
		s.at = time.Now()
	}
	return len(p), nil
}

// since returns the time from begin until the output was complete. It fails if the output is not the expected
// one.
func (s *stamp) since(begin time.Time) (time.Duration, error) {
	if s.got.String() != s.want {
		return 0, errors.Errorf("it printed %q instead of %q", s.got.String(), s.want)
	}
	return s.at.Sub(begin), nil
}

// helloSandbox creates a sandbox and runs the print command. The sandbox stays until destroy.
func (l *lab) helloSandbox(ctx context.Context,
	req spec.Request) (s sample, sb record.Sandbox, destroy func() error, err error) {
	begin := time.Now()
	sb, destroy, err = l.create(ctx, req)
	if err != nil {
		return nil, sb, func() error { return nil }, err
	}
	s = sample{ready: ms(time.Since(begin))}
	out := &stamp{want: "1\n"}
	if err = l.exec(ctx, sb.ID, fleet.ExecRequest{Args: hello, Stdout: out}); err != nil {
		return nil, sb, destroy, err
	}
	s[exited] = ms(time.Since(begin))
	took, err := out.since(begin)
	s[printed] = ms(took)
	return s, sb, destroy, err
}

// container is Harvest's side with containers.
const container = "container"

// inContainer adds Harvest's side with containers, unless this machine has none.
func (r *recorder) inContainer(sides []side, run func(context.Context) (sample, error)) []side {
	if r.lab.noContainers != nil {
		r.missing(container, r.lab.noContainers)
		return sides
	}
	return append(sides, side{container, run})
}

// helloIn is Harvest's side of P1 and P2 with sandboxes of a kind, with the stages from the sandbox's record. There are
// no warm containers.
func (l *lab) helloIn(ctx context.Context, kind string) (sample, error) {
	s, sb, destroy, err := l.helloSandbox(ctx, spec.Request{Isolation: kind})
	err = errors.Join(err, destroy())
	if err == nil && sb.Warm != (l.warm > 0 && kind == engine.GVisor) {
		err = errors.Errorf("the sandbox was warm: %t", sb.Warm)
	}
	if err != nil {
		return nil, err
	}
	for _, stage := range sb.Stages {
		s["stage "+stage.Name] += stage.MS
	}
	return s, nil
}

// helloRun is a peer's side of P1 and P2.
func (o *oci) helloRun(bundle string) side {
	return side{o.name, func(ctx context.Context) (sample, error) {
		id := o.id()
		s, err := timeHello(o.command(ctx, "run", "--bundle", bundle, id).run)
		if err != nil {
			return nil, errors.Join(err, o.remove(context.WithoutCancel(ctx), id))
		}
		delete(o.live, id) // `run` has removed it
		return s, nil
	}}
}

func timeHello(run func(*stamp) error) (sample, error) {
	out := &stamp{want: "1\n"}
	begin := time.Now()
	if err := run(out); err != nil {
		return nil, err
	}
	end := time.Since(begin)
	took, err := out.since(begin)
	return sample{printed: ms(took), exited: ms(end)}, err
}

// bwrap returns bubblewrap's command line for args on the image's files.
func (l *lab) bwrap(ctx context.Context, options []string, args ...string) *exec.Cmd {
	all := append([]string{"--bind", l.files, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
		"--unshare-all", "--die-with-parent",
		"--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8"}, options...)
	cmd := exec.CommandContext(ctx, "bwrap", append(all, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// noBwrap returns why bubblewrap is unavailable, nil if it works.
func (l *lab) noBwrap(ctx context.Context) error {
	if l.noFiles != nil {
		return l.noFiles
	}
	out, err := l.bwrap(ctx, nil, "true").CombinedOutput()
	if err != nil {
		return errors.Errorf("bwrap: %v: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func benchCold(ctx context.Context, l *lab, r *recorder) error { return benchStart(ctx, l, r, 0, 2.5) }
func benchWarm(ctx context.Context, l *lab, r *recorder) error { return benchStart(ctx, l, r, 1, 1) }

func benchStart(ctx context.Context, l *lab, r *recorder, warm int, aim float64) error {
	if err := l.use(ctx, warm); err != nil {
		return err
	}
	toPrint, toEnd := r.measure(printed, "ms"), r.measure(exited, "ms")
	toPrint.Aim, toEnd.Aim = &Aim{Peer: "runc", AtMost: aim}, &Aim{Peer: "runc", AtMost: aim}
	in := func(kind string) func(context.Context) (sample, error) {
		return func(ctx context.Context) (sample, error) { return l.helloIn(ctx, kind) }
	}
	sides := r.inContainer([]side{{harvest, in(engine.GVisor)}}, in(engine.Container))
	for _, o := range []*oci{l.runc, l.runsc} {
		if o.why != nil {
			r.missing(o.name, o.why)
			continue
		}
		bundle, err := o.bundle(ctx, hello...)
		if err != nil {
			return err
		}
		sides = append(sides, o.helloRun(bundle))
	}
	if err := l.noBwrap(ctx); err != nil {
		r.missing("bwrap", err)
	} else {
		sides = append(sides, side{"bwrap", func(ctx context.Context) (sample, error) {
			return timeHello(func(out *stamp) error {
				cmd := l.bwrap(ctx, nil, hello...)
				cmd.Stdout, cmd.Stderr = out, os.Stderr
				return cmd.Run()
			})
		}})
	}
	for i, s := range sides { // no side runs while the pool is being filled
		sides[i].run = func(ctx context.Context) (sample, error) {
			if err := l.refilled(ctx); err != nil {
				return nil, err
			}
			if err := pause(ctx, settle); err != nil {
				return nil, err
			}
			return s.run(ctx)
		}
	}
	return r.turns(ctx, r.count(3, 30), []*Measure{toPrint, toEnd}, sides...)
}
