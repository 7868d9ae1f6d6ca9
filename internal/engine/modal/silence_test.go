package modal

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/inside"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image"
)

// hush makes a plane stop answering one client's calls after a number of them.
type hush struct {
	mu     sync.Mutex
	begun  bool   // guarded by mu, as all below; calls are counted
	passed int    // calls that are still answered
	hushed string // the first call that was not
}

// begin lets the next calls be answered, and no call after them.
func (h *hush) begin(passed int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun, h.passed = true, passed
}

// pass waits for the end of a call that must not be answered.
func (h *hush) pass(ctx context.Context, method string) error {
	h.mu.Lock()
	h.passed--
	silent := h.begun && h.passed < 0
	if silent && h.hushed == "" {
		h.hushed = filepath.Base(method)
	}
	h.mu.Unlock()
	if !silent {
		return nil
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

func (h *hush) met() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hushed
}

// hushOf returns the hush of a call's client, which its token names: the router's token has it in its third part.
func (p *plane) hushOf(ctx context.Context) *hush {
	token := header(ctx, "x-modal-token-id")
	if bearer := header(ctx, "authorization"); token == "" {
		token = bearer[strings.LastIndex(bearer, ".")+1:]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.hushes[token]; h != nil {
		return h
	}
	return &hush{}
}

func (p *plane) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := p.hushOf(ctx).pass(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (p *plane) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := p.hushOf(s.Context()).pass(s.Context(), info.FullMethod); err != nil {
		return err
	}
	return handle(srv, s)
}

func (p *plane) EnvironmentGetOrCreate(context.Context,
	*pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	return pb.EnvironmentGetOrCreateResponse_builder{
		Metadata: pb.EnvironmentMetadata_builder{Settings: pb.EnvironmentSettings_builder{ImageBuilderVersion: "2025.06"}.Build()}.Build(),
	}.Build(), nil
}

func (p *plane) ImageGetOrCreate(_ context.Context,
	req *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.builds = append(p.builds, req)
	return pb.ImageGetOrCreateResponse_builder{ImageId: fmt.Sprintf("im-%d", len(p.builds))}.Build(), nil
}

func (p *plane) ImageJoinStreaming(_ *pb.ImageJoinStreamingRequest,
	s grpc.ServerStreamingServer[pb.ImageJoinStreamingResponse]) error {
	return s.Send(pb.ImageJoinStreamingResponse_builder{Result: pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}.Build()}.Build())
}

func (p *plane) ImageDelete(context.Context, *pb.ImageDeleteRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (p *plane) VolumeGetOrCreate(context.Context,
	*pb.VolumeGetOrCreateRequest) (*pb.VolumeGetOrCreateResponse, error) {
	return pb.VolumeGetOrCreateResponse_builder{VolumeId: "vo-1"}.Build(), nil
}

func (p *plane) SecretGetOrCreate(context.Context,
	*pb.SecretGetOrCreateRequest) (*pb.SecretGetOrCreateResponse, error) {
	return pb.SecretGetOrCreateResponse_builder{SecretId: "st-1"}.Build(), nil
}

//lint:ignore ST1003 the name is the protocol's
func (p *plane) SandboxGetTaskIdV2(context.Context, *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	task := "ta-1"
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &task}.Build(), nil
}

func (p *plane) SandboxTagsSetV2(context.Context, *pb.SandboxTagsSetRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (p *plane) SandboxGetCommandRouterAccess(ctx context.Context,
	_ *pb.SandboxGetCommandRouterAccessRequest) (*pb.SandboxGetCommandRouterAccessResponse, error) {
	return pb.SandboxGetCommandRouterAccessResponse_builder{
		Url: strings.Replace(p.url, "http://", "https://", 1), Jwt: "e30.e30." + header(ctx, "x-modal-token-id"),
	}.Build(), nil
}

// plainRouter runs the engine's commands in sandboxes. The client of the program inside gets a connection that is
// closed at once, and the command that fills that program's volume finds the volume empty.
type plainRouter struct {
	pb.UnimplementedTaskCommandRouterServer
	mu    sync.Mutex
	execs map[string]*exec // guarded by mu; by ID
}

type exec struct {
	args          []string
	stdin, stdout net.Conn // of the client that runs it
}

func (r *plainRouter) exec(id string) *exec {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.execs[id]
}

func (r *plainRouter) TaskExecStart(_ context.Context,
	req *pb.TaskExecStartRequest) (*pb.TaskExecStartResponse, error) {
	near, far := net.Pipe()
	x := &exec{args: req.GetCommandArgs(), stdin: near, stdout: near}
	r.mu.Lock()
	r.execs[req.GetExecId()] = x
	r.mu.Unlock()
	go func() {
		session, err := yamux.Server(far, inside.Mux())
		for err == nil {
			var c net.Conn
			if c, err = session.Accept(); err == nil {
				_ = c.Close()
			}
		}
		_ = far.Close()
	}()
	return &pb.TaskExecStartResponse{}, nil
}

func (r *plainRouter) TaskExecStdinWrite(_ context.Context,
	req *pb.TaskExecStdinWriteRequest) (*pb.TaskExecStdinWriteResponse, error) {
	x := r.exec(req.GetExecId())
	if _, err := x.stdin.Write(req.GetData()); err != nil || req.GetEof() {
		_ = x.stdin.Close()
	}
	return &pb.TaskExecStdinWriteResponse{}, nil
}

func (r *plainRouter) TaskExecStdinWriteStream(s grpc.ClientStreamingServer[pb.TaskExecStdinWriteStreamRequest,
	pb.TaskExecStdinWriteStreamResponse]) error {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return s.SendAndClose(&pb.TaskExecStdinWriteStreamResponse{})
		} else if err != nil {
			return err
		}
	}
}

