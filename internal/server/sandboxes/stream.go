package sandboxes

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// execStream runs a command, or attaches to one, with input and output as messages; package api describes them.
func (s *Service) execStream(w http.ResponseWriter, r *http.Request) error {
	ref := r.PathValue("id")
	return s.stream(w, r, func(ctx context.Context, st *stream, first []byte) (commands.Result, error) {
		var req struct {
			api.ExecRequest
			api.AttachRequest
		}
		if err := edge.Decode(first, &req); err != nil {
			return commands.Result{}, err
		}
		if req.ProcessID != "" {
			return s.attach(ctx, st, ref, req.AttachRequest)
		}
		x, err := s.start(ctx, ref, req.ExecRequest, st.stdio(req.ExecRequest))
		if err != nil {
			return commands.Result{}, err
		}
		st.started(x)
		if req.Detach {
			return s.waitHere(ctx, x)
		}
		return s.wait(ctx, x)
	})
}

// runStream is run with input and output as messages.
func (s *Service) runStream(w http.ResponseWriter, r *http.Request) error {
	return s.stream(w, r, func(ctx context.Context, st *stream, first []byte) (commands.Result, error) {
		req, err := decodeRun(first)
		if err != nil {
			return commands.Result{}, err
		}
		req.sandbox.Progress = func(p image.Progress) {
			progress := api.Progress(p)
			st.control(api.Control{Progress: &progress})
		}
		return s.runOnce(ctx, req, st.stdio(req.ExecRequest), st.started)
	})
}

// stream accepts a WebSocket, passes its first message to serve, and sends the result of serve as the last message.
// The context of serve ends when the client disconnects, but not when the server stops.
func (s *Service) stream(w http.ResponseWriter, r *http.Request,
	serve func(ctx context.Context, st *stream, first []byte) (commands.Result, error)) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return errors.Remedy(errors.Newf(errors.Invalid, "GET %.200s: needs a WebSocket", r.URL.Path),
			"connect with a WebSocket, or use POST")
	}
	conn, release, err := edge.Accept(w, r)
	if err != nil {
		return nil // accept has responded
	}
	defer release()
	conn.SetReadLimit(api.MaxExec)
	ctx, leave := context.WithCancel(context.WithoutCancel(r.Context()))
	unlessStopping := func() {
		if s.Stopping.Err() == nil {
			leave() // and with it work
		}
	}
	defer unlessStopping()
	work, giveUp := context.WithCancel(ctx)
	st := &stream{conn: conn, ctx: ctx, giveUp: giveUp, begun: make(chan struct{})}
	st.stdin = newWindow(func(n int) { st.control(api.Control{StdinRead: n}) })
	defer func() {
		if s.Stopping.Err() != nil {
			st.stdin.lose() // the command must not take a part of its input for all of it
		}
		st.stdin.close()
	}()

	_, first, err := conn.Read(ctx)
	if err != nil {
		return nil
	}
	conn.SetReadLimit(api.MaxFrame)
	var receiving sync.WaitGroup
	receiving.Go(func() {
		defer unlessStopping()
		st.receive()
	})
	res, err := serve(work, st, first)
	// A client that does not read blocks the command's output for as long as the command runs, but the end message is
	// sent with a time limit.
	defer time.AfterFunc(s.Patience, func() { _ = conn.CloseNow() }).Stop()
	if err != nil {
		st.send(api.StreamEnd, api.End{Problem: edge.Problem(r.Context(), err)})
	} else {
		exit := resultOut(res)
		st.send(api.StreamEnd, api.End{Exit: &exit})
	}
	// Closing ends receive, too.
	_ = conn.Close(websocket.StatusNormalClosure, "")
	receiving.Wait()
	return nil
}

// stream is one command's connection to its client. All methods may be called concurrently.
type stream struct {
	conn   *websocket.Conn
	ctx    context.Context    // ends when the client disconnects
	giveUp context.CancelFunc // cancels the work of serve
	stdin  *window
	begun  chan struct{} // closed after the client was informed that the command has started
	lost   atomic.Bool   // the connection broke without a close message

	mu     sync.Mutex
	x      *commands.Execution // guarded by mu: nil until it is started
	resize *engine.Size        // guarded by mu: size requested before that
}

