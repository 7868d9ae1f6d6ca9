package pod_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire/mutual"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// podName is the identity of the pod before a claim.
const podName = "pod-1"

// server is the server's side of one pod.
type server struct {
	*mutual.Authority
	address string
}

// boot starts the agent of a pod on this machine, with a warm sandbox of gVisor. base is an image that the pod has.
func boot(t *testing.T) (s server, base pod.Image) {
	t.Helper()
	dir := testenv.DataDir(t)
	volumes, err := volume.OpenDir(filepath.Join(dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	images, err := pod.OpenImages(filepath.Join(dir, "images"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := gvisor.Open(t.Context(), gvisor.Options{Dir: dir, Images: images, Volumes: volumes,
		Executable: testenv.KeeperBinary(t), Sentry: testenv.SentryBinary(t), Tools: testenv.ToolsBinary(t)})
	if err != nil {
		t.Fatal(err)
	}
	warm, err := e.Warm(t.Context(), engine.Limits{Memory: 1 << 30, Processes: 100})
	if err != nil {
		t.Fatal(err)
	}
	authority, err := mutual.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s = server{authority, serve(t, authority, pod.Parts{Warm: warm, Images: images, Volumes: volumes,
		Notes: filepath.Join(dir, "syncs"), Connect: func(ctx context.Context) (net.Conn, error) {
			return e.Keeper(ctx, warm.Handle())
		}})}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		all, err := e.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, h := range all {
			sandbox, err := e.Open(ctx, h)
			if err == nil {
				err = sandbox.Destroy(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(e.Close(), volumes.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, baseImage(t, filepath.Join(dir, "images"))
}

// serve runs an agent until the test ends, and returns its address.
func serve(t *testing.T, authority *mutual.Authority, parts pod.Parts) string {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := mutual.Listen(inner, credentials(t, authority, podName))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- pod.New(parts, l).Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("the agent ended with %v", err)
		}
	})
	return inner.Addr().String()
}

func credentials(t *testing.T, authority *mutual.Authority, id string) mutual.Credentials {
	t.Helper()
	c, err := authority.Keeper(id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// connect connects to the pod, which must have the identity id.
func (s server) connect(ctx context.Context, id string) (*wire.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, err
	}
	return s.Connect(ctx, conn, id)
}

// claim claims the pod, which has the identity as, for a spec.
func (s server) claim(t *testing.T, as string, spec engine.Spec, img pod.Image, c mutual.Credentials) error {
	t.Helper()
	conn, err := s.connect(t.Context(), as)
	if err != nil {
		return err
	}
	return pod.Claim(t.Context(), conn, spec, img, c)
}

// send sends a file to the pod.
func (s server) send(t *testing.T, digest string, content io.Reader) (had bool, err error) {
	t.Helper()
	conn, err := s.connect(t.Context(), podName)
	if err != nil {
		t.Fatal(err)
	}
	return pod.Send(t.Context(), conn, digest, content)
}

// digestOf returns the digest of a file.
func digestOf(t *testing.T, r io.Reader) string {
	t.Helper()
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// baseImage gives a pod the base image, as a directory that the pods of a node share does. TestImagesAreVerified sends
// files.
func baseImage(t *testing.T, dir string) pod.Image {
	t.Helper()
	library := imagetest.Library(t)
	base := imagetest.Base(t, library)
	digest := digestOf(t, strings.NewReader(base.ID)) // the pod does not verify files that it has
	if err := os.Symlink(library.Root(base), filepath.Join(dir, digest)); err != nil {
		t.Fatal(err)
	}
	return pod.Image{ID: base.ID, Config: base.Config, Root: digest}
}

func (s server) client(id string) *wire.Client {
	return &wire.Client{ID: id, Connect: func(ctx context.Context) (*wire.Conn, error) { return s.connect(ctx, id) }}
}

// TestClaimedPodRunsCommands claims a warm pod over TCP with an environment of its own, and uses its sandbox.
func TestClaimedPodRunsCommands(t *testing.T) {
	s, img := boot(t)
	spec := engine.Spec{ID: "box", Image: img.ID, Env: map[string]string{"TOKEN": "secret"},
		Limits: engine.Limits{Memory: 1 << 30, Processes: 100}}
	var stages []string
	spec.Stage = func(name string, _ time.Duration) { stages = append(stages, name) }
	if err := s.claim(t, podName, spec, img, credentials(t, s.Authority, "box")); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(stages, "start") {
		t.Errorf("the claim has the stages %q", stages)
	}
	if _, err := s.connect(t.Context(), podName); !errors.Is(err, errors.Denied) {
		t.Errorf("the pod's name after the claim: %v", err)
	}
	if err := s.claim(t, "box", spec, img, credentials(t, s.Authority, "box")); !errors.Is(err, errors.Conflict) {
		t.Errorf("a second claim: %v", err)
	}
	client := s.client("box")

	input := strings.Repeat("0123456789\n", 50_000)
	var out, problems strings.Builder
	p, err := client.Start(t.Context(), engine.Command{Args: []string{"sh", "-c", `cat; echo "$TOKEN" >&2; exit 3`},
		Stdin: strings.NewReader(input), Stdout: &out, Stderr: &problems})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 || out.String() != input ||
		problems.String() != "secret\n" {
		t.Errorf("the command ended with %+v, %v, and printed %d bytes and %q", exit, err, out.Len(), &problems)
	}

	p, err = client.Start(t.Context(), engine.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := client.OpenProcess(t.Context(), p.ID(), engine.Stdio{}) // as another server does
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Signal(t.Context(), "TERM"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []engine.Process{p, again} {
		if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != "TERM" {
			t.Errorf("the command ended with %+v, %v", exit, err)
		}
	}

	archive, err := client.CopyOut(t.Context(), "/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if b, err := io.ReadAll(archive); err != nil || !strings.Contains(string(b), "root:") {
		t.Errorf("read %d bytes of an archive, %v", len(b), err)
	}
}

// scripted is a warm sandbox that notes its claims.
type scripted struct {
	engine.Warm
	claims []string
}

func (s *scripted) Claim(_ context.Context, spec engine.Spec) (engine.Sandbox, error) {
	s.claims = append(s.claims, spec.ID)
	return destroyed{}, nil
}

// destroyed is a sandbox that can only be destroyed.
type destroyed struct{ engine.Sandbox }

func (destroyed) Destroy(context.Context) error { return nil }

// TestAnswerBeforeInputIsRead starts a command whose keeper answers, and leaves while input arrives.
func TestAnswerBeforeInputIsRead(t *testing.T) {
	t.Parallel()
	authority, err := mutual.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	images, err := pod.OpenImages(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	s := server{authority, serve(t, authority, pod.Parts{Warm: &scripted{}, Images: images,
		Connect: func(ctx context.Context) (net.Conn, error) { return leavingKeeper(ctx, t.TempDir()) }})}
	for range 3 {
		p, err := s.client(podName).Start(t.Context(), engine.Command{Args: []string{"true"},
			Stdin: strings.NewReader(strings.Repeat("x", 8<<20))})
		if err != nil {
			t.Fatal(err)
		}
		if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 {
			t.Fatalf("the command ended with %+v, %v", exit, err)
		}
	}
}

// leavingKeeper returns a connection to a keeper that reads the request, reports the end of a command, and leaves.
func leavingKeeper(ctx context.Context, dir string) (net.Conn, error) {
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	go func() {
		defer l.Close()
		accepted, err := l.Accept()
		if err != nil {
			return
		}
		conn := wire.NewConn(accepted)
		defer conn.Close()
		if _, _, err := conn.Receive(); err != nil {
			return
		}
		_ = conn.SendJSON(wire.KindReply, wire.Reply{ID: "p"}) // the client notices what is missing
		if half, ok := accepted.(*net.UnixConn); ok {
			_ = half.CloseRead()
		}
		<-time.After(50 * time.Millisecond) // the agent finds that it can write no more
		_ = conn.SendJSON(wire.KindExit, engine.Exit{Code: 3})
	}()
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

// scriptedPod starts an agent with a warm sandbox without a keeper.
func scriptedPod(t *testing.T) (server, *scripted) {
	t.Helper()
	authority, err := mutual.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	images, err := pod.OpenImages(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	warm := &scripted{}
	return server{authority, serve(t, authority, pod.Parts{Warm: warm, Images: images,
		Connect: func(context.Context) (net.Conn, error) { return nil, errors.Errorf("no keeper") }})}, warm
}

func TestClaimsAreChecked(t *testing.T) {
	t.Parallel()
	s, warm := scriptedPod(t)
	img := s.sendText(t, "root")
	theirs, err := mutual.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	good := credentials(t, s.Authority, "box")
	for name, test := range map[string]struct {
		spec engine.Spec
		c    mutual.Credentials
		kind errors.Kind
	}{
		"other credentials": {engine.Spec{ID: "other"}, good, errors.Internal},
		"no ID":             {engine.Spec{}, mutual.Credentials{}, errors.Internal},
		"directory":         {engine.Spec{ID: "box", Mounts: []engine.Mount{{Dir: "/d"}}}, good, errors.Unsupported},
		"volume both ways": {engine.Spec{ID: "box", Mounts: []engine.Mount{{Volume: "v", Path: "/1"},
			{Volume: "v", Path: "/2", ReadOnly: true}}}, good, errors.Unsupported},
		"checkpoint":        {engine.Spec{ID: "box", Checkpoint: "/c"}, good, errors.Unsupported},
		"GPU":               {engine.Spec{ID: "box", GPU: "T4"}, good, errors.Unsupported},
		"provider's secret": {engine.Spec{ID: "box", Secrets: []string{"s"}}, good, errors.Unsupported},
	} {
		if err := s.claim(t, podName, test.spec, img, test.c); !errors.Is(err, test.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(warm.claims) > 0 {
		t.Errorf("refused claims reached the sandbox: %q", warm.claims)
	}
	if err := (server{theirs, s.address}).claim(t, podName, engine.Spec{ID: "box"}, img, good); !errors.Is(err,
		errors.Denied) {
		t.Errorf("a claim of another installation: %v", err)
	}
	if err := s.claim(t, podName, engine.Spec{ID: "box"}, img, good); err != nil || !slices.Equal(warm.claims,
		[]string{"box"}) {
		t.Errorf("the right claim: %v; claims %q", err, warm.claims)
	}
}

// sendText sends an image with the text as its file. Its ID is "".
func (s server) sendText(t *testing.T, text string) pod.Image {
	t.Helper()
	digest := digestOf(t, strings.NewReader(text))
	if had, err := s.send(t, digest, strings.NewReader(text)); err != nil || had {
		t.Fatalf("sent a file: the pod had it: %t, %v", had, err)
	}
	return pod.Image{Root: digest}
}

func TestImagesAreVerified(t *testing.T) {
	t.Parallel()
	s, warm := scriptedPod(t)
	good := digestOf(t, strings.NewReader("root"))
	for name, digest := range map[string]string{"other content": good, "none": "", "short": good[1:],
		"path": "../" + good[3:], "upper case": strings.ToUpper(good)} {
		if had, err := s.send(t, digest, strings.NewReader("other")); err == nil || had {
			t.Errorf("%s: the file was accepted", name)
		}
	}
	if _, err := s.send(t, good, iotest.ErrReader(errors.Errorf("broken"))); err == nil {
		t.Error("a broken file was accepted")
	}
	spec, c := engine.Spec{ID: "box"}, credentials(t, s.Authority, "box")
	for name, img := range map[string]pod.Image{"no file": {}, "missing": {Root: good}, "path": {Root: "../new"}} {
		if err := s.claim(t, podName, spec, img, c); err == nil {
			t.Errorf("%s: claimed", name)
		}
	}
	img := s.sendText(t, strings.Repeat("root", 1<<18)) // several frames
	if had, err := s.send(t, img.Root, strings.NewReader("")); err != nil || !had {
		t.Errorf("sent a file again: the pod had it: %t, %v", had, err)
	}
	layer := digestOf(t, strings.NewReader("layer"))
	for name, img := range map[string]pod.Image{"missing layer": {Root: img.Root, Layer: layer},
		"another image": {ID: "img_other", Root: img.Root}} {
		if err := s.claim(t, podName, spec, img, c); err == nil {
			t.Errorf("%s: claimed", name)
		}
	}
	if len(warm.claims) > 0 {
		t.Errorf("refused claims reached the sandbox: %q", warm.claims)
	}
	if err := s.claim(t, podName, spec, img, c); err != nil {
		t.Error(err)
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	s, _ := scriptedPod(t)
	img := s.sendText(t, "root")
	identify := func(as string, c mutual.Credentials) error {
		conn, err := s.connect(t.Context(), as)
		if err != nil {
			return err
		}
		return pod.Identify(t.Context(), conn, c)
	}
	if err := s.claim(t, podName, engine.Spec{ID: "box"}, img, credentials(t, s.Authority, "box")); err != nil {
		t.Fatal(err)
	}
	if err := identify("box", credentials(t, s.Authority, "box")); err != nil {
		t.Errorf("renew the credentials: %v", err)
	}
	if err := identify("box", credentials(t, s.Authority, "other")); err == nil {
		t.Error("a sandbox got the identity of another one")
	}
	if err := identify("box", mutual.Credentials{ID: "box"}); err == nil {
		t.Error("empty credentials were accepted")
	}
	if err := identify("box", credentials(t, s.Authority, "box")); err != nil {
		t.Errorf("after refused credentials: %v", err)
	}
}

// TestRequestsWithPathsAreRefused checks that the server cannot reach the files of the pod, and that a keeper that is
// gone is a Conflict, as on one machine.
func TestRequestsWithPathsAreRefused(t *testing.T) {
	t.Parallel()
	s, _ := scriptedPod(t)
	client := s.client(podName)
	for _, op := range []wire.Operation{wire.Boot, wire.Prepare, wire.Claim, wire.Checkpoint, wire.SetPeers,
		wire.Packets, wire.Connect, "", "unknown"} {
		if _, err := client.Call(t.Context(), wire.Request{Op: op, Path: "/"}); !errors.Is(err, errors.Unsupported) {
			t.Errorf("%q: %v", op, err)
		}
	}
	if _, err := client.Call(t.Context(), wire.Request{Op: wire.Info}); !errors.Is(err, errors.Conflict) {
		t.Errorf("without a keeper: %v", err)
	}
}