func (r *plainRouter) TaskExecStdioRead(req *pb.TaskExecStdioReadRequest,
	s grpc.ServerStreamingServer[pb.TaskExecStdioReadResponse]) error {
	x := r.exec(req.GetExecId())
	if x.args[0] != programPath ||
		req.GetFileDescriptor() != pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT {
		return nil
	}
	defer context.AfterFunc(s.Context(), func() { _ = x.stdout.Close() })()
	buf := make([]byte, 1<<10)
	for {
		n, err := x.stdout.Read(buf)
		if err != nil {
			return nil
		}
		if err := s.Send(pb.TaskExecStdioReadResponse_builder{Data: slices.Clone(buf[:n])}.Build()); err != nil {
			return err
		}
	}
}

func (r *plainRouter) TaskExecWait(_ context.Context, req *pb.TaskExecWaitRequest) (*pb.TaskExecWaitResponse, error) {
	code := int32(0)
	if r.exec(req.GetExecId()).args[0] == "test" {
		code = 1
	}
	return pb.TaskExecWaitResponse_builder{Code: &code}.Build(), nil
}

func (r *plainRouter) TaskReloadVolumes(context.Context,
	*pb.TaskReloadVolumesRequest) (*pb.TaskReloadVolumesResponse, error) {
	return &pb.TaskReloadVolumesResponse{}, nil
}

func (r *plainRouter) TaskSetNetworkAccess(context.Context,
	*pb.TaskSetNetworkAccessRequest) (*pb.TaskSetNetworkAccessResponse, error) {
	return &pb.TaskSetNetworkAccessResponse{}, nil
}

func (r *plainRouter) TaskSnapshotFilesystem(context.Context,
	*pb.TaskSnapshotFilesystemRequest) (*pb.TaskSnapshotFilesystemResponse, error) {
	return pb.TaskSnapshotFilesystemResponse_builder{ImageId: "im-9"}.Build(), nil
}

// little is the timeouts of an engine whose Modal does not answer.
func little() call.Patience {
	const d = 250 * time.Millisecond
	return call.Patience{Open: 10 * time.Second, Call: d, Stream: d, Poll: d, Create: d, Link: d, Build: d, Upload: d,
		Snapshot: d, Reload: d, Measure: d}
}

// situation is an engine that has an image, a volume and a sandbox.
type situation struct {
	e   *Engine
	sb  *Sandbox
	vol volume.Volume
	img image.Image
}

// situate opens an engine whose calls to the plane h counts.
func (p *plane) situate(t *testing.T, token string, h *hush) (s situation, err error) {
	t.Helper()
	p.mu.Lock()
	p.hushes[token] = h
	p.mu.Unlock()
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("a program"), 0o700); err != nil {
		return s, err
	}
	s.e, err = Open(t.Context(), Options{Dir: dir, Executable: program, TokenID: token, TokenSecret: "as-x",
		patience: little()})
	if err != nil {
		return s, err
	}
	if err := s.e.attendants.begin(t.Context()); err != nil {
		return s, err
	}
	for n, r := range []records.Image{
		{Modal: "im-1", Image: image.Image{ID: "img_aaaa000000000000", Digest: "sha256:a", Names: []string{ownImage},
			Spec: image.Spec{Base: ownImage}}},
		{Modal: "im-2", Image: image.Image{ID: "img_bbbb000000000000", Digest: "sha256:b", Names: []string{"snap"},
			Snapshot: &image.Snapshot{}}},
	} {
		r.Built = time.Unix(int64(n), 0)
		if s.img, err = s.e.images.records.Named(r, nil); err != nil {
			return s, err
		}
	}
	data := records.Volume{Name: "data", Modal: s.e.volumes.nameOf("data"), Made: true}
	if err := s.e.volumes.records.Write(data); err != nil {
		return s, err
	}
	s.vol = &modalVolume{s.e.volumes, "data"}
	const ref = "sb-01ARZ3NDEKTSV4RRFFQ69G5FAV"
	box, err := s.e.client.Sandboxes.FromID(t.Context(), ref, nil)
	s.sb = s.e.sandbox(engine.Handle{ID: "box", Ref: ref}, box)
	s.sb.end = time.Now() // otherwise its end is waited for
	return s, err
}

