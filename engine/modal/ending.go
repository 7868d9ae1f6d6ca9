package modal

import (
	"context"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// ending is the wait for the end of one sandbox, which all share who wait for it: at Modal it is a call that is made anew every few seconds.
type ending struct {
	done chan struct{}
	end  engine.End // valid once done is closed, without err
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

// ending returns the wait for s, which is begun if there is none.
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

// rememberEnds is how long ends are remembered. Who asks later asks Modal, which has them longer.
const rememberEnds = time.Hour

// seenEnd is the end of a sandbox, and when it was noted.
type seenEnd struct {
	end *engine.End
	at  time.Time
}

// noteEnd notes how a sandbox ended, unless that is known, and forgets ends that nobody asks for any more. e.mu is held.
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

// await waits until Modal says that the sandbox has ended, and no longer than it can live. That Modal refuses to tell does not mean that it has ended.
func (s *Sandbox) await(ctx context.Context) (engine.End, error) {
	life := s.e.opts.Life
	if !s.end.IsZero() {
		life = max(time.Until(s.end), 0)
	}
	limited, cancel := context.WithTimeout(ctx, life+s.e.patience.call)
	defer cancel()
	var refusal error
	for {
		var result *pb.GenericResult
		code, err := bounded(context.WithValue(limited, resultKey{}, &result), func(ctx context.Context) (int, error) { return s.box.Wait(ctx, nil) })
		if end := s.e.endOf(s.h.Ref); end != nil {
			return *end, nil
		}
		switch kind := errors.KindOf(explain(err, "")); {
		case err == nil:
			return endFor(code, result), nil
		case ctx.Err() != nil:
			return engine.End{}, errors.Wrapf(ctx.Err(), "wait for a sandbox")
		case limited.Err() != nil && refusal != nil:
			return engine.End{}, refusal
		case limited.Err() != nil:
			return engine.End{}, unanswered(errors.Wrapf(err, "wait for a sandbox"), s.e.patience.call)
		case kind == errors.NotFound:
			return engine.End{Lost: true, Detail: "Modal does not have the sandbox any more."}, nil
		case kind == errors.Unauthenticated, kind == errors.Denied:
			if refusal == nil {
				logf.Errorf(ctx, "Modal does not tell whether the sandbox %s runs: %v", s.h.ID, err)
			}
			if refusal = explain(err, "wait for a sandbox"); kind == errors.Unauthenticated {
				refusal = revoked(err, "wait for a sandbox")
			}
		case kind != errors.Unavailable:
			return engine.End{}, explain(err, "wait for a sandbox")
		}
		_ = pauseFor(limited, lastPause) // whose end the next call tells
	}
}

// resultKey is the context's key of where the result of a wait goes, of which the SDK itself tells no more than an exit code.
type resultKey struct{}

// seeResult notes what Modal says of a sandbox's end for whoever asks for it by the context.
func seeResult(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, opts...)
	if to, ok := ctx.Value(resultKey{}).(**pb.GenericResult); ok && err == nil {
		if r, ok := reply.(*pb.SandboxWaitResponse); ok {
			*to = r.GetResult()
		}
	}
	return err
}

// Exit codes that Modal has for sandboxes.
const (
	codeTimeout = 124
	codeKilled  = 137
)

// endFor says how a sandbox ended that this server has not destroyed. That its memory ran out is told only where Modal says so itself: the code alone is
// also that of a program that somebody has killed.
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
	case pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT, pb.GenericResult_GENERIC_STATUS_MEMORY_MANAGER_EVICTION:
		return engine.End{Lost: true, Detail: because("Modal ended it")}
	case pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE, pb.GenericResult_GENERIC_STATUS_INIT_FAILURE, pb.GenericResult_GENERIC_STATUS_UNSPECIFIED:
	}
	switch {
	case code == codeKilled && strings.Contains(strings.ToLower(said), "out of memory"):
		return engine.End{OutOfMemory: true, Detail: because("Its memory ran out")}
	case code == codeKilled:
		return engine.End{Detail: because("The program that runs its commands was killed, by a command there or because its memory ran out")}
	case code == codeTimeout && result == nil:
		return engine.End{Lost: true, Detail: "Modal ended it: it had lived for 24 hours."}
	}
	return engine.End{Detail: because("The program that runs its commands has ended")}
}
