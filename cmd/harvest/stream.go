package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
)

// impatient is how many interrupts end the wait for a command that ignores them.
const impatient = 3

// stream connects this process's input, output, signals and terminal to a command that open starts, and returns
// the command's result.
func (c *cli) stream(ctx context.Context, flags processFlags,
	open func(context.Context, client.Streams) (*client.Process, error)) (api.Result, error) {
	building := c.building()
	defer building.done()
	streams := client.Streams{Stdout: c.out, Stderr: c.err, Progress: building.update, Truncated: func(bytes int64) {
		c.notef("the first %d bytes of the output are no longer kept", bytes)
	}}
	if f, tty := terminal(c.in); flags.interactive && !(tty && background(f)) {
		streams.Stdin = c.in
	}
	// Before the command runs, an interrupt cancels the start. Afterwards it goes to the command.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	// Signals stay caught until the exit: a late signal must not replace the exit code.
	signals := make(chan os.Signal, 16)
	for sig := range forwarded {
		signal.Notify(signals, sig)
	}
	onResize(signals)
	started := make(chan *client.Process, 1)
	streams.Started = func(p *client.Process) { started <- p }
	go c.forward(ctx, signals, started, flags.terminal, cancel)

	p, err := open(ctx, streams)
	if err != nil {
		if ctx.Err() != nil {
			return api.Result{}, errors.Explainf(err, errors.Canceled, "interrupted before the start")
		}
		return api.Result{}, err
	}
	building.done()
	if flags.terminal {
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
func (c *cli) forward(ctx context.Context, signals <-chan os.Signal, started <-chan *client.Process, tty bool,
	giveUp func()) {
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

func (c *cli) resize(p *client.Process, tty bool) {
	if size, ok := c.terminalSize(); ok && tty && p != nil {
		_ = p.Resize(size)
	}
}

// terminalSize returns the size of the terminal, if there is one.
func (c *cli) terminalSize() (api.Size, bool) {
	for _, stream := range []any{c.in, c.out, c.err} {
		if f, ok := terminal(stream); ok {
			cols, rows, err := term.GetSize(int(f.Fd()))
			return api.Size{Rows: rows, Cols: cols}, err == nil && rows > 0 && cols > 0
		}
	}
	return api.Size{}, false
}

// rawTerminal puts the terminal into raw mode, if the input is one, so that the command gets all keys.
func (c *cli) rawTerminal() (restore func(), err error) {
	f, ok := terminal(c.in)
	if !ok {
		return func() {}, nil
	}
	state, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, errors.Wrapf(err, "prepare the terminal")
	}
	return func() { _ = term.Restore(int(f.Fd()), state) }, nil
}

// finish reports the result of a command and returns its exit code as ownExit.
func (c *cli) finish(res api.Result, asJSON bool) error {
	if asJSON {
		line := json.NewEncoder(c.out)
		line.SetEscapeHTML(false)
		if err := line.Encode(res); err != nil {
			return errors.Wrapf(err, "print")
		}
	} else if why := res.Why(); why != "" {
		c.notef("%s", why)
	}
	if res.ReturnCode == 0 {
		return nil
	}
	return ownExit(res.ReturnCode)
}

// readAll reads all of standard input. Its size is limited to that of a request.
func (c *cli) readAll() (string, error) {
	data, err := io.ReadAll(io.LimitReader(c.in, api.MaxExec+1))
	if err != nil {
		return "", errors.Explainf(err, errors.Invalid, "cannot read standard input")
	}
	return string(data), nil
}
