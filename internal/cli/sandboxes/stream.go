package sandboxes

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// impatient is how many interrupts end the wait for a command that ignores them.
const impatient = 3

// stream connects this process's input, output, signals and terminal to a command that open starts, and returns
// the command's result.
func (c commands) stream(ctx context.Context, flags cli.ProcessFlags,
	open func(context.Context, client.Streams) (*client.Process, error)) (api.Result, error) {
	building := c.Building()
	defer building.Done()
	streams := client.Streams{Stdout: c.Out, Stderr: c.Err, Progress: building.Update, Truncated: func(bytes int64) {
		c.Notef("%d bytes of the output are missing: the server's disk did not return them", bytes)
	}}
	if f, tty := cli.Terminal(c.In); flags.Interactive && !(tty && background(f)) {
		streams.Stdin = c.In
	}
	// Before the command runs, an interrupt cancels the start. Afterwards it goes to the command.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	// Signals stay caught until the exit: a late signal must not replace the exit code.
	signals := make(chan os.Signal, 16)
	for sig := range forwarded {
		signal.Notify(signals, sig)
	}
	cli.OnResize(signals)
	started := make(chan *client.Process, 1)
	streams.Started = func(p *client.Process) { started <- p }
	go c.forward(ctx, signals, started, flags.Terminal, cancel)

	p, err := open(ctx, streams)
	if err != nil {
		if ctx.Err() != nil {
			return api.Result{}, errors.Explainf(err, errors.Canceled, "interrupted before the start")
		}
		return api.Result{}, err
	}
	building.Done()
	if flags.Terminal {
		restore, err := c.rawTerminal()
		if err != nil {
			return api.Result{}, err
		}
		defer restore()
	}
	res, err := p.Wait(context.WithoutCancel(ctx))
	if err != nil && errors.KindOf(err) == errors.Unavailable {
		// Omit err's own remedy, a retry: it would start a second command.
		err = errors.Remedy(errors.Newf(errors.Unavailable,
			"the connection to the server broke; the command may continue"),
			"see its output with: harvest sandbox logs %s %s", p.SandboxID(), p.ID())
	}
	return res, err
}

// forward passes signals to the command, once it has started, until ctx ends.
func (c commands) forward(ctx context.Context, signals <-chan os.Signal, started <-chan *client.Process,
	tty bool, giveUp func()) {
	var p *client.Process
	interrupts := 0
	for {
		var sig os.Signal
		select {
		case p = <-started:
			c.resize(p, tty)
			continue
		case <-ctx.Done():
			return
		case sig = <-signals:
		}
		if p == nil {
			select {
			case p = <-started: // the command started before the signal
			default:
			}
		}
		switch {
		case isResize(sig):
			c.resize(p, tty)
			continue
		case p == nil:
			giveUp()
			continue
		case sig == syscall.SIGINT:
			interrupts++
		}
		if interrupts >= impatient {
			giveUp()
		}
		// Wait reports a broken connection.
		_ = p.Signal(forwarded[sig])
	}
}

func (c commands) resize(p *client.Process, tty bool) {
	if size, ok := c.TerminalSize(); ok && tty && p != nil {
		_ = p.Resize(size)
	}
}

// rawTerminal puts the terminal into raw mode, if the input is one, so that the command gets all keys.
func (c commands) rawTerminal() (restore func(), err error) {
	f, ok := cli.Terminal(c.In)
	if !ok {
		return func() {}, nil
	}
	state, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, errors.Wrapf(err, "prepare the terminal")
	}
	return func() { _ = term.Restore(int(f.Fd()), state) }, nil
}

// finish reports the result of a command and returns its exit code as cli.OwnExit.
func (c commands) finish(res api.Result, asJSON bool) error {
	if asJSON {
		line := json.NewEncoder(c.Out)
		line.SetEscapeHTML(false)
		if err := line.Encode(res); err != nil {
			return errors.Wrapf(err, "print")
		}
	} else if why := res.Why(); why != "" {
		c.Notef("%s", why)
	}
	if res.ReturnCode == 0 {
		return nil
	}
	return cli.OwnExit(res.ReturnCode)
}

// readAll reads all of standard input. Its size is limited to that of a request.
func (c commands) readAll() (string, error) {
	data, err := io.ReadAll(io.LimitReader(c.In, api.MaxExec+1))
	if err != nil {
		return "", errors.Explainf(err, errors.Invalid, "cannot read standard input")
	}
	return string(data), nil
}
