package sandboxes

import (
	"context"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

const (
	scrollback   = 256 << 10 // bytes of earlier output for a new client
	terminalLag  = 128 << 10 // bytes that a client may be behind before the command blocks
	terminalLife = 7 * 24 * time.Hour
	terminalSend = 30 * time.Second // until a client that does not read is disconnected
	terminalMark = "harvest-terminal"
	terminalDir  = "HARVEST_TERMINAL_DIR" // variable with the start directory of a new shell
	terminalMost = 16                     // shells of a sandbox
)

// terminalName matches the names of shells; the first shell of a sandbox has none.
var terminalName = regexp.MustCompile(`^[a-z0-9-]{0,32}$`)

// markOf returns the last argument of a shell, by which a later server and clients find it.
func markOf(name string) string {
	if name == "" {
		return terminalMark
	}
	return terminalMark + ":" + name
}

// terminalArgs run the available shell. The last argument, which markOf returns, is missing here.
var terminalArgs = []string{"/bin/sh", "-c",
	`[ -z "$HARVEST_TERMINAL_DIR" ] || cd -- "$HARVEST_TERMINAL_DIR" 2>/dev/null; unset HARVEST_TERMINAL_DIR; [ -x ` +
		`"$SHELL" ] && exec "$SHELL" -l; command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l`}

func (s *Service) terminalRoutes() []edge.Route {
	return []edge.Route{{Method: "GET", Path: api.SandboxTerminal, Handle: s.openTerminal, Scope: account.Exec,
		Summary: "The sandbox's terminal: a shell that keeps running when its client disconnects. " +
			"A second client takes it over",
		Query: "rows: number of lines; cols: number of columns; dir: working directory of a new shell, if it " +
			"exists; name: name of the shell, if there are several, whose last argument is harvest-terminal:NAME",
		Socket: "messages are those of a stream, without a first request, and earlier output is repeated"}}
}

// terminals are the sandboxes' terminals to which this server is connected.
type terminals struct {
	mu sync.Mutex
	by map[string]*terminal // guarded by mu; by sandbox ID and mark
}

// terminal is a shell with at most one client.
type terminal struct {
	stdin *window
	ready chan struct{} // closed when x or err is set
	x     *commands.Execution
	err   error

	mu     sync.Mutex
	change sync.Cond
	output []byte          // guarded by mu: the last scrollback bytes
	end    int64           // guarded by mu: total bytes of output
	client *terminalClient // guarded by mu; nil for none
	over   *api.End        // guarded by mu; set when the shell has ended
}

// terminalClient is the client of a terminal.
type terminalClient struct {
	conn *websocket.Conn
	ctx  context.Context
	at   int64    // guarded by the terminal's mu: bytes of output that were sent
	gone bool     // guarded by the terminal's mu: it left, or another client took over
	why  *api.End // guarded by the terminal's mu: end message for it, if any
}

// terminal returns a terminal of the sandbox. If this server is not connected to it, it finds or starts the shell.
func (s *Service) terminal(ctx context.Context, id, mark, dir string) (*terminal, error) {
	key := id + " " + mark
	s.terms.mu.Lock()
	t := s.terms.by[key]
	if t == nil {
		t = &terminal{ready: make(chan struct{})}
		t.change.L = &t.mu
		t.stdin = newWindow(t.took)
		if s.terms.by == nil {
			s.terms.by = map[string]*terminal{}
		}
		s.terms.by[key] = t
		owner := edge.AccountOf(ctx)
		go s.runTerminal(context.WithoutCancel(ctx), t, shellOf{owner, id, mark, dir})
	}
	s.terms.mu.Unlock()
	select {
	case <-t.ready:
		return t, t.err
	case <-ctx.Done():
		return nil, errors.Wrapf(ctx.Err(), "wait for a terminal")
	}
}

// shellOf names a shell of a sandbox, and the directory in which a new one starts.
type shellOf struct{ owner, id, mark, dir string }

// runTerminal finds or starts the shell of t and waits for its end.
func (s *Service) runTerminal(ctx context.Context, t *terminal, of shellOf) {
	t.x, t.err = s.shell(ctx, t, of)
	close(t.ready)
	end := api.End{}
	if t.err == nil {
		res, err := t.x.Wait(ctx)
		if err != nil {
			end.Problem = edge.Problem(ctx, err)
		} else {
			exit := resultOut(res)
			end.Exit = &exit
		}
	}
	s.terms.mu.Lock()
	delete(s.terms.by, of.id+" "+of.mark)
	s.terms.mu.Unlock()
	// If neither holds, the shell continues, and closing its input would end it.
	if t.err != nil || end.Exit != nil || s.Stopping.Err() == nil {
		t.stdin.close()
	}
	t.mu.Lock()
	t.over = &end
	t.change.Broadcast()
	t.mu.Unlock()
}

// shell finds the shell that an earlier server started, or starts one.
func (s *Service) shell(ctx context.Context, t *terminal, of shellOf) (*commands.Execution, error) {
	known, err := s.Fleet.Processes(ctx, of.owner, of.id)
	if err != nil {
		return nil, err
	}
	stdio := engine.Stdio{Stdin: t.stdin, Stdout: t, Stderr: t}
	shells := 0
	for _, p := range slices.Backward(known) {
		if p.Exit != nil || !p.Terminal || len(p.Args) == 0 {
			continue
		}
		last := p.Args[len(p.Args)-1]
		if last == of.mark {
			return s.Fleet.Attach(ctx, of.owner, of.id, p.ID, stdio)
		}
		if strings.HasPrefix(last, terminalMark) {
			shells++
		}
	}
	if shells >= terminalMost {
		return nil, errors.Remedy(errors.Newf(errors.Exhausted, "sandbox %s has %d terminals", of.id, shells),
			"end one of their shells first")
	}
	return s.Fleet.Exec(ctx, of.owner, of.id, fleet.ExecRequest{
		Args: append(slices.Clone(terminalArgs), of.mark), Terminal: &engine.Size{Rows: 24, Cols: 80},
		Timeout: terminalLife, Detach: true,
		Stdin: t.stdin, Stdout: t, Stderr: t,
		Env: map[string]string{"TERM": "xterm-256color", "COLORTERM": "truecolor", terminalDir: of.dir},
	})
}

// Write receives the shell's output. It blocks while a connected client is too far behind; without a client it drops
// the oldest output.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for rest := p; len(rest) > 0; {
		n := min(len(rest), terminalLag)
		t.output = append(t.output, rest[:n]...)
		if more := len(t.output) - scrollback; more > 0 {
			t.output = append(t.output[:0], t.output[more:]...)
		}
		t.end += int64(n)
		rest = rest[n:]
		t.change.Broadcast()
		for t.client != nil && !t.client.gone && t.end-t.client.at > terminalLag {
			t.change.Wait()
		}
	}
	return len(p), nil
}

