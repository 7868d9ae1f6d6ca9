// Package editor is the agent's side of the Agent Client Protocol: with it, editors drive sessions of Harvest.
//
// A thread of the editor is a session of Harvest, and has its ID. A session that ends is continued by a new one in the
// same thread. The editor's messages come in lines on In, and go to Out; nothing else may write there. If the editor
// vanishes, its sessions continue.
package editor

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
)

// Options connect an editor with sessions.
type Options struct {
	In       io.Reader
	Out      io.Writer
	Version  string   // of Harvest
	Records  string   // directory with a file for each thread
	Settings Settings // of new sessions
	Offers   Offers
	// MCP are the servers of all sessions, in the format of a project's .mcp.json.
	MCP json.RawMessage

	Connect func(context.Context) (*client.Client, error)
	// Create creates a session without a prompt for a directory of this machine.
	Create func(ctx context.Context, server *client.Client, w Wish) (Begun, error)
	// Work identifies the state of the work in a directory that a new session would get.
	Work func(ctx context.Context, dir string) (string, error)
	// Root returns the top of the repository that contains a directory; "" without one.
	Root func(ctx context.Context, dir string) string
	// Begins is called after the first prompt of a session that began in a directory.
	Begins func(ctx context.Context, dir, session string)
	// Explain returns the error of a failed turn, with its remedy.
	Explain func(session string, end api.SessionEvent) error
	// Apply and Checkout bring the agent's work into the repository of a directory, and return a text for the user.
	Apply    func(ctx context.Context, server *client.Client, dir, session string, check, merge bool) (string, error)
	Checkout func(ctx context.Context, server *client.Client, dir, session, branch string) (string, error)
}

// Settings of a session.
type Settings struct {
	Agent    string `json:"agent,omitempty"`
	Model    string `json:"model,omitempty"`
	Effort   string `json:"effort,omitempty"`
	Approval string `json:"approval,omitempty"`
}

// Offers are the values that the editor offers, beside the current ones.
type Offers struct {
	Agents, Models, Efforts []string
}

// Wish describes a session to create.
type Wish struct {
	Settings
	Dir  string
	MCP  json.RawMessage
	Hint func(format string, args ...any) // gets notes for the user
}

// Begun is a session that was created.
type Begun struct {
	Session api.Session
	Root    string // directory of this machine whose files the session has; "" for none
	Work    string // as of Options.Work; "" if the session has no files of this machine
}

// face is the connection to an editor.
type face struct {
	Options
	ctx  context.Context // of the connection
	stop context.CancelFunc

	writing sync.Mutex // held during a write to Out

	connecting sync.Mutex     // held during the connection to the server
	server     *client.Client // guarded by connecting; nil before the first connection

	mu      sync.Mutex
	threads map[string]*thread              // guarded by mu; by ID
	running map[string]context.CancelFunc   // guarded by mu; work of requests of the editor, by ID
	calls   map[string]chan jsonrpc.Message // guarded by mu; requests to the editor that wait for an answer, by ID
	next    int                             // guarded by mu; ID of the last request
	able    abilities                       // guarded by mu; of the editor
}

