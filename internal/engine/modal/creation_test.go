package modal

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
)

// plane is a control plane over gRPC. It makes sandboxes from names and tags only, and loses answers on demand.
type plane struct {
	pb.UnimplementedModalClientServer
	url string

	mu     sync.Mutex
	knows  bool // guarded by mu; it knows idempotency keys
	answer func(n int) (made bool,
		err error) // guarded by mu; decides the nth attempt, from 0 on: err replaces the answer
	unseen  int                                   // guarded by mu; the number of look-ups that do not see the new sandbox
	keys    []string                              // guarded by mu; of the attempts
	byKey   map[string]string                     // guarded by mu
	boxes   map[string]*pb.SandboxCreateV2Request // guarded by mu; running sandboxes, by ID
	tokens  []string                              // guarded by mu; of the callers
	removed chan string                           // IDs of ended sandboxes
	builds  []*pb.ImageGetOrCreateRequest         // guarded by mu
	gpus    []*pb.GPUConfig                       // guarded by mu; as requested for sandboxes
	full    bool                                  // guarded by mu; no GPU is free
	hushes  map[string]*hush                      // guarded by mu; by the id of the token
}

// newPlane serves a plane, to which the SDK's environment leads.
func newPlane(t *testing.T) *plane {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{url: "http://" + l.Addr().String(), hushes: map[string]*hush{}, byKey: map[string]string{},
		boxes: map[string]*pb.SandboxCreateV2Request{}, removed: make(chan string, 100)}
	server := grpc.NewServer(grpc.UnaryInterceptor(p.unary), grpc.StreamInterceptor(p.stream))
	pb.RegisterModalClientServer(server, p)
	pb.RegisterTaskCommandRouterServer(server, &plainRouter{execs: map[string]*exec{}})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "MODAL_PROFILE", "MODAL_ENVIRONMENT",
		"MODAL_SANDBOX_V2", "MODAL_OAUTH_REFRESH_TOKEN", "MODAL_OAUTH_CLIENT_ID"} {
		t.Setenv(name, "")
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("MODAL_SERVER_URL", p.url)
	t.Setenv("MODAL_CONFIG_PATH", filepath.Join(t.TempDir(), "none.toml"))
	return p
}

// open opens an engine that has the plane in Modal's place.
func (p *plane) open(t *testing.T, opts Options) (*Engine, error) {
	t.Helper()
	opts.Dir, opts.Executable = t.TempDir(), os.Args[0]
	e, err := Open(t.Context(), opts)
	if err == nil {
		t.Cleanup(func() { _ = e.Close() })
	}
	return e, err
}

func header(ctx context.Context, name string) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(md.Get(name), " ")
}

func (p *plane) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	return pb.AuthTokenGetResponse_builder{Token: "e30.e30.e30"}.Build(), nil
}

func (p *plane) AppGetOrCreate(ctx context.Context, req *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = append(p.tokens, header(ctx, "x-modal-token-id")+" "+header(ctx,
		"x-modal-token-secret")+" "+req.GetEnvironmentName())
	return pb.AppGetOrCreateResponse_builder{AppId: "ap-1"}.Build(), nil
}

//lint:ignore ST1003 the name is the protocol's
func (p *plane) ImageFromId(_ context.Context, req *pb.ImageFromIdRequest) (*pb.ImageFromIdResponse, error) {
	return pb.ImageFromIdResponse_builder{ImageId: req.GetImageId()}.Build(), nil
}

func (p *plane) SandboxCreateV2(ctx context.Context,
	req *pb.SandboxCreateV2Request) (*pb.SandboxCreateV2Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, n := header(ctx, keyHeader), len(p.keys)
	p.keys = append(p.keys, key)
	made, problem := true, error(nil)
	if p.answer != nil {
		made, problem = p.answer(n)
	}
	id := p.byKey[key]
	if made && (id == "" || !p.knows) {
		for _, other := range p.boxes {
			if name := other.GetDefinition().GetName(); name != "" && name == req.GetDefinition().GetName() {
				return nil, status.Error(codes.AlreadyExists, "there is one of that name")
			}
		}
		id = "sb-" + strings.Repeat("0", 25) + strconv.Itoa(n)
		p.byKey[key], p.boxes[id] = id, req
	}
	if problem != nil {
		return nil, problem
	}
	return pb.SandboxCreateV2Response_builder{SandboxId: id}.Build(), nil
}

// seen reports whether a look-up sees the new sandbox. p.mu is held.
func (p *plane) seen() bool {
	p.unseen--
	return p.unseen < 0
}

