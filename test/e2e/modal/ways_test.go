package modal

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	push "github.com/google/go-containerregistry/pkg/v1/remote"
	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/metadata"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

// TestModalWays covers features that the suites of Modal's SDK leave out, with the SDK and with the engine modal, on
// gVisor.
//
// mission: A6
func TestModalWays(t *testing.T) {
	testenv.Long(t)
	h := modalhost.WithBase(t)
	m := newModalClient(t, h, "ways")
	e, err := modalengine.Open(t.Context(), modalengine.Options{Dir: testenv.DataDir(t), Executable: h.Program,
		Image: "base"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("login", func(t *testing.T) { m.login(t, e) })
	t.Run("forced build", func(t *testing.T) { forcedBuild(t, e) })
	t.Run("failed build", func(t *testing.T) { failedBuild(t, e) })
	t.Run("builds", m.builds)
	t.Run("exit", m.exit)
	t.Run("ready", m.ready)
	t.Run("limits", m.limits)
	t.Run("cut", func(t *testing.T) { cut(h, t) })
}

// plain returns a client of the server without an SDK, and the context of its calls.
func plain(h *modalhost.Host, t *testing.T) (context.Context, pb.ModalClientClient) {
	t.Helper()
	vars := map[string]string{}
	for _, pair := range h.Modal {
		name, value, _ := strings.Cut(pair, "=")
		vars[name] = value
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-modal-client-type", "9", "x-modal-token-id",
		vars["MODAL_TOKEN_ID"], "x-modal-token-secret", vars["MODAL_TOKEN_SECRET"])
	return ctx, pb.NewModalClientClient(modaltest.Dial(t, vars["MODAL_SERVER_URL"]))
}

// Of a private registry.
const (
	lockedUser     = "user"
	lockedPassword = "the-password-of-the-registry"
)

// lockedRegistry serves an image with a shell, as team/app:1 and team/app:2, to clients with the password, and returns
// its address.
func lockedRegistry(t *testing.T) string {
	t.Helper()
	serve := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	open := httptest.NewServer(serve)
	t.Cleanup(open.Close)
	for _, tag := range []string{"1", "2"} {
		pushShell(t, strings.TrimPrefix(open.URL, "http://")+"/team/app:"+tag, tag)
	}
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != lockedUser || password != lockedPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="team"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}`, http.StatusUnauthorized)
			return
		}
		serve.ServeHTTP(w, r)
	}))
	t.Cleanup(locked.Close)
	return strings.TrimPrefix(locked.URL, "http://")
}

// pushShell puts an image with a shell and a VERSION in its environment into a registry.
func pushShell(t *testing.T, at, version string) {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Env: []string{"PATH=/bin:/usr/bin", "VERSION=" + version}},
	})
	if err == nil {
		img, err = mutate.AppendLayers(img, modalhost.LayerOf(t, host.MinimalRoot(t)))
	}
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(at)
	if err == nil {
		err = push.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// forcedBuild rebuilds an image whose source in the registry has changed: only by force, or if the registry must be
// consulted.
func forcedBuild(t *testing.T, e *modalengine.Engine) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref := strings.TrimPrefix(server.URL, "http://") + "/team/tool:1"
	for _, c := range []struct {
		pushed string
		opts   image.BuildOptions
		want   string
	}{
		{"one", image.BuildOptions{}, "one"},
		{"two", image.BuildOptions{}, "one"},
		{"two", image.BuildOptions{Force: true}, "two"},
		{"three", image.BuildOptions{Pull: image.PullMissing}, "two"},
		{"three", image.BuildOptions{Pull: image.PullAlways}, "three"},
		{"four", image.BuildOptions{}, "three"},
	} {
		pushShell(t, ref, c.pushed)
		if _, err := e.Images().Build(t.Context(), image.Spec{Base: ref}, c.opts); err != nil {
			t.Fatal(err)
		}
		_, err := e.Images().Build(t.Context(),
			image.Spec{Base: ref, Commands: []string{"RUN echo it is $VERSION >&2; exit 3"}}, image.BuildOptions{})
		if !strings.Contains(errors.Message(err), "it is "+c.want) {
			t.Errorf("with %s in the registry and %+v the image is not %s: %v", c.pushed, c.opts, c.want, err)
		}
	}
	pushShell(t, ref, "five") // a build with commands also uses the current base
	_, err := e.Images().Build(t.Context(),
		image.Spec{Base: ref, Commands: []string{"RUN echo it is $VERSION >&2; exit 3"}},
		image.BuildOptions{Force: true})
	if !strings.Contains(errors.Message(err), "it is five") {
		t.Errorf("a forced build with commands: %v", err)
	}
}

// login checks that programs for Modal and the engine modal get an image of a private registry with its password, and
// not without it or with another one.
func (m *modalClient) login(t *testing.T, e *modalengine.Engine) {
	host := lockedRegistry(t)
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "needs other credentials") ||
			strings.Contains(err.Error(), "the-password") {
			t.Errorf("%s: %v", what, err)
		}
	}
	ref := host + "/team/app:1"
	with := func(password string) *modal.Image {
		t.Helper()
		secret, err := m.sdk.Secrets.FromMap(t.Context(), map[string]string{"REGISTRY_USERNAME": lockedUser,
			"REGISTRY_PASSWORD": password}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return m.sdk.Images.FromRegistry(ref, &modal.ImageFromRegistryParams{Secret: secret})
	}
	_, err := m.sdk.Images.FromRegistry(ref, nil).Build(t.Context(), m.app, nil)
	refused("without a password", err)
	_, err = with("the-password-of-another-one").Build(t.Context(), m.app, nil)
	refused("with another one's", err)
	img, err := with(lockedPassword).Build(t.Context(), m.app, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := m.sdk.Sandboxes.Create(t.Context(), m.app, img, nil)
	if err != nil {
		t.Fatal(err)
	}
	if out, code := m.run(t, sb, "echo inside"); code != 0 || out != "inside\n" {
		t.Errorf("in it, a command says %q, %d", out, code)
	}
	if _, err := sb.Terminate(t.Context(), nil); err != nil {
		t.Error(err)
	}

	build := func(password string) error {
		var asked string
		opts := image.BuildOptions{Credentials: func(_ context.Context, registry string) (image.Credential, error) {
			asked = registry
			return image.Credential{User: lockedUser, Password: password}, nil
		}}
		_, err := e.Images().Build(t.Context(), image.Spec{Base: host + "/team/app:2"}, opts)
		if asked != host {
			t.Errorf("the engine asked who we are at %q", asked)
		}
		return err
	}
	refused("the engine, with another one's", build("the-password-of-another-one"))
	if err := build(lockedPassword); err != nil {
		t.Errorf("the engine: %v", err)
	}
}

// failedBuild checks that a failed build reports the reason, through the engine too, and that the corrected build
// succeeds.
func failedBuild(t *testing.T, e *modalengine.Engine) {
	_, err := e.Images().Build(t.Context(),
		image.Spec{Base: "base", Commands: []string{"RUN echo the reason >&2; exit 3"}}, image.BuildOptions{})
	if errors.KindOf(err) != errors.Invalid || errors.StageOf(err) != "build" ||
		!strings.Contains(errors.Message(err), "Its last output was:\nthe reason") {
		t.Errorf("it ended with %v: %s", err, errors.Message(err))
	}
	if _, err := e.Images().Build(t.Context(), image.Spec{Base: "base", Commands: []string{"NONSENSE"}},
		image.BuildOptions{}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("an instruction that there is not: %v", err)
	}
	if _, err := e.Images().Build(t.Context(), image.Spec{Base: "base", Commands: []string{"RUN echo the reason"}},
		image.BuildOptions{}); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// builds checks that a built image is reused unless a build is forced, and that the image has the files that come with
// a build.
func (m *modalClient) builds(t *testing.T) {
	stamp := func(force bool) string {
		t.Helper()
		img, err := m.sdk.Images.FromRegistry("base", nil).
			DockerfileCommands([]string{"RUN date +%s%N >/stamp"},
				&modal.ImageDockerfileCommandsParams{ForceBuild: force}).Build(t.Context(), m.app, nil)
		if err != nil {
			t.Fatal(err)
		}
		return m.read(t, img, "/stamp")
	}
	first, again, forced := stamp(false), stamp(false), stamp(true)
	if first == "" || again != first || forced == first {
		t.Errorf("built %q, then %q, and forced %q", first, again, forced)
	}
	ctx, plain := plain(m.h, t)
	reply, err := plain.ImageGetOrCreate(ctx, pb.ImageGetOrCreateRequest_builder{Image: pb.Image_builder{
		DockerfileCommands: []string{"FROM base", "COPY /.requirements.txt /.requirements.txt",
			"RUN cp /.requirements.txt /copy"},
		ContextFiles: []*pb.ImageContextFile{pb.ImageContextFile_builder{Filename: "/.requirements.txt",
			Data: []byte("numpy\n")}.Build()},
	}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	for !reply.HasResult() { // the build continues
		stream, err := plain.ImageJoinStreaming(ctx, pb.ImageJoinStreamingRequest_builder{ImageId: reply.GetImageId(),
			Timeout: 55}.Build())
		if err != nil {
			t.Fatal(err)
		}
		for part, err := stream.Recv(); err == nil && !reply.HasResult(); part, err = stream.Recv() {
			if part.HasResult() {
				reply.SetResult(part.GetResult())
			}
		}
	}
	img, err := m.sdk.Images.FromID(t.Context(), reply.GetImageId(), nil)
	if err != nil {
		t.Fatalf("%v: %v", err, reply.GetResult())
	}
	if got := m.read(t, img, "/copy"); got != "numpy\n" {
		t.Errorf("the file is %q", got)
	}
}

// read returns the content of a file of an image.
func (m *modalClient) read(t *testing.T, img *modal.Image, path string) string {
	t.Helper()
	sb, err := m.sdk.Sandboxes.Create(t.Context(), m.app, img, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, code := m.run(t, sb, "cat "+path)
	if _, err := sb.Terminate(t.Context(), nil); err != nil || code != 0 {
		t.Fatalf("it has %q, %d, %v", out, code, err)
	}
	return out
}

// exit checks that the files of a sandbox which ended by itself become an image, if requested.
func (m *modalClient) exit(t *testing.T) {
	sb := m.create(t, "base", &modal.SandboxCreateParams{
		ExperimentalOptions: map[string]any{"enable_exit_snapshot": true},
		Command:             []string{"sh", "-c", "while ! [ -e /go ]; do sleep 0.1; done; echo kept >/f; exit 4"},
	})
	soon := time.Second
	if _, err := sb.ExperimentalGetExitSnapshot(t.Context(),
		&modal.SandboxExperimentalGetExitSnapshotParams{Timeout: &soon}); !errors.As(err, &modal.TimeoutError{}) {
		t.Errorf("before the end: %v", err)
	}
	if err := sb.Filesystem.WriteText(t.Context(), "", "/go", nil); err != nil {
		t.Fatal(err)
	}
	if code, err := sb.Wait(t.Context(), nil); err != nil || code != 4 {
		t.Fatalf("it ended with %d, %v", code, err)
	}
	img, err := sb.ExperimentalGetExitSnapshot(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.read(t, img, "/f"); got != "kept\n" {
		t.Errorf("it has left %q", got)
	}
	other := m.create(t, "base", &modal.SandboxCreateParams{Command: []string{"true"}})
	if _, err := other.ExperimentalGetExitSnapshot(t.Context(), nil); err == nil {
		t.Error("one that was not asked to keep its files has an image of them")
	}
}

// ready checks that a port is ready only with a listener.
func (m *modalClient) ready(t *testing.T) {
	probe, err := modal.NewTCPProbe(8000, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb := m.create(t, "base", &modal.SandboxCreateParams{ReadinessProbe: probe})
	if err := sb.WaitUntilReady(t.Context(), time.Second, nil); err == nil {
		t.Error("it is ready while nobody listens")
	}
	if _, err := sb.Exec(t.Context(), []string{"python3", "-m", "http.server", "8000"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := sb.WaitUntilReady(t.Context(), time.Minute, nil); err != nil {
		t.Errorf("somebody listens: %v", err)
	}
}

// The limits of the protocol are real.
func (m *modalClient) limits(t *testing.T) {
	ctx, plain := plain(m.h, t)
	base, err := m.sdk.Images.FromRegistry("base", nil).Build(t.Context(), m.app, nil)
	if err != nil {
		t.Fatal(err)
	}
	made, err := plain.SandboxCreateV2(ctx, pb.SandboxCreateV2Request_builder{AppId: m.app.AppID,
		Definition: pb.Sandbox_builder{
			ImageId: base.ImageID, Resources: pb.Resources_builder{MilliCpuMax: 500, MemoryMbMax: 300,
				EphemeralDiskMb: 64}.Build(),
		}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	sb, err := m.sdk.Sandboxes.FromID(t.Context(), made.GetSandboxId(), nil)
	if err != nil {
		t.Fatal(err)
	}
	out, code := m.run(t, sb, "(head -c 100000000 /dev/zero >/big)")
	if code == 0 || !strings.Contains(out, "No space left") {
		t.Errorf("100 MB on a disk of 64 MiB: %q, %d", out, code)
	}
	there, err := m.h.Run("sandbox", "get", "sbx_"+strings.ToLower(strings.TrimPrefix(sb.SandboxID, "sb-")), "-o",
		"json")
	for _, want := range []string{`"cpu":0.5`, fmt.Sprintf(`"memory_bytes":%d`, 300<<20),
		fmt.Sprintf(`"disk_bytes":%d`, 64<<20)} {
		if err != nil || !strings.Contains(strings.NewReplacer(`": `, `":`).Replace(there), want) {
			t.Errorf("%s is not in %s, %v", want, there, err)
		}
	}
	if _, err := sb.Terminate(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// cutter carries connections to an address, and can cut them.
type cutter struct {
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
	cuts  int        // guarded by mu; how many connections were cut
}

// newCutter returns a cutter, and the address that leads through it.
func newCutter(t *testing.T, to string) (*cutter, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{}
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
	})
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			onwards, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, from, onwards)
			c.mu.Unlock()
			for _, pair := range [][2]net.Conn{{from, onwards}, {onwards, from}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					_, _ = pair[0].Close(), pair[1].Close()
				}()
			}
		}
	}()
	return c, l.Addr().String()
}

// cut ends all connections.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.cuts += len(c.conns) / 2
	c.conns = nil
}

// number is the number of current and past connections.
func (c *cutter) number() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts + len(c.conns)/2
}

// cut closes connections between the engine and Modal while a sandbox is created and while a command runs: there is one
// sandbox, and no output of the command is lost.
func cut(h *modalhost.Host, t *testing.T) {
	url := ""
	for _, pair := range h.Modal {
		if value, ok := strings.CutPrefix(pair, "MODAL_SERVER_URL=http://"); ok {
			url = value
		}
	}
	c, address := newCutter(t, url)
	t.Setenv("MODAL_SERVER_URL", "http://"+address)
	e, err := modalengine.Open(t.Context(), modalengine.Options{Dir: testenv.DataDir(t), Executable: h.Program,
		Image: "base"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Images().Build(t.Context(), image.Spec{Base: "base"}, image.BuildOptions{}); err != nil {
		t.Fatal(err)
	}
	cutting := make(chan struct{})
	spec := engine.Spec{ID: "cut", Image: "base", Account: "personal", Stage: func(stage string, _ time.Duration) {
		if stage != "program" { // the creation follows
			return
		}
		go func() {
			defer close(cutting)
			for range 4 {
				time.Sleep(40 * time.Millisecond)
				c.cut()
			}
		}()
	}}
	sb, err := e.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	<-cutting
	if list, err := e.List(t.Context()); err != nil || len(list) != 1 || list[0] != sb.Handle() {
		t.Errorf("there are %+v, %v", list, err)
	}
	before := c.number()
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	var out strings.Builder
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sh", "-c",
		"for i in $(seq 0 39); do echo line $i; sleep 0.05; done; exit 7"}, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		time.Sleep(300 * time.Millisecond)
		c.cut()
	}
	if end, err := p.Wait(t.Context()); err != nil || end.Code != 7 || out.String() != want.String() {
		t.Errorf("it ended with %+v, %v, and said %q", end, err, out.String())
	}
	if c.number() == before {
		t.Error("nothing was cut")
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