// receive handles the client's messages until it disconnects or sends an invalid one. The reason is not reported: the
// connection ends.
func (st *stream) receive() {
	for {
		kind, msg, err := st.conn.Read(st.ctx)
		if err != nil {
			st.lost.Store(websocket.CloseStatus(err) < 0)
			return
		}
		err = errors.Newf(errors.Invalid, "invalid message of a stream")
		if kind == websocket.MessageBinary && len(msg) > 0 {
			switch msg[0] {
			case api.StreamStdin:
				err = st.stdin.add(msg[1:])
			case api.StreamControl:
				err = st.obey(msg[1:])
			}
		}
		if err != nil {
			_ = st.conn.Close(websocket.StatusPolicyViolation, errors.Message(err))
			return
		}
	}
}

// obey executes a control message. It ignores failures, since the command may just have ended.
func (st *stream) obey(data []byte) error {
	var c api.Control
	if err := edge.Decode(data, &c); err != nil {
		return err
	}
	st.mu.Lock()
	x := st.x
	if x == nil && c.Resize != nil {
		size := engine.Size(*c.Resize)
		st.resize = &size
	}
	st.mu.Unlock()
	switch {
	case c.StdinEOF:
		st.stdin.end()
	case x == nil && (c.Kill || c.Signal != ""):
		st.giveUp() // do not start it
	case x == nil:
	case c.Kill:
		_ = x.Kill(st.ctx)
	case c.Signal != "":
		_ = x.Signal(st.ctx, c.Signal)
	case c.Resize != nil:
		_ = x.Resize(st.ctx, engine.Size(*c.Resize))
	}
	return nil
}

// started lets control messages reach the command, and sends its ID to the client before any output: a client that
// sees that the command runs can send it a signal.
func (st *stream) started(x *commands.Execution) {
	st.mu.Lock()
	st.x = x
	size := st.resize
	st.mu.Unlock()
	if size != nil {
		_ = x.Resize(st.ctx, *size)
	}
	what := started(x)
	st.control(api.Control{Started: &what})
	close(st.begun)
}

// stdio returns the command's streams. With Capture, its output is in the Result instead.
func (st *stream) stdio(req api.ExecRequest) (stdio engine.Stdio) {
	if !req.NoStdin {
		stdio.Stdin = st.stdin
	}
	if req.Capture {
		return stdio
	}
	stdio.Stdout = &frames{st: st, id: api.StreamStdout, after: st.begun}
	stdio.Stderr = &frames{st: st, id: api.StreamStderr, after: st.begun}
	stdio.Truncated = func(bytes int64) { st.control(api.Control{Truncated: bytes}) }
	return stdio
}

func (st *stream) control(c api.Control) { st.send(api.StreamControl, c) }

// send sends v as JSON, if the client is still connected.
func (st *stream) send(id byte, v any) {
	_ = st.conn.Write(st.ctx, websocket.MessageBinary, append([]byte{id}, edge.Marshal(v)...))
}

// frames sends its input as messages of one stream, and blocks while the client is slow.
type frames struct {
	st    *stream
	id    byte
	after <-chan struct{} // nothing is sent until it is closed; nil: send at once
	buf   []byte
}

func (f *frames) Write(p []byte) (int, error) {
	if f.after != nil {
		select {
		case <-f.after:
		case <-f.st.ctx.Done():
		}
	}
	for sent := 0; sent < len(p); {
		n := min(len(p)-sent, api.Chunk)
		f.buf = append(append(f.buf[:0], f.id), p[sent:sent+n]...)
		if err := f.st.conn.Write(f.st.ctx, websocket.MessageBinary, f.buf); err != nil {
			return sent, errors.Explainf(err, errors.Canceled, "the client has disconnected")
		}
		sent += n
	}
	return len(p), nil
}