func (p *plane) SandboxGetFromNameV2(_ context.Context,
	req *pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen() {
		for id, box := range p.boxes {
			if box.GetDefinition().GetName() == req.GetSandboxName() {
				return pb.SandboxGetFromNameResponse_builder{SandboxId: id}.Build(), nil
			}
		}
	}
	return nil, status.Error(codes.NotFound, "there is none")
}

func (p *plane) SandboxGetFromName(context.Context,
	*pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse, error) {
	return nil, status.Error(codes.NotFound, "there is none")
}

func (p *plane) SandboxListV2(_ context.Context, req *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reply := &pb.SandboxListResponse{}
	if req.GetBeforeTimestamp() != 0 {
		return reply, nil
	}
	var found []*pb.SandboxInfo
	for id, box := range p.boxes {
		has := func(want *pb.SandboxTag) bool {
			return slices.ContainsFunc(box.GetTags(), func(tag *pb.SandboxTag) bool {
				return tag.GetTagName() == want.GetTagName() && tag.GetTagValue() == want.GetTagValue()
			})
		}
		if !slices.ContainsFunc(req.GetTags(), func(tag *pb.SandboxTag) bool { return !has(tag) }) && p.seen() {
			found = append(found, pb.SandboxInfo_builder{Id: id, CreatedAt: 1}.Build())
		}
	}
	reply.SetSandboxes(found)
	return reply, nil
}

func (p *plane) SandboxTagsGetV2(_ context.Context, req *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return pb.SandboxTagsGetResponse_builder{Tags: p.boxes[req.GetSandboxId()].GetTags()}.Build(), nil
}

func (p *plane) SandboxTerminateV2(_ context.Context,
	req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.boxes, req.GetSandboxId())
	select {
	case p.removed <- req.GetSandboxId():
	default: // without a reader
	}
	return &pb.SandboxTerminateResponse{}, nil
}

func (p *plane) SandboxWaitV2(context.Context, *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	return pb.SandboxWaitResponse_builder{Result: pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_TERMINATED}.Build()}.Build(), nil
}

// SandboxCreate makes the sandboxes with a GPU, as the SDK does.
func (p *plane) SandboxCreate(_ context.Context, req *pb.SandboxCreateRequest) (*pb.SandboxCreateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gpus = append(p.gpus, req.GetDefinition().GetResources().GetGpuConfig())
	return pb.SandboxCreateResponse_builder{SandboxId: "sb-" + strings.Repeat("a", 22)}.Build(), nil
}

//lint:ignore ST1003 the name is the protocol's
func (p *plane) SandboxGetTaskId(context.Context, *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full {
		return &pb.SandboxGetTaskIdResponse{}, nil
	}
	task := "ta-1"
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &task}.Build(), nil
}

func (p *plane) SandboxTerminate(ctx context.Context,
	req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	return p.SandboxTerminateV2(ctx, req)
}

// left returns the number of running sandboxes, and of the keys and attempts with which they were requested.
func (p *plane) left() (running, keys, attempts int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sorted := slices.Sorted(slices.Values(p.keys))
	return len(p.boxes), len(slices.Compact(sorted)), len(p.keys)
}

func (p *plane) runs(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.boxes[id] != nil
}

// paramsOf returns the parameters of a sandbox.
func paramsOf(e *Engine, name string) *sdk.SandboxCreateParams {
	return &sdk.SandboxCreateParams{Name: name, Tags: map[string]string{tagServer: e.server}}
}

// lose creates the sandboxes of the first n attempts, and loses the answers.
func lose(n int, code codes.Code) func(int) (bool, error) {
	return func(i int) (bool, error) {
		if i < n {
			return true, status.Error(code, "the answer is lost")
		}
		return true, nil
	}
}

