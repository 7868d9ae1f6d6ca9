package gvisor_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/enginetest"
	"github.com/RelevanceAI/harvest/engine/gvisor"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/testenv"
	"github.com/RelevanceAI/harvest/volume"
)

// rootEnv names the base image's EROFS file for the part of a test that runs as another user, who cannot open the library.
const rootEnv = "HARVEST_TEST_ROOT"

func TestMain(m *testing.M) {
	if dir := testenv.CoverDir(); dir != "" {
		_ = os.Setenv("GOCOVERDIR", dir) // for keepers
	}
	os.Exit(m.Run())
}

// oneImage is a library of one image.
type oneImage struct {
	image.Builder
	img  image.Image
	root string
}

func (o oneImage) Find(_ context.Context, ref string) (image.Image, error) {
	if ref == o.img.ID || ref == "base" {
		return o.img, nil
	}
	return image.Image{}, errors.Newf(errors.NotFound, "there is no image %q", ref)
}

func (o oneImage) Use(string, string) (func(), error) { return func() {}, nil }
func (o oneImage) Root(image.Image) string            { return o.root }
func (o oneImage) Layer(image.Image) string           { return "" }

// images returns the base image: from the machine's test library, or as the first part of the test has prepared it.
func images(t testing.TB) gvisor.Images {
	if root := os.Getenv(rootEnv); root != "" {
		return oneImage{img: image.Image{ID: "img_base", Config: image.Config{Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}}}, root: root}
	}
	return imagetest.Library(t)
}

// open opens the engine with the ordinary binary, because one built with -race cannot boot gVisor.
func open(t testing.TB, dir string) *gvisor.Engine {
	t.Helper()
	volumes, err := volume.OpenDir(filepath.Join(dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = volumes.Close() })
	e, err := gvisor.Open(t.Context(), gvisor.Options{Dir: dir, Images: images(t), Volumes: volumes, Executable: testenv.Binary(t)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// closing closes the volumes with the engine: what is left open otherwise counts as left behind.
type closing struct {
	*gvisor.Engine
	volumes *volume.Local
}

func (c closing) Close() error { return errors.Join(c.Engine.Close(), c.volumes.Close()) }

// conformance runs the suite; copySize is as in the Harness.
func conformance(t *testing.T, copySize int64) {
	enginetest.Run(t, enginetest.Harness{
		CopySize: copySize,
		Open: func(t *testing.T, dir string) engine.Engine {
			e := open(t, dir)
			return closing{e, e.Volumes().(*volume.Local)}
		},
		DataDir: func(t *testing.T) string { return testenv.DataDir(t) },
	})
}

// mission: A1
// mission: A3
// mission: A4
// mission: A11
func TestConformance(t *testing.T) {
	testenv.Root(t)
	conformance(t, 0)
}

// stranger is a user without an entry in any database.
const stranger = 23456

// TestConformanceRootless runs the suite again as an ordinary user.
func TestConformanceRootless(t *testing.T) {
	if os.Getenv(rootEnv) != "" {
		conformance(t, 64<<20) // a GiB is copied as root
		return
	}
	testenv.Root(t)
	lib := imagetest.Library(t)
	dir, err := os.MkdirTemp("", "hvr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, err := range []error{os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "tmp"), 0o700), os.Chown(filepath.Join(dir, "tmp"), stranger, stranger)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"test": self, "harvest": testenv.Binary(t), "root.erofs": lib.Root(imagetest.Base(t, lib))}
	for name, from := range files {
		copyFile(t, from, filepath.Join(dir, name))
	}
	args := []string{"-test.run=^TestConformanceRootless$", "-test.v", "-test.timeout=20m"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), args...)
	cmd.Dir = dir
	cmd.Env = append(testenv.CleanEnv(), rootEnv+"="+filepath.Join(dir, "root.erofs"), "HARVEST_TEST_BINARY="+filepath.Join(dir, "harvest"),
		"TMPDIR="+filepath.Join(dir, "tmp"), "HOME="+filepath.Join(dir, "tmp"), "HARVEST_COVERDIR="+testenv.CoverDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestConformanceRootless") {
		t.Errorf("as an ordinary user: %v\n%s", err, failures(string(out)))
	}
}

// failures are the lines of a verbose test's output that matter.
func failures(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "--- PASS") && !strings.Contains(line, "=== ") && !strings.Contains(line, "promise:") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