// took reports to the client that the shell has read n bytes.
func (t *terminal) took(n int) {
	t.mu.Lock()
	c := t.client
	t.mu.Unlock()
	if c != nil {
		c.send(api.StreamControl, edge.Marshal(api.Control{StdinRead: n}))
	}
}

func (c *terminalClient) send(id byte, data []byte) error {
	ctx, cancel := context.WithTimeout(c.ctx, terminalSend)
	defer cancel()
	return c.conn.Write(ctx, websocket.MessageBinary, append([]byte{id}, data...))
}

// attach makes c the client, and notifies the previous one.
func (t *terminal) attach(r *http.Request, c *terminalClient) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.client; old != nil {
		p := edge.Problem(r.Context(), errors.Remedy(errors.Newf(errors.Conflict,
			"another client has taken over the terminal"), "connect again to take it back"))
		old.gone, old.why = true, &api.End{Problem: p}
	}
	t.client = c
	c.at = max(0, t.end-int64(len(t.output)))
	t.change.Broadcast()
}

func (t *terminal) detach(c *terminalClient) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.gone = true
	if t.client == c {
		t.client = nil
	}
	t.change.Broadcast()
}

// next waits for output that c does not have, and returns it, or the end message for c. gone means that c is no
// longer the client.
func (t *terminal) next(c *terminalClient) (data []byte, dropped int64, over *api.End, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for !c.gone && c.at == t.end && t.over == nil {
		t.change.Wait()
	}
	if c.gone {
		return nil, 0, c.why, true
	}
	if c.at == t.end {
		return nil, 0, t.over, false
	}
	first := t.end - int64(len(t.output))
	if c.at < first {
		dropped, c.at = first-c.at, first
	}
	data = slices.Clone(t.output[c.at-first:])
	if len(data) > api.Chunk {
		data = data[:api.Chunk]
	}
	return data, dropped, nil, false
}