// asking has the methods that send requests to Modal.
var asking = map[string]func(ctx context.Context, s situation) error{
	"Engine.Create": func(ctx context.Context, s situation) error {
		_, err := s.e.Create(ctx, engine.Spec{
			ID: "new", Account: "a", Image: s.img.ID, Secrets: []string{"keys"},
			Mounts: []engine.Mount{{Volume: "data", Path: "/data"}},
		})
		return err
	},
	"Engine.Open": func(ctx context.Context, s situation) error { _, err := s.e.Open(ctx, s.sb.h); return err },
	"Engine.List": func(ctx context.Context, s situation) error { _, err := s.e.List(ctx); return err },
	"images.Build": func(ctx context.Context, s situation) error {
		_, err := s.e.images.Build(ctx, image.Spec{Base: "snap", Commands: []string{"RUN true"}}, image.BuildOptions{})
		return err
	},
	"images.Delete": func(ctx context.Context, s situation) error { return s.e.images.Delete(ctx, s.img.ID) },
	"volumes.Create": func(ctx context.Context, s situation) error {
		_, err := s.e.volumes.Create(ctx, volume.StateName)
		return err
	},
	"volumes.Delete":     func(ctx context.Context, s situation) error { return s.e.volumes.Delete(ctx, "data") },
	"modalVolume.Commit": func(ctx context.Context, s situation) error { return s.vol.Commit(ctx) },
	"modalVolume.Reload": func(ctx context.Context, s situation) error { return s.vol.Reload(ctx) },
	"modalVolume.CopyIn": func(ctx context.Context, s situation) error {
		return s.vol.CopyIn(ctx, "",
			directories([]string{"a"}))
	},
	"modalVolume.CopyOut": func(ctx context.Context, s situation) error {
		return drain(s.vol.CopyOut(ctx, "a"))
	},
	"modalVolume.Remove": func(ctx context.Context, s situation) error { return s.vol.Remove(ctx, "a") },
	"modalVolume.ReadDir": func(ctx context.Context, s situation) error {
		_,
			err := s.vol.ReadDir(ctx, "")
		return err
	},
	"Sandbox.Start": func(ctx context.Context, s situation) error {
		p, err := s.sb.Start(ctx, engine.Command{Args: []string{"true"}})
		if err == nil {
			_, err = p.Wait(ctx)
		}
		return err
	},
	"Sandbox.OpenProcess": func(ctx context.Context, s situation) error {
		_, err := s.sb.OpenProcess(ctx, "p", engine.Stdio{})
		return err
	},
	"Sandbox.Processes": func(ctx context.Context, s situation) error { _, err := s.sb.Processes(ctx); return err },
	"Sandbox.CopyIn": func(ctx context.Context, s situation) error {
		return s.sb.CopyIn(ctx, "/a", directories([]string{"a"}))
	},
	"Sandbox.CopyOut": func(ctx context.Context, s situation) error { return drain(s.sb.CopyOut(ctx, "/a")) },
	"Sandbox.Files": func(ctx context.Context, s situation) error {
		return s.sb.Files(ctx, tarfs.Request{Op: tarfs.OpStat, Path: "/"}, io.Discard)
	},
	"Sandbox.Call": func(ctx context.Context, s situation) error {
		_, err := s.sb.Call(ctx, wire.Request{Op: wire.Info})
		return err
	},
	"Sandbox.Tool": func(ctx context.Context, s situation) error {
		return s.sb.Tool(ctx, &bytes.Buffer{},
			nil, "tool")
	},
	"Sandbox.ToolOutput": func(ctx context.Context, s situation) error { return drain(s.sb.ToolOutput(ctx, "tool")) },
	"Sandbox.Wait":       func(ctx context.Context, s situation) error { _, err := s.sb.Wait(ctx); return err },
	"Sandbox.Denials":    func(ctx context.Context, s situation) error { _, err := s.sb.Denials(ctx, 0); return err },
	"Sandbox.Destroy":    func(ctx context.Context, s situation) error { return s.sb.Destroy(ctx) },
	"Sandbox.Spec":       func(ctx context.Context, s situation) error { _, err := s.sb.Spec(ctx); return err },
	"Sandbox.Carry":      func(ctx context.Context, s situation) error { _, err := s.sb.Carry(ctx); return err },
	"Sandbox.Dial":       func(ctx context.Context, s situation) error { _, err := s.sb.Dial(ctx, 80); return err },
	"Sandbox.SetNetwork": func(ctx context.Context, s situation) error {
		return s.sb.SetNetwork(ctx, engine.Network{Mode: engine.NetworkDefault})
	},
	"Sandbox.SnapshotImage": func(ctx context.Context, s situation) error {
		_, err := s.sb.SnapshotImage(ctx, s.img, image.SnapshotOptions{})
		return err
	},
}

