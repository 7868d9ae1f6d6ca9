package modal_test

import (
	"archive/tar"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	modalapi "github.com/RelevanceAI/harvest/internal/modal"
	"github.com/RelevanceAI/harvest/internal/store"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

func TestMain(m *testing.M) {
	fake.Main()
	m.Run()
}

// library gives the fake's one image as many names as requested.
type library struct {
	image.Builder

	mu    sync.Mutex
	names map[string]bool // guarded by mu
	taken bool            // guarded by mu; the image is a snapshot
	fail  error           // guarded by mu; of the next build
	log   []string        // guarded by mu; the output of a build
	built []built         // guarded by mu; requested builds
	cmd   []string        // guarded by mu; of the image
}

// built is a requested build.
type built struct {
	spec    image.Spec
	force   bool
	secrets map[string]string
	files   map[string]string // of the build context
}

// asked records a build.
func asked(spec image.Spec, opts image.BuildOptions) (built, error) {
	b := built{spec: spec, force: opts.Force, secrets: map[string]string{}, files: map[string]string{}}
	for name, value := range opts.Secrets {
		b.secrets[name] = string(value)
	}
	if opts.Context == "" {
		return b, nil
	}
	f, err := os.Open(opts.Context)
	if err != nil {
		return b, err
	}
	defer f.Close()
	for tr := tar.NewReader(f); ; {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return b, err
		}
		b.files[hdr.Name] = string(data)
	}
}

func (l *library) Build(ctx context.Context, spec image.Spec, opts image.BuildOptions) (image.Image, error) {
	b, err := asked(spec, opts)
	if err != nil {
		return image.Image{}, err
	}
	l.mu.Lock()
	l.built = append(l.built, b)
	fail, log := l.fail, l.log
	l.fail = nil
	l.mu.Unlock()
	for _, line := range log {
		if opts.Log != nil {
			opts.Log(line)
		}
	}
	if fail != nil {
		return image.Image{}, fail
	}
	spec.Base = "base"
	img, err := l.Builder.Build(ctx, spec, opts)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range opts.Names {
		l.names[name] = true
	}
	img.Names = append(img.Names, opts.Names...)
	return img, err
}

func (l *library) List(ctx context.Context) ([]image.Image, error) {
	list, err := l.Builder.List(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range list {
		list[i].Config.Cmd = l.cmd
		if l.taken {
			list[i].Names, list[i].Snapshot = nil, &image.Snapshot{}
		}
		for name := range l.names {
			list[i].Names = append(slices.Clone(list[i].Names), name)
		}
	}
	return list, err
}

// Delete takes all its names from the image.
func (l *library) Delete(context.Context, string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.names)
	return nil
}

// change adds or removes names of the image, and sets whether it is a snapshot.
func (l *library) change(taken bool, change func(names map[string]bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = taken
	change(l.names)
}

type fakeEngine struct {
	*fake.Engine
	images *library
}

func (e fakeEngine) Images() image.Builder { return e.images }

// portEngine is a fakeEngine whose sandboxes have the ports of this machine.
type portEngine struct{ fakeEngine }

func (e portEngine) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	return fake.WithPorts{Engine: e.Engine}.Create(ctx, spec)
}

// world is a server on the fake engine, and a client of Modal's SDK.
type world struct {
	t      testing.TB
	engine *fake.Engine
	images *library
	ports  bool           // sandboxes have ports, from the next openFleet on
	quotas reserve.Quotas // from the next openFleet on
	fleet  *fleet.Fleet
	vault  *secret.Vault
	ring   *account.Ring
	server *modalapi.Server
	boxes  store.Sandboxes // records
	sealed store.Secrets
	db     *store.DB // outlives the server
	dir    string
	url    string
	id     string // of the key
	secret string
	sdk    *modal.Client
	calls  calls

	conn    *grpc.ClientConn
	control pb.ModalClientClient
	router  pb.TaskCommandRouterClient
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := newBareWorld(t)
	w.connect()
	return w
}

// newBareWorld is one without clients.
func newBareWorld(t testing.TB) *world {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newWorldAt(t, l)
}

