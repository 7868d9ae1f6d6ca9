package modal

import (
	"context"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
)

// ending waits for the end of one sandbox, on behalf of all callers of Wait. At Modal it is a call that is
// renewed every few seconds.
type ending struct {
	done chan struct{}
	end  engine.End // valid once done is closed, if err is nil
	err  error
}

// Wait implements engine.Sandbox.
func (s *Sandbox) Wait(ctx context.Context) (engine.End, error) {
	w := s.e.ending(s)
	select {
	case <-w.done:
		return w.end, w.err
	case <-ctx.Done():
		return engine.End{}, errors.Wrapf(ctx.Err(), "wait for a sandbox")
	}
}

// ending returns the wait for s, and starts it if necessary.
func (e *Engine) ending(s *Sandbox) *ending {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.endings[s.h.Ref]
	if w != nil {
		return w
	}
	w = &ending{done: make(chan struct{})}
	e.endings[s.h.Ref] = w
	go func() {
		defer close(w.done)
		w.end, w.err = s.await(e.ctx)
		e.mu.Lock()
		delete(e.endings, s.h.Ref)
		if w.err == nil {
			e.noteEnd(s.h.Ref, &w.end)
		}
		e.mu.Unlock()
		if w.err == nil {
			e.unlink(s.h.Ref)
		}
	}()
	return w
}

// rememberEnds is how long ends are remembered. Later requests go to Modal, which remembers them longer.
const rememberEnds = time.Hour

// seenEnd is the end of a sandbox, with the time when it was noted.
type seenEnd struct {
	end *engine.End
	at  time.Time
}

// noteEnd records how a sandbox ended, unless that is known already, and forgets old ends without waiters. e.mu
// is held.
func (e *Engine) noteEnd(ref string, end *engine.End) {
	now := time.Now()
	for old, seen := range e.ended {
		if now.Sub(seen.at) > rememberEnds && e.endings[old] == nil {
			delete(e.ended, old)
			delete(e.ids, old)
		}
	}
	if _, known := e.ended[ref]; !known {
		e.ended[ref] = seenEnd{end, now}
	}
}

// await waits until Modal reports the end of the sandbox, at most for its remaining lifetime. If Modal refuses
// to answer, that does not mean that the sandbox has ended.
func (s *Sandbox) await(ctx context.Context) (engine.End, error) {
	life := s.e.opts.Life
	if !s.end.IsZero() {
		life = max(time.Until(s.end), 0)
	}
	limited, cancel := context.WithTimeout(ctx, life+s.e.patience.Call)
	defer cancel()
	var refusal error
	for {
		var result *pb.GenericResult
		code, err := call.Bounded(context.WithValue(limited, resultKey{}, &result),
			func(ctx context.Context) (int, error) { return s.box.Wait(ctx, nil) })
		if end := s.e.endOf(s.h.Ref); end != nil {
			return *end, nil
		}
		switch kind := errors.KindOf(call.Explain(err, "")); {
		case err == nil:
			return endFor(code, result), nil
		case ctx.Err() != nil:
			return engine.End{}, errors.Wrapf(ctx.Err(), "wait for a sandbox")
		case limited.Err() != nil && refusal != nil:
			return engine.End{}, refusal
		case limited.Err() != nil:
			return engine.End{}, call.Unanswered(errors.Wrapf(err, "wait for a sandbox"), s.e.patience.Call)
		case kind == errors.NotFound:
			return engine.End{Lost: true, Detail: "Modal no longer has the sandbox."}, nil
		case kind == errors.Unauthenticated, kind == errors.Denied:
			if refusal == nil {
				logf.Errorf(ctx, "Modal does not tell whether the sandbox %s runs: %v", s.h.ID, err)
			}
			if refusal = call.Explain(err, "wait for a sandbox"); kind == errors.Unauthenticated {
				refusal = call.Revoked(err, "wait for a sandbox")
			}
		case kind != errors.Unavailable:
			return engine.End{}, call.Explain(err, "wait for a sandbox")
		}
		_ = call.Pause(limited, call.LastPause) // the next call notices the end of limited
	}
}

// resultKey is the context key of the destination for the result of a wait. The SDK itself returns only an exit
// code.
type resultKey struct{}

// seeResult stores Modal's report of a sandbox's end where the context asks for it.
func seeResult(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, opts...)
	if to, ok := ctx.Value(resultKey{}).(**pb.GenericResult); ok && err == nil {
		if r, ok := reply.(*pb.SandboxWaitResponse); ok {
			*to = r.GetResult()
		}
	}
	return err
}

// Exit codes that Modal uses for sandboxes.
const (
	codeTimeout = 124
	codeKilled  = 137
)

// endFor describes the end of a sandbox that this server did not destroy. It reports OutOfMemory only if Modal
// says so, because a killed program has the same exit code.
func endFor(code int, result *pb.GenericResult) engine.End {
	said := strings.TrimSuffix(strings.TrimSpace(result.GetException()), ".")
	if len(said) > 300 {
		said = strings.ToValidUTF8(said[:300], "") + "…"
	}
	because := func(text string) string {
		if said == "" {
			return text + "."
		}
		return text + ": " + said + "."
	}
	switch result.GetStatus() {
	case pb.GenericResult_GENERIC_STATUS_TERMINATED:
		return engine.End{Lost: true, Detail: because("It was terminated at Modal, and not by this server")}
	case pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		return engine.End{Lost: true, Detail: "Modal ended it: it had lived for 24 hours."}
	case pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT,
		pb.GenericResult_GENERIC_STATUS_MEMORY_MANAGER_EVICTION:
		return engine.End{Lost: true, Detail: because("Modal ended it")}
	case pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE,
		pb.GenericResult_GENERIC_STATUS_INIT_FAILURE, pb.GenericResult_GENERIC_STATUS_UNSPECIFIED:
	}
	switch {
	case code == codeKilled && strings.Contains(strings.ToLower(said), "out of memory"):
		return engine.End{OutOfMemory: true, Detail: because("Its memory ran out")}
	case code == codeKilled:
		return engine.End{Detail: because("The program that runs its commands was killed, by a command there or " +
			"because its memory ran out")}
	case code == codeTimeout && result == nil:
		return engine.End{Lost: true, Detail: "Modal ended it: it had lived for 24 hours."}
	}
	return engine.End{Detail: because("The program that runs its commands has ended")}
}