func (t *terminal) sent(c *terminalClient, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.at += int64(n)
	t.change.Broadcast()
}

// openTerminal connects a client to the sandbox's terminal.
func (s *Service) openTerminal(w http.ResponseWriter, r *http.Request) error {
	if !edge.IsUpgrade(r) {
		return errors.Remedy(errors.Newf(errors.Invalid, "GET %.200s: needs a WebSocket", r.URL.Path),
			"connect with a WebSocket")
	}
	rows, err := edge.Number(r, "rows", 24, 1000)
	if err != nil {
		return err
	}
	cols, err := edge.Number(r, "cols", 80, 1000)
	if err != nil {
		return err
	}
	dir := r.URL.Query().Get("dir")
	if dir != "" && !path.IsAbs(dir) || strings.ContainsRune(dir, 0) {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid directory %.200q", dir), "give an absolute path")
	}
	name := r.URL.Query().Get("name")
	if !terminalName.MatchString(name) {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid terminal name %.200q", name),
			"use up to 32 lower-case letters, digits and -")
	}
	box, err := s.Fleet.Get(r.Context(), edge.Account(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	t, err := s.terminal(r.Context(), box.ID, markOf(name), dir)
	if err != nil {
		return err
	}
	conn, release, err := edge.Accept(w, r)
	if err != nil {
		return nil // accept has responded
	}
	defer release()
	conn.SetReadLimit(api.MaxFrame)
	ctx, leave := context.WithCancel(context.WithoutCancel(r.Context()))
	defer leave()
	defer context.AfterFunc(s.Stopping, leave)()
	c := &terminalClient{conn: conn, ctx: ctx}
	what := started(t.x)
	if c.send(api.StreamControl, edge.Marshal(api.Control{Started: &what})) != nil {
		return nil
	}
	_ = t.x.Resize(ctx, engine.Size{Rows: rows, Cols: cols}) // the shell may just have ended
	logf.Infof(logf.With(ctx, "sandbox_id", box.ID), "a client uses the terminal")
	t.attach(r, c)
	defer t.detach(c)
	defer context.AfterFunc(ctx, func() { t.detach(c) })()
	var receiving sync.WaitGroup
	receiving.Go(func() {
		defer leave()
		t.receive(c)
	})
	t.deliver(c)
	leave()
	_ = conn.Close(websocket.StatusNormalClosure, "")
	receiving.Wait()
	return nil
}

// deliver sends the output until the shell or the client is gone.
func (t *terminal) deliver(c *terminalClient) {
	for {
		data, dropped, over, gone := t.next(c)
		switch {
		case over != nil:
			_ = c.send(api.StreamEnd, edge.Marshal(over)) // it may have disconnected
			return
		case gone:
			return
		}
		if dropped > 0 && c.send(api.StreamControl, edge.Marshal(api.Control{Truncated: dropped})) != nil {
			return
		}
		if c.send(api.StreamStdout, data) != nil {
			return
		}
		t.sent(c, len(data))
	}
}

// receive handles the client's messages until it disconnects, another one takes over, or it sends an invalid one.
func (t *terminal) receive(c *terminalClient) {
	for {
		kind, msg, err := c.conn.Read(c.ctx)
		if err != nil {
			return
		}
		t.mu.Lock()
		gone := c.gone
		t.mu.Unlock()
		if gone {
			return
		}
		err = errors.Newf(errors.Invalid, "invalid message of a terminal")
		if kind == websocket.MessageBinary && len(msg) > 0 {
			switch msg[0] {
			case api.StreamStdin:
				err = t.stdin.add(msg[1:])
			case api.StreamControl:
				err = t.obey(c.ctx, msg[1:])
			}
		}
		if err != nil {
			_ = c.conn.Close(websocket.StatusPolicyViolation, errors.Message(err))
			return
		}
	}
}

// obey executes a control message. It ignores failures, since the shell may just have ended.
func (t *terminal) obey(ctx context.Context, data []byte) error {
	var c api.Control
	if err := edge.Decode(data, &c); err != nil {
		return err
	}
	switch {
	case c.Kill:
		_ = t.x.Kill(ctx)
	case c.Signal != "":
		_ = t.x.Signal(ctx, c.Signal)
	case c.Resize != nil:
		_ = t.x.Resize(ctx, engine.Size(*c.Resize))
	}
	return nil
}
