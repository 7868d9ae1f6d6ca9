package server

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

const (
	replayLife = 24 * time.Hour
	replayMost = 1 << 20 // bytes of a response that are kept
	unkept     = -1      // status of a Replay whose response was not kept
)

var replayPattern = pattern.New(`^[!-~]{1,255}$`)

// flights are the requests with an Idempotency-Key that are in progress.
type flights struct {
	mu sync.Mutex
	by map[[2]string]chan struct{} // guarded by mu; by account and key: closed when a response is available
}

// board starts the flight with this name and returns the function that ends it. If one is in progress, board returns
// a channel that is closed at its end.
func (f *flights) board(name [2]string) (wait <-chan struct{}, land func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if done := f.by[name]; done != nil {
		return done, nil
	}
	if f.by == nil {
		f.by = map[[2]string]chan struct{}{}
	}
	done := make(chan struct{})
	f.by[name] = done
	return nil, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.by, name)
		close(done)
	}
}

// once executes a request with an Idempotency-Key, unless it was executed before: then it repeats the response.
// Responses that report that nothing was done, or an internal failure, are not kept, so that the same request can
// succeed later.
func (s *Server) once(rt edge.Route, w http.ResponseWriter, r *http.Request) error {
	key := r.Header.Get(api.HeaderIdempotency)
	if !replayPattern().MatchString(key) {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid header %s: %.80q", api.HeaderIdempotency, key),
			"use 1 to 255 printable ASCII characters without spaces, such as a UUID")
	}
	if s.opts.Replays == nil {
		return errors.Remedy(errors.Newf(errors.Unsupported, "this server does not store answers"),
			"omit the header %s", api.HeaderIdempotency)
	}
	data, err := edge.Body(w, r, api.MaxExec)
	if err != nil {
		return err
	}
	// Use an HMAC: the body may contain a secret, and readers of the records could guess it from a plain digest.
	mac := hmac.New(sha256.New, s.settings.Key)
	mac.Write([]byte(r.Method + "\x00" + r.URL.RequestURI() + "\x00" + r.Header.Get("Accept") + "\x00"))
	mac.Write(data)
	now := time.Now()
	want := account.Replay{Account: edge.Account(r), Key: key,
		Request: hex.EncodeToString(mac.Sum(nil)), Created: now}
	for {
		wait, land := s.flying.board([2]string{want.Account, key})
		if land == nil {
			select {
			case <-wait:
				continue
			case <-r.Context().Done():
				return errors.Wrapf(r.Context().Err(), "wait for the same request")
			}
		}
		defer land()
		break
	}
	ctx := context.WithoutCancel(r.Context())
	known, again, err := s.opts.Replays.BeginReplay(ctx, want, now.Add(-replayLife))
	if err != nil {
		return err
	}
	if again {
		return replay(w, want, known)
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	kept := &keeper{ResponseWriter: w}
	err = rt.Handle(kept, r)
	if err != nil && kept.status == 0 {
		p := edge.Problem(r.Context(), err)
		kept.Header().Set("Content-Type", api.TypeProblem)
		kept.WriteHeader(p.Status)
		edge.Encode(kept, p)
		err = nil
	}
	want.Status, want.Type, want.Body = kept.status, kept.Header().Get("Content-Type"), kept.body.Bytes()
	left := r.Context().Err() != nil && kept.status >= 400
	switch {
	// Keep no response if the command has run anyway, or if the response is secret or too long.
	case left && rt.Scope == account.Exec, rt.Secret && kept.status < 300, kept.overflow:
		want.Status, want.Body = unkept, nil
	case err != nil || kept.status == 0 || kept.status == http.StatusTooManyRequests ||
		kept.status >= http.StatusInternalServerError || left:
		want.Status = 0
	}
	if e := s.opts.Replays.EndReplay(ctx, want); e != nil {
		logf.Errorf(ctx, "store an answer: %v", e)
	}
	return err
}

// replay repeats the known response.
func replay(w http.ResponseWriter, want, known account.Replay) error {
	switch {
	case known.Request != want.Request:
		return edge.WithStatus(errors.Remedy(errors.Newf(errors.Invalid, "this %s was already used for another request",
			api.HeaderIdempotency), "use a new one for each request"),
			http.StatusUnprocessableEntity)
	case known.Status == unkept:
		return errors.Remedy(errors.Newf(errors.Conflict,
			"this request was executed before, but its answer was not stored"),
			"check the result with GET; to execute it again, use another %s", api.HeaderIdempotency)
	case known.Status == 0:
		return errors.Remedy(errors.Newf(errors.Conflict,
			"this request was started before, but the server ended during its execution"),
			"check the result with GET; to execute it again, use another %s", api.HeaderIdempotency)
	}
	w.Header().Set("Content-Type", known.Type)
	w.Header().Set(api.HeaderReplayed, "true")
	w.WriteHeader(known.Status)
	_, _ = w.Write(known.Body) // the client may have disconnected
	return nil
}

// keeper records a response.
type keeper struct {
	http.ResponseWriter
	status   int
	body     bytes.Buffer
	overflow bool
}

func (k *keeper) WriteHeader(status int) {
	if k.status == 0 {
		k.status = status
	}
	k.ResponseWriter.WriteHeader(status)
}

func (k *keeper) Write(p []byte) (int, error) {
	if k.status == 0 {
		k.status = http.StatusOK
	}
	if k.body.Len()+len(p) > replayMost {
		k.overflow = true
		k.body.Reset()
	}
	if !k.overflow {
		k.body.Write(p)
	}
	return k.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (k *keeper) Unwrap() http.ResponseWriter { return k.ResponseWriter }