// TestAnswersThatAreLost checks that a sandbox that Modal has created is used or ended if Modal's answer was lost: it
// is not left there.
//
// mission: A8
func TestAnswersThatAreLost(t *testing.T) {
	for name, c := range map[string]struct {
		plane *plane
		name  string
		fails bool // and the sandbox is ended
		keys  int
	}{
		"a server that knows the key": {plane: &plane{knows: true, answer: lose(5, codes.Unavailable)},
			name: "box", keys: 1},
		"one that does not": {plane: &plane{answer: lose(1, codes.Unavailable)},
			name: "box", keys: 1},
		"for good": {plane: &plane{answer: lose(1, codes.DataLoss)}, name: "box",
			fails: true, keys: 1},
		"for good, without a name": {plane: &plane{answer: lose(1, codes.DataLoss)}, fails: true, keys: 1},
		"for good, and seen later": {plane: &plane{answer: lose(1, codes.DataLoss), unseen: 2}, name: "box",
			fails: true, keys: 1},
		"for good, unnamed, seen later": {plane: &plane{answer: lose(1, codes.DataLoss), unseen: 1},
			fails: true, keys: 1},
		"one that does not, and cannot see it": {plane: &plane{answer: lose(1, codes.Unavailable), unseen: 1},
			name: "box", fails: true, keys: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t)
			p.mu.Lock()
			p.knows, p.answer = c.plane.knows, c.plane.answer
			p.mu.Unlock()
			e, err := p.open(t, Options{TokenID: "ak-x", TokenSecret: "as-x"})
			if err != nil {
				t.Fatal(err)
			}
			if err := e.attendants.begin(t.Context()); err != nil { // its look-up is not part of the test
				t.Fatal(err)
			}
			p.mu.Lock()
			p.unseen = c.plane.unseen
			p.mu.Unlock()
			box, err := e.start(t.Context(), records.Image{Modal: "im-1"}, paramsOf(e, c.name))
			if (err != nil) != c.fails {
				t.Fatalf("it ended with %v", err)
			}
			if c.fails {
				<-p.removed
			} else if !p.runs(box.SandboxID) {
				t.Errorf("%s is not what runs", box.SandboxID)
			}
			running, keys, attempts := p.left()
			if keys != c.keys || (running != 0) == c.fails || running > 1 {
				t.Errorf("%d sandboxes run, asked for with %d keys in %d attempts", running, keys, attempts)
			}
		})
	}
}

