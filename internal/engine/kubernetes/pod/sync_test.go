package pod_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
	"github.com/RelevanceAI/harvest/internal/s3/share"
	"github.com/RelevanceAI/harvest/internal/s3/volsync"
)

// hub is the server's side of a volume.
type hub struct {
	*share.Hub
	bucket string
	share.Directory
}

func newHub(t *testing.T) hub {
	t.Helper()
	dir := testenv.DataDir(t)
	opts := embedded.Options{Dir: filepath.Join(dir, "s3"), Executable: testenv.EmbeddedS3(t)}
	h := share.NewHub(func(ctx context.Context) (*embedded.Server, error) { return embedded.Start(ctx, opts) })
	t.Cleanup(h.Close)
	bucket, err := h.Bucket(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return hub{h, bucket, share.Directory{Path: t.TempDir(), State: filepath.Join(dir, "state")}}
}

// here syncs the server's directory.
func (h hub) here(t *testing.T) {
	t.Helper()
	if stats, err := h.Sync(t.Context(), h.bucket, h.Directory); err != nil || stats.Failed > 0 {
		t.Fatalf("sync the server's files: %v, %+v", err, stats)
	}
}

// pod syncs the pod's files.
func (h hub) pod(t *testing.T, s server, id, name string) (volsync.Stats, error) {
	t.Helper()
	conn, err := s.connect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	access, err := h.Access(t.Context(), h.bucket)
	if err != nil {
		t.Fatal(err)
	}
	return pod.Sync(t.Context(), conn, pod.Volume{Name: name, Access: access},
		func(ctx context.Context, l net.Listener) error { return h.Serve(ctx, h.bucket, l) })
}

// TestVolume gives a pod the server's files before the claim, and gets back what its sandbox changes.
func TestVolume(t *testing.T) {
	s, img := boot(t)
	h := newHub(t)
	if err := os.WriteFile(filepath.Join(h.Path, "from server"), []byte("1"), 0o640); err != nil {
		t.Fatal(err)
	}
	h.here(t)
	if stats, err := h.pod(t, s, podName, "data"); err != nil || stats.Files != 1 {
		t.Fatalf("%v, %+v", err, stats)
	}
	spec := engine.Spec{ID: "box", Image: img.ID, Limits: engine.Limits{Memory: 1 << 30, Processes: 100},
		Mounts: []engine.Mount{{Volume: "data", Path: "/mnt/data"}}}
	if err := s.claim(t, podName, spec, img, credentials(t, s.Authority, "box")); err != nil {
		t.Fatal(err)
	}
	conn, err := s.connect(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := pod.Describe(t.Context(), conn); err != nil || c.Spec.ID != "box" || c.Image.Root != img.Root ||
		!slices.Equal(c.Spec.Mounts, spec.Mounts) {
		t.Errorf("the pod describes its sandbox as %+v, %v", c, err)
	}
	p, err := s.client("box").Start(t.Context(), engine.Command{Dir: "/mnt/data", Args: []string{"sh", "-ec",
		`test "$(cat 'from server')" = 1; rm 'from server'; mkdir sub; echo 2 > 'sub/from pod'`}})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Fatalf("the command ended with %+v, %v", exit, err)
	}
	if _, err := h.pod(t, s, "box", "data"); err != nil {
		t.Fatal(err)
	}
	h.here(t)
	if got, err := os.ReadFile(filepath.Join(h.Path, "sub/from pod")); err != nil || string(got) != "2\n" {
		t.Errorf("the server has %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(h.Path, "from server")); !errors.IsNotExist(err) {
		t.Errorf("the deleted file: %v", err)
	}
}

// TestSyncFails has a pod without volumes, a name that no volume can have, and a server that leaves.
func TestSyncFails(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	none, _ := scriptedPod(t)
	if _, err := h.pod(t, none, podName, "data"); !errors.Is(err, errors.Unsupported) {
		t.Errorf("a pod without volumes: %v", err)
	}
	s, _ := boot(t)
	conn, err := s.connect(t.Context(), podName)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pod.Describe(t.Context(), conn); !errors.Is(err, errors.Conflict) {
		t.Errorf("a description before the claim: %v", err)
	}
	if _, err := h.pod(t, s, podName, "../out"); !errors.Is(err, errors.Invalid) {
		t.Errorf("a name with a path: %v", err)
	}
	if conn, err = s.connect(t.Context(), podName); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	access, err := h.Access(ctx, h.bucket)
	if err != nil {
		t.Fatal(err)
	}
	_, err = pod.Sync(ctx, conn, pod.Volume{Name: "data", Access: access},
		func(ctx context.Context, l net.Listener) error {
			if _, err := l.Accept(); err != nil {
				return err
			}
			cancel() // in the middle of a request
			<-ctx.Done()
			return ctx.Err()
		})
	if !errors.Is(err, errors.Canceled) || !strings.Contains(err.Error(), "sync the volume") {
		t.Errorf("a canceled sync: %v", err)
	}
	if _, err := h.pod(t, s, podName, "data"); err != nil {
		t.Errorf("the sync after it: %v", err)
	}
}