// Run serves an editor until In ends or ctx ends.
func Run(ctx context.Context, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	f := &face{Options: o, ctx: ctx, stop: stop, threads: map[string]*thread{},
		running: map[string]context.CancelFunc{}, calls: map[string]chan jsonrpc.Message{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		jsonrpc.ReadLines(o.In, jsonrpc.MaxLine, f.line)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return nil
}

// line handles a line of the editor.
func (f *face) line(in jsonrpc.Line) {
	m, ok := jsonrpc.Parse(in.Text)
	switch {
	case in.Cut:
		f.write(jsonrpc.NewError(nil, jsonrpc.ParseError, "the message is too long"))
	case !json.Valid(in.Text):
		f.write(jsonrpc.NewError(nil, jsonrpc.ParseError, "the line is not JSON"))
	case !ok:
		f.write(jsonrpc.NewError(nil, jsonrpc.InvalidRequest, "the line is not a message of JSON-RPC"))
	case m.Method == "":
		f.answered(m)
	case len(m.ID) == 0:
		f.notified(m)
	default:
		f.request(m)
	}
}

// work is the part of a request that may take time. Its result is the answer; after is called once it was sent.
type work func(ctx context.Context) (result any, after func(), err error)

// done is the work of a request that needs none.
func done(result any) work {
	return func(context.Context) (any, func(), error) { return result, nil, nil }
}

// request handles a request. Handlers run in the order of the requests, and their work in the background.
func (f *face) request(m jsonrpc.Message) {
	handlers := map[string]func(json.RawMessage) (work, error){
		"initialize":                f.initialize,
		"authenticate":              f.authenticate,
		"session/new":               f.newSession,
		"session/load":              f.loadSession,
		"session/resume":            f.resumeSession,
		"session/list":              f.listSessions,
		"session/set_mode":          f.setMode,
		"session/set_config_option": f.setOption,
		"session/prompt":            f.prompt,
	}
	handle := handlers[m.Method]
	if handle == nil {
		f.write(jsonrpc.NewError(m.ID, jsonrpc.MethodNotFound, "unknown method "+m.Method))
		return
	}
	run, err := handle(m.Params)
	if err != nil {
		f.fail(m.ID, err)
		return
	}
	ctx, cancel := context.WithCancel(f.ctx)
	f.mu.Lock()
	f.running[string(m.ID)] = cancel
	f.mu.Unlock()
	go func() {
		result, after, err := run(ctx)
		cancelled := ctx.Err() != nil
		f.mu.Lock()
		delete(f.running, string(m.ID))
		f.mu.Unlock()
		cancel()
		switch {
		case f.ctx.Err() != nil: // the editor is gone
		case err != nil && cancelled:
			f.write(jsonrpc.NewError(m.ID, jsonrpc.RequestCancelled, "the request was cancelled"))
		case err != nil:
			f.fail(m.ID, err)
		default:
			f.write(jsonrpc.NewAnswer(m.ID, result))
			if after != nil {
				after()
			}
		}
	}()
}

// notified handles a notification. Unknown ones are ignored.
func (f *face) notified(m jsonrpc.Message) {
	var p struct {
		Session string          `json:"sessionId"`
		Request json.RawMessage `json:"requestId"`
	}
	jsonrpc.Decode(m.Params, &p)
	switch m.Method {
	case "session/cancel":
		if t := f.thread(p.Session); t != nil {
			t.cancel()
		}
	case "$/cancel_request":
		f.mu.Lock()
		defer f.mu.Unlock()
		if cancel := f.running[string(p.Request)]; cancel != nil {
			cancel()
		}
	}
}

// fail answers a request with an error.
func (f *face) fail(id json.RawMessage, err error) {
	code, text := problem(err)
	f.write(jsonrpc.NewError(id, code, text))
}

// turnFailed is the error of a turn. Its kind does not concern the request.
type turnFailed struct{ error }

// codes are the codes of errors; other kinds are internal errors.
var codes = map[errors.Kind]int{errors.Invalid: jsonrpc.InvalidParams, errors.NotFound: jsonrpc.NotFound,
	errors.Unauthenticated: jsonrpc.AuthRequired}

// problem returns the code and the text of an error, with its remedy.
func problem(err error) (code int, text string) {
	var turn turnFailed
	inTurn := errors.As(err, &turn)
	if inTurn {
		err = turn.error
	}
	text, remedy := errors.Message(err), errors.RemedyOf(err)
	kind := errors.KindOf(err)
	if remedy == "" && kind == errors.Unauthenticated {
		remedy = "set HARVEST_API_KEY in the editor's settings to a key from harvest key create"
	}
	if remedy != "" {
		text += "; " + remedy
	}
	if code = codes[kind]; inTurn || code == 0 {
		code = jsonrpc.InternalError
	}
	return code, text
}

// write sends a line to the editor. If the editor is gone, the connection ends.
func (f *face) write(line []byte) {
	f.writing.Lock()
	defer f.writing.Unlock()
	if _, err := f.Out.Write(line); err != nil {
		f.stop()
	}
}

// call sends a request to the editor and waits for its answer. If ctx ends before, the request is withdrawn.
func (f *face) call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	answer := make(chan jsonrpc.Message, 1)
	f.mu.Lock()
	f.next++
	id := f.next
	key := string(jsonrpc.Encode(id))
	f.calls[key] = answer
	f.mu.Unlock()
	f.write(jsonrpc.NewRequest(id, method, params))
	select {
	case m := <-answer:
		if failure, failed := m.Failed(); failed {
			return nil, errors.Newf(errors.Unavailable, "%s failed in the editor: %s", method, failure.Text())
		}
		return m.Result, nil
	case <-ctx.Done():
	}
	f.mu.Lock()
	delete(f.calls, key)
	f.mu.Unlock()
	if f.ctx.Err() == nil {
		f.write(jsonrpc.NewRequest(nil, "$/cancel_request", map[string]any{"requestId": id}))
	}
	return nil, errors.Wrapf(ctx.Err(), "%s", method)
}

// answered handles the answer to a request. Late and unknown answers are ignored.
func (f *face) answered(m jsonrpc.Message) {
	key := string(m.ID) + "\n"
	f.mu.Lock()
	answer := f.calls[key]
	delete(f.calls, key)
	f.mu.Unlock()
	if answer != nil {
		answer <- m
	}
}

// connected returns the client of the server. It connects if no earlier request did.
func (f *face) connected(ctx context.Context) (*client.Client, error) {
	f.connecting.Lock()
	defer f.connecting.Unlock()
	if f.server != nil {
		return f.server, nil
	}
	server, err := f.Connect(ctx)
	if err == nil {
		f.server = server
	}
	return server, err
}

// thread returns an open thread; nil if there is none.
func (f *face) thread(id string) *thread {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.threads[id]
}

// opened returns an open thread, or NotFound.
func (f *face) opened(id string) (*thread, error) {
	if t := f.thread(id); t != nil {
		return t, nil
	}
	return nil, errors.Remedy(errors.Newf(errors.NotFound, "session %.100q is not open", id),
		"load it first: session/load")
}
