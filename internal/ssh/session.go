package ssh

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/ssh/inside"
)

const (
	// life limits a command: a shell may be open for days.
	life = 7 * 24 * time.Hour
	// mostVariables limits the environment that a client sends.
	mostVariables = 64
	// hangUpTime limits how long a program may take to get a signal.
	hangUpTime = 10 * time.Second
	// mostEarly limits the sizes and signals that a client sends before its program runs.
	mostEarly = 64
	// failed is the exit status of a command that could not be started, as of ssh itself.
	failed = 255
)

// The programs of shells and commands. As with OpenSSH, the user's shell runs both.
var (
	shellArgs = []string{"/bin/sh", "-c",
		`[ -x "$SHELL" ] && exec "$SHELL" -l; command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l`}
	commandArgs = []string{"/bin/sh", "-c",
		`[ -x "$SHELL" ] && exec "$SHELL" -c "$1"; command -v bash >/dev/null 2>&1 && exec bash -c "$1"; ` +
			`exec sh -c "$1"`, "sh"}
)

// session is a channel in which one program runs.
type session struct {
	conn    *conn
	channel gossh.Channel
	env     map[string]string
	size    *engine.Size // of the terminal; nil without one
	agent   bool         // the client's agent is forwarded

	mu      sync.Mutex
	program *commands.Execution // guarded by mu: nil until it runs
	early   []*gossh.Request    // guarded by mu: sizes and signals that came before it ran
}

// Payloads of requests (RFC 4254, section 6).
type (
	ptyRequest struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	envRequest    struct{ Name, Value string }
	sizeRequest   struct{ Columns, Rows, Width, Height uint32 }
	textRequest   struct{ Text string } // exec, subsystem, signal
	statusRequest struct{ Status uint32 }
	signalRequest struct {
		Signal  string
		Dumped  bool
		Message string
		Lang    string
	}
)

// session serves a channel of the type session.
func (c *conn) session(wanted gossh.NewChannel) {
	channel, requests, err := wanted.Accept()
	if err != nil {
		return
	}
	defer channel.Close()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	s := &session{conn: c, channel: channel, env: map[string]string{}}
	var running sync.WaitGroup
	defer running.Wait()
	begun := false
	for r := range requests {
		ok := true
		switch r.Type {
		case "shell", "exec", "subsystem":
			var text textRequest
			if ok = !begun && (r.Type == "shell" || gossh.Unmarshal(r.Payload, &text) == nil); !ok {
				break
			}
			what := r.Type
			if ok = what != "subsystem" || text.Text == "sftp"; !ok {
				break
			}
			begun = true
			_ = r.Reply(true, nil)
			running.Go(func() {
				defer channel.Close()
				s.run(ctx, what, text.Text)
			})
			continue
		case "pty-req", "env", "auth-agent-req@openssh.com":
			ok = !begun && s.prepare(r)
		case "window-change", "signal":
			ok = begun && s.control(ctx, r)
		default: // x11-req, for example
			ok = false
		}
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
	}
	cancel() // the client has closed the channel
}

// prepare handles the requests before the program runs.
func (s *session) prepare(r *gossh.Request) bool {
	switch r.Type {
	case "pty-req":
		var p ptyRequest
		if gossh.Unmarshal(r.Payload, &p) != nil {
			return false
		}
		s.size = sizeOf(p.Columns, p.Rows)
		if p.Term != "" {
			s.env["TERM"] = p.Term
		}
		return true
	case "env":
		var e envRequest
		if gossh.Unmarshal(r.Payload, &e) != nil || engine.CheckEnvName(e.Name) != nil || len(s.env) >= mostVariables {
			return false
		}
		s.env[e.Name] = e.Value
		return true
	}
	s.agent = true
	return true
}

// sizeOf returns a size of a terminal. Clients without a window send 0.
func sizeOf(columns, rows uint32) *engine.Size {
	size := engine.Size{Rows: 24, Cols: 80}
	if columns > 0 && rows > 0 {
		size.Cols, size.Rows = int(min(columns, 65535)), int(min(rows, 65535))
	}
	return &size
}

// control handles the requests while the program runs, or keeps them until it runs.
func (s *session) control(ctx context.Context, r *gossh.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program != nil {
		return s.apply(ctx, s.program, r)
	}
	if len(s.early) == mostEarly {
		return false
	}
	s.early = append(s.early, r)
	return true
}

