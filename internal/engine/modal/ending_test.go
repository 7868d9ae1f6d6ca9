package modal

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
)

// mission: A8
func TestEnds(t *testing.T) {
	t.Parallel()
	result := func(s pb.GenericResult_GenericStatus, said string) *pb.GenericResult {
		return pb.GenericResult_builder{Status: s, Exception: said}.Build()
	}
	for name, c := range map[string]struct {
		code   int
		result *pb.GenericResult
		want   engine.End // Detail is a part of it
	}{
		"terminated": {137, result(pb.GenericResult_GENERIC_STATUS_TERMINATED, ""),
			engine.End{Lost: true, Detail: "terminated at Modal"}},
		"old age": {124, result(pb.GenericResult_GENERIC_STATUS_TIMEOUT, ""),
			engine.End{Lost: true, Detail: "24 hours"}},
		"old age, no result": {124, nil, engine.End{Lost: true, Detail: "24 hours"}},
		"a fault": {1, result(pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, "the worker died"),
			engine.End{Lost: true, Detail: "Modal ended it: the worker died."}},
		"evicted": {137, result(pb.GenericResult_GENERIC_STATUS_MEMORY_MANAGER_EVICTION, ""),
			engine.End{Lost: true, Detail: "Modal ended it."}},
		"memory": {137, result(pb.GenericResult_GENERIC_STATUS_FAILURE,
			"the sandbox ran Out Of Memory: it used more than 64 MiB"),
			engine.End{OutOfMemory: true, Detail: "more than 64 MiB"}},
		"killed": {137, result(pb.GenericResult_GENERIC_STATUS_FAILURE, ""),
			engine.End{Detail: "or because its memory ran out"}},
		"by itself": {1, result(pb.GenericResult_GENERIC_STATUS_FAILURE, ""),
			engine.End{Detail: "has ended."}},
		"long story": {1, result(pb.GenericResult_GENERIC_STATUS_FAILURE, strings.Repeat("é", 1000)),
			engine.End{Detail: "é…."}},
		"no result": {137, nil, engine.End{Detail: "was killed"}},
	} {
		got := endFor(c.code, c.result)
		if !strings.Contains(got.Detail, c.want.Detail) || len(got.Detail) > 500 {
			t.Errorf("%s: %q", name, got.Detail)
		}
		if got.Detail = c.want.Detail; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// silent is a control plane that only answers waits for the ends of sandboxes, as configured.
type silent struct {
	pb.ModalClientClient
	wait func(ctx context.Context) (*pb.SandboxWaitResponse, error)
}

func (s silent) SandboxWaitV2(ctx context.Context, req *pb.SandboxWaitRequest,
	_ ...grpc.CallOption) (*pb.SandboxWaitResponse, error) {
	reply := &pb.SandboxWaitResponse{}
	err := seeResult(ctx, "", req, reply, nil, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn,
		_ ...grpc.CallOption) error {
		answer, err := s.wait(ctx)
		if err == nil {
			proto.Merge(reply, answer)
		}
		return err
	})
	return reply, err
}

// ended is a sandbox of an engine whose control plane answers with wait.
func ended(t *testing.T, wait func(ctx context.Context) (*pb.SandboxWaitResponse, error)) *Sandbox {
	t.Helper()
	client, err := sdk.NewClientWithOptions(&sdk.ClientParams{TokenID: "ak-x", TokenSecret: "as-x",
		ControlPlaneClient: silent{wait: wait}})
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{patience: call.Usual, opts: Options{Life: Lifetime}, client: client, links: map[string]*link{},
		ended: map[string]seenEnd{}, endings: map[string]*ending{}}
	e.ctx, e.cancel = context.WithCancel(t.Context())
	t.Cleanup(func() { _ = e.Close() })
	const ref = "sb-01ARZ3NDEKTSV4RRFFQ69G5FAV"
	box, err := client.Sandboxes.FromID(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e.sandbox(engine.Handle{ID: "box", Ref: ref}, box)
}

func TestWait(t *testing.T) {
	t.Parallel()
	calls := 0
	s := ended(t, func(context.Context) (*pb.SandboxWaitResponse, error) {
		calls++
		return pb.SandboxWaitResponse_builder{Result: pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_TERMINATED}.Build()}.Build(), nil
	})
	if end, err := s.Wait(t.Context()); err != nil || !end.Lost || end.OutOfMemory {
		t.Errorf("%+v, %v", end, err)
	}
	if _, err := s.e.Open(t.Context(), s.h); errors.KindOf(err) != errors.NotFound {
		t.Errorf("Open of a sandbox that Modal has ended: %v", err)
	}
	if _, err := s.Denials(t.Context(), 0); errors.KindOf(err) != errors.Conflict || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}

	s = ended(t, func(context.Context) (*pb.SandboxWaitResponse, error) {
		return nil, status.Error(codes.NotFound, "gone")
	})
	if end, err := s.Wait(t.Context()); err != nil || !end.Lost {
		t.Errorf("%+v, %v", end, err)
	}
	s = ended(t, func(context.Context) (*pb.SandboxWaitResponse, error) {
		return nil, status.Error(codes.DataLoss, "no")
	})
	for range 2 { // each sends a new request
		if _, err := s.Wait(t.Context()); errors.KindOf(err) != errors.Internal {
			t.Errorf("%v", err)
		}
	}
	asked := make(chan struct{}, 2)
	s = ended(t, func(ctx context.Context) (*pb.SandboxWaitResponse, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { _, err := s.Wait(ctx); waiting <- err }()
	<-asked
	cancel()
	if err := <-waiting; errors.KindOf(err) != errors.Canceled {
		t.Errorf("given up: %v", err)
	}
	go func() { _, err := s.Wait(t.Context()); waiting <- err }()
	s.e.cancel()
	if err := <-waiting; err == nil || len(asked) != 0 {
		t.Errorf("a wait of an engine that is closed: %v, and %d more calls", err, len(asked))
	}
}

// TestWaitThatIsRefused checks that a sandbox has not ended because Modal refuses to report its end: the end is
// reported when Modal reports it, and the refusal when its lifetime is over.
//
// mission: A8
func TestWaitThatIsRefused(t *testing.T) {
	t.Setenv("MODAL_CONFIG_PATH", filepath.Join(t.TempDir(), "none.toml"))
	for code, want := range map[codes.Code]errors.Kind{codes.Unauthenticated: errors.Unavailable,
		codes.PermissionDenied: errors.Denied} {
		for name, refused := range map[string]int{"for a while": 5, "for ever": 1 << 30} {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				s := ended(t, func(context.Context) (*pb.SandboxWaitResponse, error) {
					if calls++; calls <= refused {
						return nil, status.Error(code, "no")
					}
					return pb.SandboxWaitResponse_builder{Result: pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_TERMINATED}.Build()}.Build(), nil
				})
				s.end = time.Now().Add(time.Hour) // of the bubble's time
				end, err := s.Wait(t.Context())
				switch {
				case refused < calls && (err != nil || !end.Lost):
					t.Errorf("%s %s: %+v, %v", code, name, end, err)
				case refused > calls && (errors.KindOf(err) != want || errors.RemedyOf(err) == "" ||
					time.Now().Before(s.end)):
					t.Errorf("%s %s: %v, before %v", code, name, err, time.Until(s.end))
				}
			})
		}
	}
}

// TestEndsAreForgotten checks that recorded ends are forgotten after a time, except those that a caller still waits
// for, and that the first record of an end stays.
func TestEndsAreForgotten(t *testing.T) {
	t.Parallel()
	e := &Engine{ids: map[string]string{"sb-old": "a", "sb-new": "b"}, ended: map[string]seenEnd{},
		endings: map[string]*ending{"sb-waited": {}}}
	for _, ref := range []string{"sb-old", "sb-waited", "sb-new"} {
		e.noteEnd(ref, &engine.End{Detail: ref})
		if ref != "sb-new" {
			e.ended[ref] = seenEnd{e.ended[ref].end, time.Now().Add(-2 * rememberEnds)}
		}
	}
	e.noteEnd("sb-new", &engine.End{Destroyed: true})
	if e.endOf("sb-old") != nil || e.endOf("sb-waited") == nil || e.endOf("sb-new").Detail != "sb-new" ||
		len(e.ids) != 1 {
		t.Errorf("there are %v, %v", e.ended, e.ids)
	}
}
