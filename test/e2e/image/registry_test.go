package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	push "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/test/host"
)

func changes(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, hdr := range []*tar.Header{
		{Name: "usr/bin/.wh.ls", Typeflag: tar.TypeReg}, {Name: "app/", Typeflag: tar.TypeDir, Mode: 0o755,
			Uid: 1234, Gid: 55},
		{Name: "app/one", Typeflag: tar.TypeReg, Mode: 0o640, Uid: 1234, Gid: 55, Size: 4},
		{Name: "app/two", Typeflag: tar.TypeLink, Linkname: "app/one"},
		{Name: "app/link", Typeflag: tar.TypeSymlink, Linkname: "/app/two"},
	} {
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if hdr.Size > 0 {
			if _, err := io.WriteString(tw, "one\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// registryOf serves one image as team/app:1 and returns its name.
func registryOf(t *testing.T, config v1.Config, layers ...[]byte) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: config,
		RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser,
			error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := push.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}

// TestImageOfARegistry checks that a sandbox runs from an image of a registry, which is fetched on request.
// mission: B2, 1.1
func TestImageOfARegistry(t *testing.T) {
	t.Parallel()
	setup := host.GVisor(t)
	ref := registryOf(t, v1.Config{
		Env: []string{"PATH=/usr/bin:/bin", "GREETING=hello"}, User: "1234:55", WorkingDir: "/app",
		Entrypoint: []string{"/bin/sh", "-c"}, Cmd: []string{"echo default"},
		Labels: map[string]string{"made": "here"},
	}, host.MinimalRoot(t), changes(t))
	h := host.New(t, "gvisor", setup)
	images := filepath.Join(h.Data, "images") // its own, for this test collects garbage
	if err := os.Remove(images); err != nil {
		t.Fatal(err)
	}

	script := `echo $GREETING; pwd; id -u; id -g; cat link; stat -c '%a %u:%g %h' one; test -e /usr/bin/ls || echo ` +
		`gone; cat /usr/local/share/ca-certificates/* 2>/dev/null | head -c 0; echo x > /tmp/x && cat /tmp/x`
	out, stderr, code := h.Run("run", "--image", ref, "--", "/bin/sh", "-c", script)
	if want := "hello\n/app\n1234\n55\none\n640 1234:55 2\ngone\nx\n"; code != 0 || out != want {
		t.Fatalf("exit code %d, got %q, want %q\n%s\n%s", code, out, want, stderr, h.Log())
	}
	var img api.Image
	if err := json.Unmarshal([]byte(h.Must("image", "inspect", ref, "-o", "json")), &img); err != nil {
		t.Fatal(err)
	}
	if img.Workdir != "/app" || img.User != "1234:55" || !slices.Contains(img.Names, ref) ||
		!strings.Contains(img.Base, "@sha256:") {
		t.Errorf("got %+v", img)
	}
	if id := h.Must("image", "pull", ref, "-t", "app"); id != img.ID {
		t.Errorf("pulled again, it is %s", id)
	}
	if id := h.Must("image", "build", "app"); id != img.ID {
		t.Errorf("by its name, it is %s", id)
	}

	archive := filepath.Join(h.Data, "app.tar")
	h.Must("image", "export", "app", "-o", archive)
	info, err := os.Stat(archive)
	if err != nil || info.Size() < 1<<20 {
		t.Errorf("the archive is %v, %v", info, err)
	}
	if out, _, code := h.Run("image", "export", "nosuch", "-o", archive+"2"); code != 4 || out != "" {
		t.Errorf("an export of nothing ends with %d", code)
	}
	loadWithPodman(t, archive)
	if err := os.Remove(archive); err != nil {
		t.Error(err)
	}

	if out := h.Must("image", "gc", "--unused", "-o", "name"); out != "" {
		t.Errorf("an image with a name was collected: %s", out)
	}
	if out := h.Must("image", "gc", "--unused", "--all", "--dry-run", "-o", "name"); out != img.ID {
		t.Errorf("it would collect %q", out)
	}
	h.Must("sandbox", "create", "--image", "app", "--name", "user")
	if out := h.Must("image", "gc", "--unused", "--all", "-o", "name"); out != "" {
		t.Errorf("an image that is in use was collected: %s", out)
	}
	h.Must("sandbox", "rm", "user")
	if out := h.Must("image", "gc", "--unused", "--all", "-o", "name"); out != img.ID {
		t.Errorf("it collected %q", out)
	}
	if left, err := filepath.Glob(filepath.Join(h.Data, "blobs", "*")); err != nil || len(left) > 0 {
		t.Errorf("blobs are left: %v, %v", left, err)
	}
	for what, args := range map[string][]string{
		"no such tag":      {"image", "pull", strings.TrimSuffix(ref, "1") + "2"},
		"no such registry": {"run", "--image", "127.0.0.1:9/x", "--", "true"},
		"another platform": {"image", "build", ref, "--platform", "linux/mips"},
		"no name":          {"image", "build", ref, "-t", "img_1"},
	} {
		_, stderr, code := h.Run(args...)
		if code == 0 || !strings.Contains(stderr, "\n") || strings.Count(stderr, "\n") > 4 {
			t.Errorf("%s: exit code %d, %s", what, code, stderr)
		}
	}
}

// loadWithPodman runs a command in the image of an archive, with podman, if it is installed.
func loadWithPodman(t *testing.T, archive string) {
	t.Helper()
	if _, err := exec.LookPath("podman"); err != nil || os.Geteuid() != 0 {
		t.Log("what podman makes of the export is not tried: apt-get install podman, and be root")
		return
	}
	dir := t.TempDir()
	podman := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "podman",
			append([]string{"--root", dir + "/root", "--runroot", dir + "/run", "--tmpdir", dir + "/tmp",
				"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"}, args...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := podman("load", "-i", archive)
	if err != nil || !strings.Contains(out, "app") {
		t.Errorf("podman load: %v\n%s", err, out)
	}
	out, err = podman("image", "inspect", "localhost/app:latest", "--format",
		"{{.User}} {{.Config.WorkingDir}} {{.Config.Env}} {{.Config.Labels}}")
	if err != nil || !strings.Contains(out, "1234:55 /app") || !strings.Contains(out, "GREETING=hello") ||
		!strings.Contains(out, "made:here") {
		t.Errorf("podman inspect: %v\n%s", err, out)
	}
	out, err = podman("run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
		"localhost/app:latest", "echo $GREETING; cat link; id -u")
	if strings.Contains(out, "cgroups in hybrid mode not supported") {
		t.Log("what podman runs of the export is not tried: its crun has no cgroups of this machine's kind; apt-get " +
			"install runc, and remove crun")
		return
	}
	if err != nil || !strings.HasSuffix(out, "hello\none\n1234\n") {
		t.Errorf("podman run: %v\n%s", err, out)
	}
}