// runs says that the program runs.
func (s *session) runs(ctx context.Context, program *commands.Execution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.program = program
	for _, r := range s.early {
		s.apply(ctx, program, r)
	}
	s.early = nil
}

// apply sends a signal or a size to the program.
func (s *session) apply(ctx context.Context, program *commands.Execution, r *gossh.Request) bool {
	if r.Type == "signal" {
		var text textRequest
		return gossh.Unmarshal(r.Payload, &text) == nil && program.Signal(ctx, text.Text) == nil
	}
	var size sizeRequest
	return gossh.Unmarshal(r.Payload, &size) == nil && s.size != nil &&
		program.Resize(ctx, *sizeOf(size.Columns, size.Rows)) == nil
}

// run runs the program, and tells the client how it ended.
func (s *session) run(ctx context.Context, what, text string) {
	program, err := s.start(ctx, what, text)
	if err != nil {
		s.fail(err)
		return
	}
	s.runs(ctx, program)
	result, err := program.Wait(ctx)
	if ctx.Err() != nil {
		hangUp(ctx, program)
		return
	}
	if err != nil {
		s.fail(err)
		return
	}
	if result.Reason != "" {
		s.tell(result.Reason)
	}
	if result.Signal != "" {
		_, _ = s.channel.SendRequest("exit-signal", false, gossh.Marshal(signalRequest{Signal: result.Signal}))
		return
	}
	s.exit(uint32(result.ReturnCode))
}

// hangUp tells a program that its client has gone, as a terminal does. What ignores it runs on, such as the server that
// an editor has put into the sandbox.
func hangUp(ctx context.Context, program *commands.Execution) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpTime)
	defer cancel()
	if err := program.Signal(ctx, "HUP"); err != nil {
		logf.Warnf(ctx, "tell command %s that its client has gone: %v", program.ID(), err)
	}
}

// start starts the program.
func (s *session) start(ctx context.Context, what, text string) (*commands.Execution, error) {
	id, err := s.conn.sandbox()
	if err != nil {
		return nil, err
	}
	if what == "subsystem" {
		what = text
	}
	s.conn.audit(what, map[bool]string{true: text}[what == "exec"])
	if s.agent {
		if err := s.forwardAgent(ctx); err != nil {
			s.tell("the agent is not forwarded: " + sentence(err))
		}
	}
	req := fleet.ExecRequest{Env: s.env, Timeout: life, Detach: true, Stdin: s.channel, InputOnce: true,
		Stdout: s.channel, Stderr: s.channel.Stderr(), Terminal: s.size,
		Truncated: func(bytes int64) { s.tell(fmt.Sprintf("%d bytes of output are missing", bytes)) }}
	switch what {
	case "sftp":
		req.Args, req.Own, req.Terminal = []string{inside.Program, inside.Files}, true, nil
	case "shell":
		req.Args = shellArgs
	default:
		req.Args = append(append([]string(nil), commandArgs...), text)
	}
	return s.conn.server.opts.Fleet.Exec(ctx, s.conn.who.Account, id, req)
}

// fail tells the client why its program did not run, or how it ended is unknown.
func (s *session) fail(err error) {
	s.tell(sentence(err))
	s.exit(failed)
}

// tell writes a sentence to the standard error of the client.
func (s *session) tell(text string) {
	text = strings.ReplaceAll(text, "\n", " ")
	_, _ = io.WriteString(s.channel.Stderr(), "harvest: "+text+"\r\n") // the client may have gone
}

func (s *session) exit(status uint32) {
	_, _ = s.channel.SendRequest("exit-status", false, gossh.Marshal(statusRequest{status}))
}

// forwardAgent makes a socket in the sandbox whose connections reach the client's agent, until ctx ends.
func (s *session) forwardAgent(ctx context.Context) error {
	l, err := s.conn.listen(ctx, inside.Head{Listen: "unix"}, func(inside.Head) (gossh.Channel, error) {
		channel, requests, err := s.conn.client.OpenChannel("auth-agent@openssh.com", nil)
		if err == nil {
			go gossh.DiscardRequests(requests)
		}
		return channel, err
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, l.close)
	s.env["SSH_AUTH_SOCK"] = l.address
	s.conn.audit("agent", "")
	return nil
}
