// Package bridge runs OpenCode's server in a sandbox and makes it a process with line-based input and output: it
// prints the server's events and reads requests (package opencode). It is part of Harvest's own program.
package bridge

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/opencode"
)

const (
	maxLine     = 64 << 20         // bytes of a line or an event
	startTime   = 60 * time.Second // the server takes about one second, more on a busy machine
	requestTime = 30 * time.Second
	mcpTime     = 5 * time.Minute // until all MCP servers have been tried
	endTime     = 2 * time.Second // between SIGTERM, which it sometimes ignores, and SIGKILL
	reconnect   = 200 * time.Millisecond
	deathTime   = time.Second // between a broken connection and the end of the server, at most
	// settleTime is how long the server needs after it has reported an idle session until it accepts the next prompt.
	// A prompt sent immediately after a failed turn got no answer (OpenCode 1.18.33).
	settleTime = time.Second
	// maxAttempts and maxRetryWait limit how often the server retries requests to the model's API, and how long it
	// may wait between attempts: after a 429 with Retry-After it waits as long as that header says, even hours.
	maxAttempts  = 10
	maxRetryWait = 5 * time.Minute
	// Before this line the server accepts connections, but does not answer.
	listening    = "opencode server listening on "
	user         = "opencode"
	passwordName = "OPENCODE_SERVER_PASSWORD"
	shellSignal  = 128 // the offset that shells add to the number of the signal that killed a program
)

// Main runs OpenCode until the input or ctx ends, and returns the exit code. args are the arguments after the
// program's name. server is the command that starts the server; Main appends the address. The bridge and its server
// write to stderr at the same time.
func Main(ctx context.Context, args, server []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(opencode.Program, flag.ContinueOnError)
	flags.SetOutput(stderr)
	// Ignore the environment's proxy.
	b := &bridge{out: stdout, err: stderr, password: rand.Text(), http: &http.Client{Transport: &http.Transport{}}}
	flags.StringVar(&b.dir, "dir", ".", "directory of the repository")
	flags.StringVar(&b.session, "session", "", "session to go on with")
	flags.StringVar(&b.model, "model", "", "provider/model")
	flags.StringVar(&b.effort, "effort", "", "variant of the model")
	flags.StringVar(&b.system, "system", "", "instructions")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	err := b.run(ctx, server, stdin)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, err)
	if code := errors.ExitOf(err); code != 0 { // as for an agent that dies itself: no line may end the turn before
		return code
	}
	b.tell(opencode.Notice{Type: opencode.BridgeError, Message: errors.Message(err)})
	return 1
}

type bridge struct {
	dir, session, model, system string
	effort                      string
	chosen                      bool // chooseModel has run
	password                    string
	base                        string // URL of the server
	http                        *http.Client

	rested atomic.Int64 // time of the last report of an idle session, in nanoseconds

	mu  sync.Mutex // held while a line is written
	out io.Writer
	err io.Writer
}

// run starts the server, opens the session and serves requests.
func (b *bridge) run(ctx context.Context, server []string, stdin io.Reader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop, err := b.start(ctx, cancel, server)
	if err != nil {
		return err
	}
	defer stop()
	events, err := b.connect(ctx)
	if err == nil {
		err = b.begin(ctx)
	}
	if err != nil {
		if ends(ctx) {
			err = context.Cause(ctx)
		}
		return err
	}
	var copying sync.WaitGroup
	copying.Go(func() { b.follow(ctx, events) })
	requests := make(chan error, 1)
	go func() { requests <- b.serve(ctx, stdin) }()
	select {
	case err = <-requests:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	cancel(nil)
	copying.Wait()
	return err
}

// start starts the server and waits until it is ready. If the server exits, it cancels ctx.
func (b *bridge) start(ctx context.Context, cancel context.CancelCauseFunc, server []string) (stop func(), err error) {
	cmd := exec.CommandContext(ctx, server[0], append(server[1:], "--hostname", "127.0.0.1", "--port", "0")...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), passwordName+"="+b.password)
	cmd.Stderr = b.err
	cmd.Cancel = func() error { return nil } // stop kills the server
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Wrapf(err, "pipe")
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Remedy(errors.Explainf(err, errors.Invalid, "OpenCode cannot be started"),
			"use an image that has the program %q, such as agent", server[0])
	}
	ended := make(chan struct{})
	address := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, maxLine)
		for lines.Scan() {
			if at, ok := strings.CutPrefix(lines.Text(), listening); ok {
				select {
				case address <- strings.TrimSpace(at):
				default:
				}
			}
		}
		_, _ = io.Copy(io.Discard, out)
		err := cmd.Wait()
		cancel(endOf(cmd.ProcessState, err))
		close(ended)
	}()
	stop = func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(endTime):
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	}
	select {
	case b.base = <-address:
		return stop, nil
	case <-ctx.Done():
		stop()
		return nil, context.Cause(ctx)
	case <-time.After(startTime):
		stop()
		return nil, errors.Newf(errors.Timeout, "OpenCode's server was not ready after %s", startTime)
	}
}

