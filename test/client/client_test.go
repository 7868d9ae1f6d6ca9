package client_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store"
)

func TestMain(m *testing.M) {
	logf.Setup(io.Discard, slog.LevelInfo, false)
	os.Exit(m.Run())
}

// world is a server on the fake engine, and a client of it.
type world struct {
	*client.Client
	data   string
	engine *fake.Engine
	fleet  *fleet.Fleet
	server *server.Server
}

func start(t *testing.T) *world {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	w, end, err := serve(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// serve starts a server; end ends it, and all sandboxes.
func serve(ctx context.Context, data string) (w *world, end func() error, err error) {
	w = &world{Client: client.New(data), data: data}
	if w.engine, err = fake.Open(filepath.Join(data, "fake"), fake.Options{KeepOutput: 1 << 20}); err != nil {
		return nil, nil, err
	}
	db, err := store.Open(ctx, filepath.Join(data, "harvest.db"))
	if err != nil {
		return nil, nil, err
	}
	events := event.Open(ctx, event.Options{Store: db.Events()})
	w.fleet, err = fleet.Open(ctx, fleet.Options{
		Engine: w.engine, Store: db.Sandboxes(), Timeouts: spec.Timeouts{Grace: 10 * time.Millisecond},
		Event: record.Publish(ctx, events),
	})
	if err != nil {
		return nil, nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	w.server = server.New(ctx, server.Options{
		Fleet: w.fleet, Images: w.engine.Images(), Volumes: w.engine.Volumes(), Engine: "fake",
		Replays: db.Replays(), Version: "1", Shutdown: stop, Events: events,
	})
	l, err := socket.Listen(data, client.Socket)
	if err != nil {
		stop()
		return nil, nil, err
	}
	ended := make(chan error, 2)
	go func() { ended <- w.server.ServeLocal(l) }()
	go func() {
		<-ctx.Done()
		w.server.Stop(context.WithoutCancel(ctx))
		ended <- w.server.Close()
	}()
	return w, func() error {
		stop()
		err := errors.Join(<-ended, <-ended)
		w.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		all, failed := w.fleet.List(ctx, "personal", record.Filter{})
		err = errors.Join(err, failed)
		for _, s := range all {
			err = errors.Join(err, w.fleet.Destroy(ctx, "personal", s.ID))
		}
		return errors.Join(err, w.fleet.Close(ctx), events.Close(ctx), db.Close())
	}, nil
}

func (w *world) create(t *testing.T) api.Sandbox {
	t.Helper()
	made, err := w.CreateSandbox(t.Context(), api.SandboxRequest{Name: "box"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func shell(script string, args ...string) api.ExecRequest {
	return api.ExecRequest{Args: append([]string{"sh", "-c", script}, args...)}
}

// mission: A1
func TestSandboxes(t *testing.T) {
	t.Parallel()
	w := start(t)
	ctx := t.Context()
	made := w.create(t)
	for range 2 {
		if _, err := w.CreateSandbox(ctx, api.SandboxRequest{Tags: map[string]string{"a": "b"}},
			func(api.Progress) {}); err != nil {
			t.Fatal(err)
		}
	}
	page, next, err := w.Sandboxes(ctx, api.SandboxFilter{Tags: map[string]string{"a": "b"}, Limit: 1, All: true})
	if err != nil || len(page) != 1 || next == "" {
		t.Errorf("a page: %v, %q, %v", page, next, err)
	}
	page, next, err = w.Sandboxes(ctx, api.SandboxFilter{Name: "box", Cursor: ""})
	if err != nil || len(page) != 1 || page[0].ID != made.ID || next != "" {
		t.Errorf("by name: %v, %q, %v", page, next, err)
	}
	got, err := w.Sandbox(ctx, made.ID[:len(made.ID)-1])
	if err != nil || got.ID != made.ID {
		t.Errorf("get by the beginning: %v, %v", got.ID, err)
	}
	changed, err := w.ExtendSandbox(ctx, "box", api.ExtendRequest{TimeoutSeconds: 3600, IdleTimeoutSeconds: 60})
	if err != nil || changed.IdleTimeoutSeconds != 60 {
		t.Errorf("extend: %+v, %v", changed, err)
	}
	res, err := w.Exec(ctx, "box", shell("echo out; exit 3"))
	if err != nil || res.ReturnCode != 3 || res.Stdout != "out\n" {
		t.Errorf("exec: %+v, %v", res, err)
	}
	if err := w.DestroySandbox(ctx, "box"); err != nil {
		t.Error(err)
	}
	if box, err := w.Sandbox(ctx, "box"); err != nil || box.Status != string(record.Terminated) || box.Reason == "" {
		t.Errorf("after its end: %+v, %v", box, err)
	}
}

// mission: A9
func TestErrorsKeepTheirParts(t *testing.T) {
	t.Parallel()
	w := start(t)
	for _, kind := range errors.Kinds {
		w.engine.FailNext(fake.OpCreate, errors.Remedy(errors.Newf(kind, "planned %s", kind), "do that"))
		_, err := w.CreateSandbox(t.Context(), api.SandboxRequest{}, nil)
		if !errors.Is(err, kind) || errors.Message(err) != "planned "+string(kind) ||
			errors.RemedyOf(err) != "do that" || errors.StageOf(err) == "" {
			t.Errorf("%s became %v: kind %s, remedy %q, stage %q", kind, err, errors.KindOf(err), errors.RemedyOf(err),
				errors.StageOf(err))
		}
	}
	w.engine.FailNext(fake.OpCreate, errors.Errorf("hidden cause"))
	_, err := w.CreateSandbox(t.Context(), api.SandboxRequest{}, nil)
	if errors.KindOf(err) != errors.Internal || !strings.Contains(errors.RemedyOf(err), "req_") ||
		strings.Contains(err.Error(), "cause") {
		t.Errorf("an internal error: %v, remedy %q", err, errors.RemedyOf(err))
	}
	if err := client.Error(api.Problem{Code: "from the future", Detail: "x"}); errors.KindOf(err) != errors.Internal {
		t.Errorf("an unknown code: %v", err)
	}
}

func TestExecute(t *testing.T) {
	t.Parallel()
	w := start(t)
	res, err := w.Execute(t.Context(), "import sys; print(6*7); sys.exit(3)", time.Minute)
	if err != nil || res.Stdout != "42\n" || res.ReturnCode != 3 {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := w.Execute(t.Context(), " \n", 0); errors.KindOf(err) != errors.Invalid {
		t.Errorf("empty code: %v", err)
	}
	if _, err := w.Execute(t.Context(), "print('\x00')", 0); errors.KindOf(err) != errors.Invalid {
		t.Errorf("binary code: %v", err)
	}
	if _, err := w.Execute(t.Context(), "print('\xff')", 0); errors.KindOf(err) != errors.Invalid {
		t.Errorf("code that is not UTF-8: %v", err)
	}
	// mission: A1
	// 10 MB of code.
	big := "x = '''" + strings.Repeat("long line of text\n", 10<<20/18) + "'''\nprint(len(x))"
	if res, err := w.Execute(t.Context(), big, 0); err != nil || !strings.HasPrefix(res.Stdout, "104") {
		t.Errorf("10 MB of code: %v, %v", res, err)
	}
}

// mission: A4
func TestStream(t *testing.T) {
	t.Parallel()
	w := start(t)
	made := w.create(t)
	var stdout, stderr bytes.Buffer
	var early *client.Process
	p, err := w.Start(t.Context(), "box", shell("echo err >&2; cat; exit 5"), client.Streams{
		Stdin: strings.NewReader("in"), Stdout: &stdout, Stderr: &stderr,
		Started: func(p *client.Process) {
			if early = p; stdout.Len()+stderr.Len() > 0 {
				t.Error("output came before the news that the command runs")
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if early != p {
		t.Error("Started was told of another process")
	}
	res, err := p.Wait(t.Context())
	if err != nil || res.ReturnCode != 5 || stdout.String() != "in" || stderr.String() != "err\n" ||
		p.SandboxID() != made.ID || p.ID() == "" {
		t.Errorf("%+v, %v, stdout %q, stderr %q", res, err, stdout.String(), stderr.String())
	}
	req := shell("echo out")
	req.Capture = true
	p, err = w.Start(t.Context(), "box", req, client.Streams{Stdout: &stdout})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.Stdout != "out\n" || stdout.String() != "in" {
		t.Errorf("captured: %+v, %v, stdout %q", res, err, stdout.String())
	}
	if _, err := w.Start(t.Context(), "box", api.ExecRequest{Args: []string{"/no/such"}},
		client.Streams{}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("no such program: %v", err)
	}
	if _, err := w.Start(t.Context(), "nosuch", shell("true"),
		client.Streams{}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("no such sandbox: %v", err)
	}
	if _, err := w.Start(t.Context(), "box", api.ExecRequest{Code: strings.Repeat("x", api.MaxExec)},
		client.Streams{}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("too large: %v", err)
	}
}

// TestStreamIsWhole checks that more data than any buffer holds arrives completely and in order, in both directions.
func TestStreamIsWhole(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create(t)
	const total = 32 << 20
	in, out := sha256.New(), sha256.New()
	p, err := w.Start(t.Context(), "box", shell("cat"), client.Streams{
		Stdin: io.TeeReader(io.LimitReader(&pattern{}, total), in), Stdout: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.ReturnCode != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if !bytes.Equal(in.Sum(nil), out.Sum(nil)) {
		t.Error("what came back differs")
	}
}

// pattern is an endless stream that does not repeat soon.
type pattern struct{ n uint64 }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		p.n = p.n*6364136223846793005 + 1442695040888963407
		b[i] = byte(p.n >> 56)
	}
	return len(b), nil
}

// TestSignalPassesInput checks that a signal reaches a command that does not read its input, however much input is
// pending.
func TestSignalPassesInput(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create(t)
	ready := newWaiter("ready\n")
	p, err := w.Start(t.Context(), "box", shell("trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done"),
		client.Streams{
			Stdin: &pattern{}, Stdout: ready,
		})
	if err != nil {
		t.Fatal(err)
	}
	ready.wait(t)
	if err := p.Signal("TERM"); err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.ReturnCode != 9 {
		t.Errorf("%+v, %v", res, err)
	}
}

// waiter is a writer that reports when it has received a text.
type waiter struct {
	text string
	seen chan struct{}
	once sync.Once
	mu   sync.Mutex
	got  []byte // guarded by mu
}

func newWaiter(text string) *waiter { return &waiter{text: text, seen: make(chan struct{})} }

func (w *waiter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, p...)
	if bytes.Contains(w.got, []byte(w.text)) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(p), nil
}

func (w *waiter) wait(t *testing.T) {
	t.Helper()
	select {
	case <-w.seen:
	case <-time.After(2 * time.Minute):
		w.mu.Lock()
		defer w.mu.Unlock()
		t.Fatalf("%q did not come, only %q", w.text, w.got)
	}
}

// mission: A4, 4.7
func TestTerminal(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create(t)
	req := shell("stty size; while read -r line; do stty size; echo got $line; done")
	req.Terminal = &api.Size{Rows: 11, Cols: 33}
	typed, typing := io.Pipe()
	out := newWaiter("11 33")
	p, err := w.Start(t.Context(), "box", req, client.Streams{Stdin: typed, Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.wait(t)
	if err := p.Resize(api.Size{Rows: 22, Cols: 44}); err != nil {
		t.Fatal(err)
	}
	for size := ""; !strings.Contains(size, "22 44"); {
		io.WriteString(typing, "a\n")
		time.Sleep(10 * time.Millisecond)
		out.mu.Lock()
		size = string(out.got)
		out.mu.Unlock()
	}
	typing.Close()
	if res, err := p.Wait(t.Context()); err != nil || res.ReturnCode != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestLeaving checks that a client that disconnects ends its command, but not a detached one.
// mission: A3
func TestLeaving(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create(t)
	for _, detach := range []bool{false, true} {
		ctx, leave := context.WithCancel(t.Context())
		out := newWaiter("ready\n")
		req := shell("echo ready; sleep 100 & wait")
		req.Detach = detach
		p, err := w.Start(ctx, "box", req, client.Streams{Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		out.wait(t)
		leave()
		if _, err := p.Wait(t.Context()); errors.KindOf(err) != errors.Canceled {
			t.Errorf("the client's own end: %v", err)
		}
		if detach {
			again, err := w.Attach(t.Context(), "box", p.ID(), client.Streams{})
			if err != nil {
				t.Fatal(err)
			}
			if err := again.Kill(); err != nil {
				t.Fatal(err)
			}
			if res, err := again.Wait(t.Context()); err != nil || res.Signal != "KILL" {
				t.Errorf("the detached command: %+v, %v", res, err)
			}
			continue
		}
		for running := true; running; time.Sleep(5 * time.Millisecond) {
			all, err := w.Processes(t.Context(), "box")
			if err != nil {
				t.Fatal(err)
			}
			running = all[len(all)-1].Exit == nil
		}
	}
}

func TestAttach(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create(t)
	started, err := w.ExecDetached(t.Context(), "box",
		shell("echo out; echo err >&2; head -c 3000000 /dev/zero; exit 7"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // as often as one likes
		var stdout, stderr bytes.Buffer
		var lost int64
		p, err := w.Attach(t.Context(), "box", started.ProcessID, client.Streams{
			Stdout: &stdout, Stderr: &stderr, Truncated: func(n int64) { lost = n },
		})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := p.Wait(t.Context()); err != nil || res.ReturnCode != 7 {
			t.Errorf("%+v, %v", res, err)
		}
		if total := lost + int64(stdout.Len()+stderr.Len()); total != 3000008 {
			t.Errorf("%d bytes, of which %d are lost; want 3000008", total, lost)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	started, err = w.ExecDetached(t.Context(), "box", shell("sleep 100"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.Attach(ctx, "box", started.ProcessID, client.Streams{})
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if _, err := p.Wait(t.Context()); errors.KindOf(err) != errors.Canceled {
		t.Errorf("detaching: %v", err)
	}
	all, err := w.Processes(t.Context(), "box")
	if err != nil || len(all) != 2 || all[0].Exit != nil && all[1].Exit != nil {
		t.Errorf("detaching ended the command: %+v, %v", all, err)
	}
	if _, err := w.Attach(t.Context(), "box", "nosuch", client.Streams{}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("no such process: %v", err)
	}
}

// mission: A1, A3
func TestRun(t *testing.T) {
	t.Parallel()
	w := start(t)
	var out bytes.Buffer
	req := api.RunRequest{ExecRequest: shell("cat; echo $V; exit 2")}
	req.Env = map[string]string{"V": "value"}
	p, err := w.Run(t.Context(), req, client.Streams{Stdin: strings.NewReader("in "), Stdout: &out,
		Progress: func(api.Progress) {}})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.ReturnCode != 2 || out.String() != "in value\n" {
		t.Errorf("%+v, %v, %q", res, err, out.String())
	}
	got, err := w.Sandbox(t.Context(), p.SandboxID())
	if err != nil || got.Status != "terminated" {
		t.Errorf("its sandbox is %s, %v", got.Status, err)
	}
	if _, err := w.Run(t.Context(), api.RunRequest{Sandbox: api.SandboxRequest{Image: "nosuch"},
		ExecRequest: shell("true")}, client.Streams{}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("no such image: %v", err)
	}
}

// TestRunGivenUp checks that a cancellation before the command starts ends the creation, and leaves nothing.
// mission: A3, A8
func TestRunGivenUp(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.engine.Delay(fake.OpCreate, time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := w.Run(ctx, api.RunRequest{ExecRequest: shell("true")},
		client.Streams{}); errors.KindOf(err) != errors.Timeout {
		t.Errorf("given up: %v", err)
	}
	for w.server.Idle() == 0 {
		time.Sleep(time.Millisecond)
	}
	if all, err := w.engine.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}

// A writer that fails ends the connection, and with it the command.
func TestWriterFails(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create(t)
	r, pw := io.Pipe()
	r.Close()
	p, err := w.Start(t.Context(), "box", shell("while :; do echo x; sleep 0.01; done"), client.Streams{Stdout: pw})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the writer's failure: %v", err)
	}
}

// TestServerStops checks that commands continue when the server stops, and that clients get the address to find them
// again.
// mission: A4
func TestServerStops(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create(t)
	out := newWaiter("ready\n")
	p, err := w.Start(t.Context(), "box", shell("echo ready; sleep 100"), client.Streams{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.wait(t)
	failed := make(chan error, 1)
	go func() {
		_, err := w.Exec(t.Context(), "box", shell("sleep 100"))
		failed <- err
	}()
	for {
		all, err := w.Processes(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := w.Shutdown(t.Context(), api.ShutdownRequest{IfIdle: true}); errors.KindOf(err) != errors.Conflict {
		t.Errorf("although busy: %v", err)
	}
	if err := w.Shutdown(t.Context(), api.ShutdownRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err = p.Wait(t.Context())
	if errors.KindOf(err) != errors.Unavailable || !strings.Contains(errors.RemedyOf(err), p.ID()) {
		t.Errorf("the stream: %v, remedy %q", err, errors.RemedyOf(err))
	}
	if err := <-failed; errors.KindOf(err) != errors.Unavailable {
		t.Errorf("the request: %v", err)
	}
	if _, err := w.Server(t.Context()); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("after its end: %v", err)
	}
	infos, err := w.fleet.Processes(t.Context(), "personal", "box")
	if err != nil || len(infos) != 2 || infos[0].Exit != nil || infos[1].Exit != nil {
		t.Errorf("the commands did not go on: %+v, %v", infos, err)
	}
}

// mission: C1
func TestFiles(t *testing.T) {
	t.Parallel()
	w := start(t)
	ctx := t.Context()
	w.create(t)
	made, err := w.CreateVolume(ctx, "vol")
	if err != nil || made.Name != "vol" {
		t.Fatalf("%+v, %v", made, err)
	}
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	tw.WriteHeader(&tar.Header{Name: "f", Mode: 0o640, Size: 2})
	tw.Write([]byte("hi"))
	tw.Close()
	for name, c := range map[string]struct {
		in  func(dir string, r io.Reader) error
		out func(path string) (io.ReadCloser, error)
	}{
		"volume": {
			func(dir string, r io.Reader) error { return w.VolumeCopyIn(ctx, "vol", dir, r) },
			func(path string) (io.ReadCloser, error) { return w.VolumeCopyOut(ctx, "vol", path) },
		},
		"sandbox": {
			func(dir string, r io.Reader) error { return w.CopyIn(ctx, "box", dir, r) },
			func(path string) (io.ReadCloser, error) { return w.CopyOut(ctx, "box", path) },
		},
	} {
		if err := c.in("/d", bytes.NewReader(archive.Bytes())); err != nil {
			t.Fatalf("%s in: %v", name, err)
		}
		r, err := c.out("/d/f")
		if err != nil {
			t.Fatalf("%s out: %v", name, err)
		}
		hdr, err := tar.NewReader(r).Next()
		if err != nil || hdr.Name != "f" || hdr.Size != 2 || hdr.Mode&0o777 != 0o640 {
			t.Errorf("%s out: %+v, %v", name, hdr, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.out("/nosuch"); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%s, no such path: %v", name, err)
		}
		// A server that refuses an upload gives the reason, although much data is still to come.
		if err := c.in("/d", &pattern{}); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s, not an archive: %v", name, err)
		}
	}
	entries, err := w.VolumeFiles(ctx, "vol", "/d")
	if err != nil || len(entries) != 1 || entries[0].Name != "f" {
		t.Errorf("list: %v, %v", entries, err)
	}
	if err := w.RemoveVolumeFile(ctx, "vol", "/d/f"); err != nil {
		t.Error(err)
	}
	if all, err := w.Volumes(ctx); err != nil || len(all) != 1 || all[0].Name != "vol" {
		t.Errorf("volumes: %v, %v", all, err)
	}
	if err := w.DeleteVolume(ctx, "vol"); err != nil {
		t.Error(err)
	}
	if _, err := w.CreateVolume(ctx, "vol"); err != nil {
		t.Error(err)
	}
	if err := w.DeleteVolumeForce(ctx, "vol"); err != nil {
		t.Error(err)
	}
	if err := w.DeleteVolume(ctx, "../x"); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a bad name: %v", err)
	}
}

func TestImages(t *testing.T) {
	t.Parallel()
	w := start(t)
	ctx := t.Context()
	built, err := w.BuildImage(ctx, api.BuildRequest{Base: "base"}, nil)
	if err != nil || built.Base != "base" {
		t.Fatalf("%+v, %v", built, err)
	}
	all, err := w.Images(ctx)
	if err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	got, err := w.Image(ctx, built.ID)
	if diff := cmp.Diff(all[0], got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if err := w.DeleteImage(ctx, "base"); err != nil {
		t.Error(err)
	}
	if _, err := w.BuildImage(ctx, api.BuildRequest{Base: "nosuch"}, nil); err == nil {
		t.Error("an unknown base was built")
	}
}

func TestConnect(t *testing.T) {
	t.Parallel()
	w := start(t)
	c, err := client.Connect(t.Context(), w.data)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	_, err = client.Connect(t.Context(), t.TempDir())
	if errors.KindOf(err) != errors.Unavailable || !strings.Contains(errors.RemedyOf(err), "harvest up") {
		t.Errorf("nobody answers: %v, remedy %q", err, errors.RemedyOf(err))
	}
}

// stranger answers every request in the same way.
func stranger(t *testing.T, answer http.HandlerFunc) *client.Client {
	t.Helper()
	data := t.TempDir()
	l, err := socket.Listen(data, client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: answer}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return client.New(data)
}

// TestStrangeServers checks that an answer that no Harvest server sends is an error.
func TestStrangeServers(t *testing.T) {
	t.Parallel()
	answers := map[string]http.HandlerFunc{
		"plain 500": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oops", 500) },
		"no JSON":   func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			io.WriteString(w, "{")
		},
		"bad events": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "event: sandbox.ready\ndata: nonsense\n\n")
		},
		"bad problem": func(w http.ResponseWriter,
			_ *http.Request) {
			io.WriteString(w, "event: error\ndata: nonsense\n\n")
		},
		"no end": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, ": hello\nid: 1\n\nevent: x\n\ndata: a\ndata: b\n\n")
		},
		"hang up": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				conn.Close()
			}
		},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := stranger(t, answer)
			if _, err := c.Server(t.Context()); errors.KindOf(err) != errors.Unavailable {
				t.Errorf("a request: %v", err)
			}
			if _, err := c.CreateSandbox(t.Context(), api.SandboxRequest{},
				nil); errors.KindOf(err) != errors.Unavailable {
				t.Errorf("events: %v", err)
			}
			if _, err := c.Run(t.Context(), api.RunRequest{},
				client.Streams{}); errors.KindOf(err) != errors.Unavailable {
				t.Errorf("a stream: %v", err)
			}
		})
	}
}

func TestUnavailableData(t *testing.T) {
	t.Parallel()
	c := client.New(filepath.Join(t.TempDir(), "nosuch"))
	if _, err := c.Server(t.Context()); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("no data directory: %v", err)
	}
	if err := c.Shutdown(t.Context(), api.ShutdownRequest{}); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("shutdown of nobody: %v", err)
	}
}