// newWorldAt is newBareWorld with a listener.
func newWorldAt(t testing.TB, l net.Listener) *world {
	t.Helper()
	dir, db := t.TempDir(), testdb.Open(t)
	w := &world{t: t, images: &library{names: map[string]bool{}}, dir: filepath.Join(dir, "modal"), db: db,
		ring:  account.NewRing(db.Keys()),
		boxes: db.Sandboxes(), sealed: db.Secrets()}
	var err error
	if w.vault, err = secret.Open(t.Context(),
		secret.Options{Store: w.sealed, KeyFile: filepath.Join(dir, "key")}); err != nil {
		t.Fatal(err)
	}
	w.openFleet()
	key, text, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	w.id, w.secret = key.ID, text.Reveal()
	w.listenAt(l)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if w.sdk != nil {
			w.sdk.Close()
		}
		all, err := w.fleet.List(ctx, "", record.Filter{})
		for _, sb := range all {
			err = errors.Join(err, w.fleet.Destroy(ctx, sb.Account, sb.ID))
		}
		if err := errors.Join(err, w.server.Close(), w.fleet.Close(ctx), w.engine.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// keptOutput is how much output of a command the engine and the server keep.
const keptOutput = 1 << 20

// openFleet opens the engine and the Fleet, as a process does that starts.
func (w *world) openFleet() {
	w.t.Helper()
	var err error
	if w.engine, err = fake.Open(filepath.Join(filepath.Dir(w.dir), "fake"),
		fake.Options{KeepOutput: keptOutput}); err != nil {
		w.t.Fatal(err)
	}
	w.images.Builder = w.engine.Images()
	var made engine.Engine = fakeEngine{w.engine, w.images}
	if w.ports {
		made = portEngine{fakeEngine{w.engine, w.images}}
	}
	if w.fleet, err = fleet.Open(w.t.Context(), fleet.Options{
		Engine: made, Store: w.boxes, Secrets: w.vault, Timeouts: spec.Timeouts{Grace: 10 * time.Millisecond},
		Quotas: w.quotas,
	}); err != nil {
		w.t.Fatal(err)
	}
}

// reopen replaces the engine, the Fleet and the server, as the next process does.
func (w *world) reopen() {
	w.t.Helper()
	if err := errors.Join(w.server.Close(), w.fleet.Close(w.t.Context()), w.engine.Close()); err != nil {
		w.t.Fatal(err)
	}
	w.sdk.Close()
	w.openFleet()
	w.serve()
}

// serve starts a server, and a client of it.
func (w *world) serve() {
	w.t.Helper()
	w.listen()
	w.connect()
}

// listen starts a server.
func (w *world) listen() {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.listenAt(l)
}

// listenAt starts a server that owns l.
func (w *world) listenAt(l net.Listener) {
	w.t.Helper()
	var err error
	if w.server, err = modalapi.New(w.t.Context(), modalapi.Options{
		Fleet: w.fleet, Images: w.images, Volumes: w.engine.Volumes(), Secrets: w.vault, Keys: w.ring, Dir: w.dir,
		Dicts: w.db.Dicts(), Records: w.db.Records(),
		Secret: []byte("signs"), Output: keptOutput, Audit: w.calls.add,
	}); err != nil {
		w.t.Fatal(err)
	}
	w.url = "http://" + l.Addr().String()
	server := w.server
	go func() {
		if err := server.Serve(l); err != nil {
			w.t.Error(err)
		}
	}()
}

// connect makes the clients: Modal's SDK, which takes its server from the environment, and a plain one.
func (w *world) connect() {
	w.t.Helper()
	w.t.Setenv("MODAL_SERVER_URL", w.url)
	w.t.Setenv("MODAL_CONFIG_PATH", filepath.Join(w.dir, "none.toml"))
	var err error
	if w.sdk, err = modal.NewClientWithOptions(&modal.ClientParams{TokenID: w.id, TokenSecret: w.secret,
		Logger: slog.New(slog.DiscardHandler)}); err != nil {
		w.t.Fatal(err)
	}
	w.conn = modaltest.Dial(w.t, w.url)
	w.control, w.router = pb.NewModalClientClient(w.conn), pb.NewTaskCommandRouterClient(w.conn)
}

// ctx is that of a call of the plain client, with more headers as pairs.
func (w *world) ctx(more ...string) context.Context {
	return metadata.AppendToOutgoingContext(w.t.Context(),
		append([]string{"x-modal-client-type", "9", "x-modal-token-id", w.id, "x-modal-token-secret",
			w.secret}, more...)...)
}

// routed is that of a call to the router.
func (w *world) routed(access *pb.CommandRouterAccess) context.Context {
	return metadata.AppendToOutgoingContext(w.t.Context(), "authorization", "Bearer "+access.GetJwt())
}

// create makes a sandbox with Modal's SDK.
func (w *world) create(params *modal.SandboxCreateParams) *modal.Sandbox {
	w.t.Helper()
	app, err := w.sdk.Apps.FromName(w.t.Context(), "app", &modal.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		w.t.Fatal(err)
	}
	sb, err := w.sdk.Sandboxes.Create(w.t.Context(), app, w.sdk.Images.FromRegistry("base", nil), params)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = sb.Detach() })
	return sb
}

// output runs a command that succeeds, and returns its standard output.
func (w *world) output(sb *modal.Sandbox, args ...string) string {
	w.t.Helper()
	out, said, code := modaltest.Run(w.t, sb, nil, args...)
	if code != 0 {
		w.t.Fatalf("%v ended with %d: %s", args, code, said)
	}
	return out
}

// sandboxFilter selects the sandboxes that have not ended.
var sandboxFilter = record.Filter{}

func second[T any](_ T, err error) error { return err }

// started starts a command with the plain client, with a separate ID, and returns the values that its calls need.
func (w *world) started(sandbox string, req pb.TaskExecStartRequest_builder) (ctx context.Context, task string) {
	w.t.Helper()
	ctx, req.TaskId = modaltest.Router(w.ctx(), w.t, w.control, sandbox)
	req.StdoutConfig = pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE
	if _, err := w.router.TaskExecStart(ctx, req.Build()); err != nil {
		w.t.Fatal(err)
	}
	return ctx, req.TaskId
}

// said is the whole output of a command of started.
func (w *world) said(ctx context.Context, task, exec string) string {
	w.t.Helper()
	return modaltest.Output(ctx, w.t, w.router, task, exec, 0)
}

func typeOf(v any) string { return reflect.TypeOf(v).String() }