// endOf describes the end of the server. If a signal killed it, the error has the exit code of shells for the signal.
func endOf(state *os.ProcessState, err error) error {
	err = errors.Errorf("the server: %v", err)
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return errors.Exit(errors.Explainf(err, errors.Unavailable, "OpenCode's server died of %s",
			unix.SignalName(status.Signal())), shellSignal+int(status.Signal()))
	}
	return errors.Explainf(err, errors.Unavailable, "OpenCode's server has ended")
}

// ends reports whether the server has ended, after a request has failed: the connection may break before.
func ends(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	case <-time.After(deathTime):
		return false
	}
}

// request sends a request to the server and decodes the answer into out, unless out is nil.
func (b *bridge) request(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return errors.Wrapf(err, "encode")
		}
		body = bytes.NewReader(data)
	}
	resp, err := b.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return errors.Explainf(json.NewDecoder(resp.Body).Decode(out), errors.Unavailable,
		"OpenCode's answer cannot be read")
}

// do sends a request; it returns an error unless the status is a success.
func (b *bridge) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, b.base+path, body)
	if err != nil {
		return nil, errors.Wrapf(err, "request")
	}
	req.SetBasicAuth(user, b.password)
	req.Header.Set("Content-Type", "application/json")
	resp, err := b.http.Do(req)
	if err != nil {
		return nil, errors.Explainf(err, errors.Unavailable, "OpenCode's server cannot be reached")
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return nil, errors.Newf(errors.Unavailable, "OpenCode's server answered with status %d: %s", resp.StatusCode,
			bytes.TrimSpace(text))
	}
	return resp, nil
}

// connect returns the event stream.
func (b *bridge) connect(ctx context.Context) (io.ReadCloser, error) {
	resp, err := b.do(ctx, http.MethodGet, "/event", nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// begin creates the session, or opens the existing one.
func (b *bridge) begin(ctx context.Context) error {
	var session struct{ ID, Version string }
	var err error
	if b.session == "" {
		err = b.request(ctx, http.MethodPost, "/session", struct{}{}, &session)
	} else {
		err = b.request(ctx, http.MethodGet, "/session/"+url.PathEscape(b.session), nil, &session)
	}
	if err != nil {
		return err
	}
	b.session = session.ID
	b.tell(opencode.Notice{Type: opencode.BridgeReady, Session: session.ID, Version: session.Version})
	return nil
}

// follow prints events as lines until ctx ends.
func (b *bridge) follow(ctx context.Context, events io.ReadCloser) {
	for {
		b.copy(ctx, events)
		_ = events.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(reconnect):
			}
			var err error
			if events, err = b.connect(ctx); err == nil {
				b.catchUp(ctx)
				break
			}
		}
	}
}

// catchUp reports that the session is idle, if it is: the event may have been lost while the bridge was not
// connected. The server's status lists only sessions that are working.
func (b *bridge) catchUp(ctx context.Context) {
	working, err := b.works(ctx)
	if err != nil || working { // after an error, the server has ended, which is reported elsewhere
		return
	}
	if data, err := json.Marshal(map[string]any{"type": "session.idle",
		"properties": map[string]string{"sessionID": b.session}}); err == nil {
		b.line(data)
	}
}

// works reports whether the server works on the session.
func (b *bridge) works(ctx context.Context) (bool, error) {
	var working map[string]struct{ Type string }
	err := b.request(ctx, http.MethodGet, "/session/status", nil, &working)
	s, ok := working[b.session]
	return ok && s.Type != "idle", err
}

// copy prints the data of each event (https://html.spec.whatwg.org/multipage/server-sent-events.html): the server
// sends one line per event.
func (b *bridge) copy(ctx context.Context, events io.Reader) {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:")); ok {
			if bytes.Contains(data, []byte(`"session.idle"`)) {
				// After an abort, the server may report a second idle session when it works on the next prompt.
				if working, err := b.works(ctx); err == nil && working {
					continue
				}
				b.rested.Store(time.Now().UnixNano())
			}
			b.line(bytes.TrimSpace(data))
			if bytes.Contains(data, []byte(`"retry"`)) {
				b.retried(ctx, data)
			}
		}
	}
}

