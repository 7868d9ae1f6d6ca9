package sandboxes

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// comeBack is how long a command's output waits for a client whose connection broke.
const comeBack = 10 * time.Second

// attachments are the attachments of clients that may reconnect. All methods may be called concurrently.
type attachments struct {
	mu sync.Mutex
	by map[string]*attachment // guarded by mu; by sandbox, process and the client's name for it
}

// attachment is one client's position in the output of a command that it did not start on this connection.
type attachment struct {
	end    context.CancelFunc // ends the attachment: the output no longer waits for it
	hangUp func()             // closes the connection, which may be dead without being detected
}

// take registers a as the attachment with this name, and ends the previous one. The caller calls leave when a has
// ended.
func (as *attachments) take(name string, a *attachment) (leave func()) {
	as.mu.Lock()
	old := as.by[name]
	if as.by == nil {
		as.by = map[string]*attachment{}
	}
	as.by[name] = a
	as.mu.Unlock()
	if old != nil {
		old.end()
		old.hangUp()
	}
	return func() {
		as.mu.Lock()
		defer as.mu.Unlock()
		if as.by[name] == a {
			delete(as.by, name)
		}
	}
}

// attach sends the output of a command that was started earlier, from the client's offset. If the connection of a
// client with an attachment name breaks, the output waits for comeBack until the client reconnects, so that no output
// of a fast command is lost.
func (s *Service) attach(ctx context.Context, st *stream, ref string, req api.AttachRequest) (commands.Result, error) {
	if req.Offset < 0 || len(req.Attachment) > 64 {
		return commands.Result{}, errors.Remedy(errors.Newf(errors.Invalid,
			"invalid attachment: offset must not be negative, and attachment has at most 64 bytes"),
			"give the number of received bytes of stdout and stderr together, including truncated_bytes, as offset")
	}
	held, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { // the client has disconnected
		if req.Attachment == "" || !st.lost.Load() {
			end()
			return
		}
		timer := time.AfterFunc(comeBack, end)
		context.AfterFunc(held, func() { timer.Stop() })
	})()
	out := &place{st: st, held: held, offset: req.Offset}
	x, err := s.Fleet.Attach(held, edge.AccountOf(ctx), ref, req.ProcessID, engine.Stdio{
		Stdout:    &placeStream{out, frames{st: st, id: api.StreamStdout}},
		Stderr:    &placeStream{out, frames{st: st, id: api.StreamStderr}},
		Truncated: out.truncated,
	})
	if err != nil {
		return commands.Result{}, err
	}
	if req.Attachment != "" {
		defer s.attached.take(x.SandboxID()+" "+x.ID()+" "+req.Attachment,
			&attachment{end: end, hangUp: func() { _ = st.conn.CloseNow() }})()
	}
	st.started(x)
	res, err := s.waitHere(held, x)
	if err == nil && !out.reached() {
		return commands.Result{}, errors.Remedy(errors.Newf(errors.Invalid,
			"invalid offset %d: the command has written less", req.Offset), "begin at offset 0")
	}
	return res, err
}

// place is the reader's position in a command's output; output that the reader has is skipped. While the connection
// is broken, writes wait until held ends.
type place struct {
	st   *stream
	held context.Context

	mu     sync.Mutex
	at     int64 // guarded by mu: offset of the output so far
	offset int64 // offset from which the reader needs output
}

// truncated skips output that is no longer kept, and reports how much of it the reader misses.
func (r *place) truncated(bytes int64) {
	r.mu.Lock()
	missed := min(bytes, r.at+bytes-r.offset)
	r.at += bytes
	r.mu.Unlock()
	if missed > 0 {
		r.st.control(api.Control{Truncated: missed})
	}
}

func (r *place) reached() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at >= r.offset
}

// placeStream is one of the command's output streams.
type placeStream struct {
	r *place
	f frames
}

func (o *placeStream) Write(p []byte) (int, error) {
	r := o.r
	r.mu.Lock()
	known := min(max(r.offset-r.at, 0), int64(len(p)))
	r.at += int64(len(p))
	r.mu.Unlock()
	if known == int64(len(p)) {
		return len(p), nil
	}
	n, err := o.f.Write(p[known:])
	if err != nil {
		<-r.held.Done()
	}
	return int(known) + n, err
}