// TestNamesThatAreTaken checks that a sandbox that another client has created under the name is neither used nor ended.
func TestNamesThatAreTaken(t *testing.T) {
	p := newPlane(t)
	e, err := p.open(t, Options{TokenID: "ak-x", TokenSecret: "as-x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.start(t.Context(), records.Image{Modal: "im-1"}, paramsOf(e, "box")); err != nil {
		t.Fatal(err)
	}
	_, err = e.start(t.Context(), records.Image{Modal: "im-1"}, paramsOf(e, "box"))
	if running, keys, _ := p.left(); errors.KindOf(err) != errors.Conflict || running != 1 || keys != 2 {
		t.Errorf("a second one of that name: %v; %d run, %d keys", err, running, keys)
	}
}

// TestLimitsThatAreReached checks that a creation that Modal refuses because a limit is reached is retried, each time
// with a new key, since Modal may store its answers by key.
//
// mission: F3
func TestLimitsThatAreReached(t *testing.T) {
	p := newPlane(t)
	p.mu.Lock()
	p.answer = func(n int) (bool, error) {
		if n < 2 {
			return false, status.Error(codes.ResourceExhausted, "there are too many sandboxes")
		}
		return true, nil
	}
	p.mu.Unlock()
	e, err := p.open(t, Options{TokenID: "ak-x", TokenSecret: "as-x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.start(t.Context(), records.Image{Modal: "im-1"}, paramsOf(e, "box")); err != nil {
		t.Error(err)
	}
	if running, keys, attempts := p.left(); running != 1 || keys != 3 || attempts != 3 {
		t.Errorf("%d sandboxes run after %d attempts with %d keys", running, attempts, keys)
	}
}

// TestGPUs checks that the GPUs of a Spec are requested from Modal, and that an error says if none is free.
//
// mission: A6
func TestGPUs(t *testing.T) {
	p := newPlane(t)
	e, err := p.open(t, Options{TokenID: "ak-x", TokenSecret: "as-x"})
	if err != nil {
		t.Fatal(err)
	}
	start := func(e *Engine, gpu string) error {
		t.Helper()
		params, err := e.params(engine.Spec{ID: "box", GPU: gpu})
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.start(t.Context(), records.Image{Modal: "im-1"}, params)
		return err
	}
	for gpu, want := range map[string]string{"T4": "T4 1", "A100:2": "A100 2", "h100-80gb:8": "H100-80GB 8"} {
		if err := start(e, gpu); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		got := p.gpus[len(p.gpus)-1]
		p.mu.Unlock()
		if text := got.GetGpuType() + " " + strconv.Itoa(int(got.GetCount())); text != want {
			t.Errorf("for %s Modal is asked for %s", gpu, text)
		}
	}
	if err := start(e, ""); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	asked := len(p.gpus)
	p.full = true
	p.mu.Unlock()
	if asked != 3 {
		t.Errorf("%d sandboxes with a GPU were asked for", asked)
	}
	short := call.Usual
	short.Create = 200 * time.Millisecond
	if e, err = p.open(t, Options{TokenID: "ak-x", TokenSecret: "as-x", patience: short}); err != nil {
		t.Fatal(err)
	}
	err = start(e, "T4")
	if errors.KindOf(err) != errors.Exhausted || !strings.Contains(errors.Message(err), "no GPU T4 became free") ||
		!strings.Contains(errors.RemedyOf(err), "another kind") {
		t.Errorf("without a free one: %v", err)
	}
}

// refusing is a control plane in this process, which refuses every sandbox.
type refusing struct {
	pb.ModalClientClient
	attempts []time.Time
}

//lint:ignore ST1003 the name is the protocol's
func (r *refusing) ImageFromId(_ context.Context, req *pb.ImageFromIdRequest,
	_ ...grpc.CallOption) (*pb.ImageFromIdResponse, error) {
	return pb.ImageFromIdResponse_builder{ImageId: req.GetImageId()}.Build(), nil
}

func (r *refusing) SandboxCreateV2(context.Context, *pb.SandboxCreateV2Request,
	...grpc.CallOption) (*pb.SandboxCreateV2Response, error) {
	r.attempts = append(r.attempts, time.Now())
	return nil, status.Error(codes.ResourceExhausted, "there are too many sandboxes")
}

// mission: F3
func TestLimitsThatLast(t *testing.T) {
	t.Setenv("MODAL_SANDBOX_V2", "1")
	t.Setenv("MODAL_CONFIG_PATH", filepath.Join(t.TempDir(), "none.toml"))
	synctest.Test(t, func(t *testing.T) {
		r := &refusing{}
		client, err := sdk.NewClientWithOptions(&sdk.ClientParams{TokenID: "ak-x", TokenSecret: "as-x",
			ControlPlaneClient: r})
		if err != nil {
			t.Fatal(err)
		}
		e := &Engine{patience: call.Usual, client: client, server: "abcdefghijkl"}
		_, err = e.startIn(t.Context(), &sdk.App{AppID: "ap-1", Name: "app"}, records.Image{Modal: "im-1"},
			paramsOf(e, "box"))
		if errors.KindOf(err) != errors.Exhausted ||
			errors.Message(err) != "Modal has reached a limit of the account" || errors.RemedyOf(err) == "" {
			t.Errorf("it ended with %v, and says %q, %q", err, errors.Message(err), errors.RemedyOf(err))
		}
		last := len(r.attempts) - 1
		if last < 5 ||
			r.attempts[last].Sub(r.attempts[0]) > call.RetryFor { // the bubble's time, which only the retries advance
			t.Fatalf("it was tried at %v", r.attempts)
		}
		for i := 2; i <= last; i++ {
			if before, pause := r.attempts[i-1].Sub(r.attempts[i-2]),
				r.attempts[i].Sub(r.attempts[i-1]); pause < before || pause > call.LastPause {
				t.Errorf("after a pause of %v there is one of %v", before, pause)
			}
		}
	})
}

// TestProfiles checks that the credentials come from the active profile of ~/.modal.toml, or from the one that
// MODAL_PROFILE names.
//
// mission: 9.1, F3
func TestProfiles(t *testing.T) {
	p := newPlane(t)
	home := t.TempDir()
	file := `[one]
token_id = "ak-one"
token_secret = "as-one"
environment = "first"
active = true

[two]
token_id = "ak-two"
token_secret = "as-two"
environment = "second"
`
	if err := os.WriteFile(filepath.Join(home, ".modal.toml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("MODAL_CONFIG_PATH", "")
	for _, c := range []struct {
		profile string
		opts    Options
		want    string
	}{
		{"", Options{}, "ak-one as-one first"},
		{"two", Options{}, "ak-two as-two second"},
		{"two", Options{Environment: "third"}, "ak-two as-two third"},
		{"two", Options{TokenID: "ak-x", TokenSecret: "as-x"}, "ak-x as-x second"},
	} {
		t.Setenv("MODAL_PROFILE", c.profile)
		if _, err := p.open(t, c.opts); err != nil {
			t.Fatalf("the profile %q: %v", c.profile, err)
		}
		p.mu.Lock()
		if got := p.tokens[len(p.tokens)-1]; got != c.want {
			t.Errorf("with the profile %q and %+v calls %q, want %q", c.profile, c.opts, got, c.want)
		}
		p.mu.Unlock()
	}
	t.Setenv("MODAL_PROFILE", "three")
	if _, err := p.open(t, Options{}); errors.KindOf(err) != errors.Unauthenticated ||
		!strings.Contains(errors.RemedyOf(err), "MODAL_TOKEN_ID") {
		t.Errorf("a profile that there is not: %v", err)
	}
}
