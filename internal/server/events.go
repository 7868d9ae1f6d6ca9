package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
)

// maxTail limits how many past events a reader may request.
const maxTail = 10_000

// streamEvents sends the events of the account or of one sandbox, from the reader's position, until the client or the
// server ends the stream.
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request) error {
	if s.opts.Events == nil {
		return edge.Lacks("events")
	}
	reader, err := s.reader(r)
	if err != nil {
		return err
	}
	defer reader.Close()
	if s.opts.Sessions != nil && r.URL.Query().Get("attended") == "true" {
		defer s.opts.Sessions.Attend(r.Context(), edge.Account(r), streamRef(r))()
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.settings.Stopping, cancel)()
	h := w.Header()
	h.Set("Content-Type", api.TypeEvents)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	logf.Infof(ctx, "a client follows events")
	sent, err := s.sendEvents(ctx, w, reader)
	if why := account.Ended(r.Context()); why != nil {
		data := edge.Marshal(edge.Problem(r.Context(), why))
		if _, err := w.Write([]byte("event: " + api.EventProblem + "\ndata: " + string(data) + "\n\n")); err == nil {
			_ = http.NewResponseController(w).Flush()
		}
	}
	logf.Infof(ctx, "a client stopped following events, after %d: %v", sent, err)
	return nil
}

// streamRef returns the sandbox, repository or session whose events r requests; "" for those of the account.
func streamRef(r *http.Request) string {
	if id := r.PathValue("id"); id != "" {
		return id
	}
	return r.URL.Query().Get("stream")
}

// reader subscribes to the stream that r requests.
func (s *Server) reader(r *http.Request) (*event.Reader, error) {
	ctx, query := r.Context(), r.URL.Query()
	stream := event.AccountStream(edge.AccountOf(ctx))
	ref := streamRef(r)
	switch {
	case r.URL.Path == api.InboxEvents:
		stream = inbox.Stream(edge.AccountOf(ctx))
	case ref == "":
	case s.opts.Repos != nil && (strings.HasPrefix(r.URL.Path, api.Repos+"/") || strings.HasPrefix(ref, "repo_")):
		of, err := s.opts.Repos.Get(ctx, edge.AccountOf(ctx), ref)
		if err != nil {
			return nil, err
		}
		stream = of.ID
	case s.opts.Sessions != nil && (r.PathValue("id") != "" || strings.HasPrefix(ref, "ses_")):
		of, err := s.opts.Sessions.Get(ctx, edge.AccountOf(ctx), ref)
		if err != nil {
			return nil, err
		}
		stream = of.ID
	default:
		sb, err := s.opts.Fleet.Get(ctx, edge.AccountOf(ctx), ref)
		if err != nil {
			return nil, err
		}
		stream = sb.ID
	}
	after := query.Get("after")
	if last := r.Header.Get(api.HeaderLastEvent); last != "" { // browsers send it when they reconnect
		after = last
	}
	switch {
	case after != "":
		id, err := strconv.ParseInt(after, 10, 64)
		if err != nil {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid event id %.40q", after),
				"give the id of the last event received, or 0")
		}
		return s.opts.Events.Subscribe(ctx, stream, id)
	case query.Has("tail"):
		n, err := strconv.Atoi(query.Get("tail"))
		if err != nil || n < 0 || n > maxTail {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid ?tail=: %.40q", query.Get("tail")),
				"give a number from 0 to %d", maxTail)
		}
		return s.opts.Events.Tail(ctx, stream, n)
	}
	return s.opts.Events.Subscribe(ctx, stream, 0)
}

// keptFrames is the size limit for a buffer that is kept between events.
const keptFrames = 16 << 10

// sendEvents sends events until ctx, the stream or the connection ends. A client that reads nothing for
// Options.Patience is disconnected.
//
// It is designed for 500 readers of a thousand events a second: it creates no timer, moves no deadline and allocates
// no memory per event unless that is due.
func (s *Server) sendEvents(ctx context.Context, w http.ResponseWriter, reader *event.Reader) (sent int, err error) {
	rc := http.NewResponseController(w)
	defer func() { _ = rc.SetWriteDeadline(time.Time{}) }()
	beat := time.NewTicker(s.opts.Heartbeat)
	defer beat.Stop()
	var deadline time.Time
	// An initial ID shows the client that the stream is open, and where to resume if it breaks before the first
	// event.
	frames := fmt.Appendf(nil, "id: %d\n\n", reader.After())
	for {
		if now := time.Now(); deadline.Sub(now) < s.opts.Patience {
			deadline = now.Add(s.opts.Patience * 5 / 4)
			_ = rc.SetWriteDeadline(deadline) // fails only if w is not a connection
		}
		if _, err := w.Write(frames); err != nil {
			return sent, err
		}
		if err := rc.Flush(); err != nil {
			return sent, err
		}
		if cap(frames) > keptFrames {
			frames = nil
		}
		n := 0
		frames, n, err = reader.AppendNext(ctx, frames[:0], beat.C)
		switch {
		case errors.Is(err, io.EOF):
			return sent, nil
		case err != nil:
			return sent, err
		case n == 0:
			frames = append(frames, ": \n\n"...)
		}
		sent += n
	}
}