// retried aborts the turn if the server retries the model's API too often, or waits too long before a retry.
func (b *bridge) retried(ctx context.Context, data []byte) {
	var e struct {
		Type       string
		Properties struct {
			Status struct {
				Type    string
				Attempt int
				Message string
				Next    int64 // milliseconds since 1970
			}
		}
	}
	if json.Unmarshal(data, &e) != nil || e.Type != "session.status" || e.Properties.Status.Type != "retry" {
		return
	}
	s, why := e.Properties.Status, ""
	switch wait := time.Until(time.UnixMilli(s.Next)); {
	case s.Attempt >= maxAttempts:
		why = fmt.Sprintf("the model's API failed %d times: %s", s.Attempt, s.Message)
	case wait > maxRetryWait:
		why = fmt.Sprintf("the model's API would be asked again only after %s: %s", wait.Round(time.Minute), s.Message)
	default:
		return
	}
	b.tell(opencode.Notice{Type: opencode.BridgeTired, Message: why})
	go func() { // its answer may arrive after further events
		if err := b.answer(ctx, opencode.Request{Op: "abort"}); err != nil {
			b.tell(opencode.Notice{Type: opencode.BridgeError, Message: why})
		}
	}()
}

func (b *bridge) line(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.out.Write(append(bytes.Clone(data), '\n')) // if the reader is gone, the input ends, too
}

func (b *bridge) tell(n opencode.Notice) {
	if data, err := json.Marshal(n); err == nil {
		b.line(data)
	}
}

// serve handles the requests on the input until it ends.
func (b *bridge) serve(ctx context.Context, stdin io.Reader) error {
	lines := bufio.NewScanner(stdin)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var r opencode.Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return errors.Errorf("invalid request in the input: %v", err)
		}
		if err := b.answer(ctx, r); err != nil && !ends(ctx) {
			b.tell(opencode.Notice{Type: opencode.BridgeError, Message: errors.Message(err)})
		}
	}
	return errors.Wrapf(lines.Err(), "read the input")
}

// askMCP reports the state of the MCP servers. OpenCode's server answers after it has tried all of them.
func (b *bridge) askMCP(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, mcpTime)
	defer cancel()
	var servers map[string]struct{ Status, Error string }
	err := b.get(ctx, "/mcp", &servers)
	if err != nil {
		fmt.Fprintln(b.err, "ask for MCP servers:", err)
	}
	n := opencode.Notice{Type: opencode.BridgeMCP}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		n.MCP = append(n.MCP, agent.MCP{Name: name, Status: servers[name].Status, Error: servers[name].Error})
	}
	b.tell(n)
}

// restartMCP starts an MCP server again and reports the result. OpenCode's server answers without an error also when
// the MCP server has failed.
func (b *bridge) restartMCP(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, mcpTime)
	defer cancel()
	n := opencode.Notice{Type: opencode.BridgeRestarted, Server: name}
	var servers map[string]struct{ Status, Error string }
	resp, err := b.do(ctx, http.MethodPost, "/mcp/"+url.PathEscape(name)+"/connect", nil)
	if err == nil {
		_ = resp.Body.Close()
		err = b.get(ctx, "/mcp", &servers)
	}
	if s := servers[name]; err != nil {
		n.Message = errors.Message(err)
	} else if s.Status != "connected" {
		n.Message = cmp.Or(s.Error, s.Status, "OpenCode does not know this server")
	}
	b.tell(n)
}

func (b *bridge) answer(ctx context.Context, r opencode.Request) error {
	session := "/session/" + url.PathEscape(b.session)
	switch r.Op {
	case "prompt":
		b.chooseModel(ctx)
		body := map[string]any{"parts": []any{map[string]string{"type": "text", "text": r.Text}}}
		if provider, model, ok := strings.Cut(b.model, "/"); ok {
			body["model"] = map[string]string{"providerID": provider, "modelID": model}
		}
		if b.effort != "" {
			body["variant"] = b.effort
		}
		if b.system != "" {
			body["system"] = b.system
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(time.Unix(0, b.rested.Load()).Add(settleTime))):
		}
		return b.request(ctx, http.MethodPost, session+"/prompt_async", body, nil)
	case "mcp":
		go b.askMCP(ctx) // it takes long if an MCP server does not respond
		return nil
	case "restart":
		go b.restartMCP(ctx, r.ID)
		return nil
	case "abort":
		return b.request(ctx, http.MethodPost, session+"/abort", struct{}{}, nil)
	case "reply":
		body := map[string]string{"reply": r.Reply}
		if r.Text != "" {
			body["message"] = r.Text
		}
		return b.request(ctx, http.MethodPost, "/permission/"+url.PathEscape(r.ID)+"/reply", body, nil)
	case "answer":
		return b.request(ctx, http.MethodPost, "/question/"+url.PathEscape(r.ID)+"/reply",
			map[string]any{"answers": r.Answers}, nil)
	case "dismiss":
		return b.request(ctx, http.MethodPost, "/question/"+url.PathEscape(r.ID)+"/reject", struct{}{}, nil)
	}
	return errors.Newf(errors.Invalid, "unknown operation %.40q", r.Op)
}
