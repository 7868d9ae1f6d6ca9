// Package bridge runs an agent that speaks the Agent Client Protocol, and makes it a process with line-based input and
// output: it prints events and reads requests (package acp). It is part of Harvest's own program and runs in the
// sandbox, so that the state of the protocol outlives the server.
package bridge

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
)

// Program is the bridge's name.
const Program = acp.Program

// Main runs an agent until the input or ctx ends, and returns the exit code. args are the arguments after the
// program's name; the agent's command follows "--".
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(Program, flag.ContinueOnError)
	flags.SetOutput(stderr)
	var o options
	flags.StringVar(&o.name, "name", "the agent", "name of the agent")
	flags.StringVar(&o.dir, "dir", ".", "directory of the repository")
	flags.StringVar(&o.session, "session", "", "session to continue")
	flags.StringVar(&o.model, "model", "", "model")
	flags.StringVar(&o.effort, "effort", "", "effort of the model")
	flags.StringVar(&o.system, "system", "", "instructions")
	flags.StringVar(&o.mcp, "mcp", "", "file of MCP servers")
	flags.StringVar((*string)(&o.approval), "approval", "", "tools that need no approval")
	lock := flags.String("lock", "", "embedded lock that installs the agent")
	script := flags.String("install", "", "script that installs the agent")
	if err := flags.Parse(args); err != nil || flags.NArg() == 0 {
		return 2
	}
	return serve(ctx, o, *lock, *script, flags.Args(), requests(stdin), stdout, stderr)
}

// serve runs the agent until the input ends, and returns the exit code. An agent that fails is started again for the
// next prompt: if the bridge ended, that prompt could get lost. Only a signal in the middle of a turn ends the bridge,
// since the session then sends the prompt again.
func serve(ctx context.Context, o options, lock, script string, command []string, asked <-chan acp.Request,
	stdout, stderr io.Writer) int {
	var waiting []acp.Request
	for {
		s := newSession(o)
		s.queue = waiting
		s.print = func(l acp.Line) {
			if data, err := json.Marshal(fit(l)); err == nil {
				_, _ = stdout.Write(append(data, '\n')) // if the reader is gone, the input ends, too
			}
		}
		p, err := installed(ctx, command, lock, script, func(text string) {
			s.notice("installing", "Harvest %s", text)
		})
		var said string
		if err == nil {
			said, err = run(ctx, s, p, asked)
		}
		if err == nil {
			return 0
		}
		fmt.Fprintln(stderr, strings.TrimSpace(errors.Message(err)+"\n"+said))
		code := errors.ExitOf(err)
		if code == agent.ExitForgotten || code != 0 && (s.turn != nil || len(s.queue) > 0) {
			return code
		}
		s.ends(err, said)
		if o.session = s.id; s.id == "" {
			o.session = s.session
		}
		if waiting = s.rest(ctx, asked); len(waiting) == 0 {
			return 1
		}
	}
}

// rest handles requests after the agent has failed, and returns the prompts that are the first to need it again; none
// at the end of the input.
func (s *session) rest(ctx context.Context, asked <-chan acp.Request) []acp.Request {
	for len(s.queue) == 0 {
		select {
		case <-ctx.Done():
			return nil
		case r, ok := <-asked:
			if !ok {
				return nil
			}
			s.handle(r)
		}
	}
	return s.queue
}

// maxText is the limit of a text in an event, in bytes. Harvest keeps no longer line of the bridge than 16 MB.
const maxText = 2 << 20

// fit shortens what an agent may send in any size.
func fit(l acp.Line) acp.Line {
	if len(l.Text) > maxText {
		l.Text = strings.ToValidUTF8(l.Text[:maxText], "") + "…"
	}
	if len(l.Input) > maxText {
		l.Input = json.RawMessage(`{}`)
	}
	return l
}

// run runs the agent's process and the session until one of them ends. It returns the end of the agent's error output
// with an error.
func run(ctx context.Context, s *session, p program, asked <-chan acp.Request) (said string, err error) {
	c, err := startChild(context.WithoutCancel(ctx), p, s.dir)
	if err != nil {
		return "", err
	}
	s.write = c.write
	defer func() { s.servers.remove() }()
	defer c.end()
	s.start()
	for s.over == nil {
		timer := time.NewTimer(time.Hour)
		if due := s.due(); !due.IsZero() {
			timer.Reset(max(time.Until(due), 0))
		}
		select {
		case <-ctx.Done():
			return "", nil
		case r, ok := <-asked:
			if !ok {
				return "", nil
			}
			s.handle(r)
		case in, ok := <-c.lines:
			if !ok {
				s.gone(c)
				break
			}
			s.read(in)
		case <-timer.C:
			s.tick()
		}
		timer.Stop()
	}
	s.ready = false
	return c.tail.String(), s.over
}

// gone ends the session at the end of the agent's output.
func (s *session) gone(c *child) {
	select {
	case <-c.ended:
		s.fail(c.failed)
	case <-time.After(drainTime):
		s.fail(errors.Newf(errors.Unavailable, "%s has closed its output", s.name))
	}
}

// requests returns the requests on the input. A line that is no request is skipped.
func requests(stdin io.Reader) <-chan acp.Request {
	out := make(chan acp.Request)
	go func() {
		defer close(out)
		jsonrpc.ReadLines(bufio.NewReader(stdin), jsonrpc.MaxLine, func(in jsonrpc.Line) {
			var r acp.Request
			if json.Unmarshal(in.Text, &r) == nil && r.Op != "" {
				out <- r
			}
		})
	}()
	return out
}

// handle handles a request of Harvest.
func (s *session) handle(r acp.Request) {
	switch r.Op {
	case "prompt":
		s.prompt(r)
	case "interrupt":
		s.interrupt()
	case "answer":
		s.reply(r)
	case "mcp":
		s.event(agent.Event{Type: agent.MCPStatus, MCP: s.servers.status(s.now(), s.name, s.over != nil)})
	case "restart":
		s.event(agent.Event{Type: agent.MCPRestarted, ID: r.ID, Failed: true,
			Text: "the Agent Client Protocol cannot start an MCP server again"})
	}
}