func drain(r io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close())
}

// local are the methods that do not, or as Close does return without an answer.
var local = []string{
	"Engine.Name", "Engine.Capabilities", "Engine.Images", "Engine.Volumes", "Engine.Close", "images.Find",
	"images.List", "images.Use", "volumes.Open", "volumes.List",
	"volumes.Use", "modalVolume.Name", "Sandbox.Handle", "Sandbox.Ends",
}

// TestSilenceCoversEveryMethod checks that TestModalIsSilent, which is long, tries all methods. It runs every time, so
// that a new method is noticed at once.
func TestSilenceCoversEveryMethod(t *testing.T) {
	for _, of := range []any{&Engine{}, &images{}, &volumes{}, &modalVolume{}, &Sandbox{}} {
		for m := range reflect.TypeOf(of).Methods() {
			name := reflect.TypeOf(of).Elem().Name() + "." + m.Name
			if asking[name] == nil && !slices.Contains(local, name) {
				t.Errorf("%s is not tried", name)
			}
		}
	}
}

// TestModalIsSilent checks that every method returns an error when Modal no longer answers, at any call. The test
// asserts only that each method returns, not how fast.
//
// mission: A3
func TestModalIsSilent(t *testing.T) {
	testenv.Long(t)
	p := newPlane(t)
	turns := make(chan struct{}, 16)
	var all sync.WaitGroup
	for name, ask := range asking {
		all.Go(func() {
			for passed := 0; passed < 30; passed++ {
				turns <- struct{}{}
				met, err := p.hushed(t, name, passed, ask)
				<-turns
				switch {
				case met == "" && passed == 0:
					t.Errorf("%s asks Modal for nothing", name)
				case met == "":
					return
				case err == nil && passed == 0, err != nil && errors.KindOf(err) != errors.Unavailable:
					t.Errorf("%s ended, when %s was not answered after %d calls, with %v (%s)", name, met, passed, err,
						errors.KindOf(err))
				}
			}
		})
	}
	all.Wait()
}

// hushed calls a method of an engine of which so many calls pass, and returns the first call that did not.
func (p *plane) hushed(t *testing.T, name string, passed int,
	ask func(ctx context.Context, s situation) error) (met string, err error) {
	t.Helper()
	h := &hush{}
	s, err := p.situate(t, fmt.Sprintf("ak-%s-%d", strings.ReplaceAll(name, ".", "-"), passed), h)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return "", nil
	}
	defer func() { _ = s.e.Close() }()
	h.begin(passed)
	ended := make(chan error, 1)
	go func() { ended <- ask(t.Context(), s) }()
	select {
	case err = <-ended:
	case <-time.After(2 * time.Minute):
		t.Errorf("%s does not return when %s is not answered, after %d calls", name, h.met(), passed)
	}
	return h.met(), err
}

// TestModalIsDeaf checks that calls do not wait for a server that accepts connections and sends nothing.
//
// mission: A3
func TestModalIsDeaf(t *testing.T) {
	p := newPlane(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	t.Setenv("MODAL_SERVER_URL", "http://"+l.Addr().String()) // only the kernel accepts its connections
	short := little()
	short.Open = short.Call
	if _, err := p.open(t, Options{TokenID: "ak-x", TokenSecret: "as-x",
		patience: short}); errors.KindOf(err) != errors.Unavailable || errors.RemedyOf(err) == "" {
		t.Errorf("it ended with %v (%s)", err, errors.KindOf(err))
	}
}
