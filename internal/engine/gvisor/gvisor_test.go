package gvisor_test

import (
	"flag"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// libraryEnv names a library with the base image for the part of a test that runs as another user, who cannot open the
// machine's library.
const libraryEnv = "HARVEST_TEST_LIBRARY"

func TestMain(m *testing.M) {
	if dir := testenv.CoverDir(); dir != "" {
		_ = os.Setenv("GOCOVERDIR", dir) // for keepers
	}
	os.Exit(m.Run())
}

// images returns a library with the base image: the machine's, or the one that the first part of the test has prepared.
func images(t testing.TB) gvisor.Images {
	dir := os.Getenv(libraryEnv)
	if dir == "" {
		return imagetest.Library(t)
	}
	l, err := image.OpenLibrary(dir, image.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// open opens the engine with the programs keeper and sentry, which harvest contains. Tests of the program harvest cover
// a harvest that is its own keeper. A program built with -race cannot boot gVisor.
func open(t testing.TB, dir string) *gvisor.Engine {
	t.Helper()
	volumes, err := volume.OpenDir(filepath.Join(dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = volumes.Close() })
	e, err := gvisor.Open(t.Context(), gvisor.Options{Dir: dir, Images: images(t), Volumes: volumes,
		Executable: testenv.KeeperBinary(t), Sentry: testenv.SentryBinary(t), Tools: testenv.ToolsBinary(t)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// closing closes the volumes with the engine: open volumes would count as leaks.
type closing struct {
	*gvisor.Engine
	volumes *volume.Local
}

func (c closing) Close() error { return errors.Join(c.Engine.Close(), c.volumes.Close()) }

func conformance(t *testing.T) {
	left := map[string]string{}
	if os.Geteuid() != 0 {
		left["volume/owner"] = "an ordinary user may not give files to others: see docs/operations.md"
	}
	enginetest.Run(t, enginetest.Harness{
		Open: func(t *testing.T, dir string) engine.Engine {
			e := open(t, dir)
			return closing{e, e.Volumes().(*volume.Local)}
		},
		DataDir: func(t *testing.T) string { return testenv.DataDir(t) }, Left: left,
	})
}

// mission: A1, A3, A4, A11, 1.8, 1.9, 8.3
func TestConformance(t *testing.T) {
	testenv.Root(t)
	conformance(t)
}

// TestConformanceOfContainers runs the suite with containers.
func TestConformanceOfContainers(t *testing.T) {
	testenv.Root(t)
	enginetest.Run(t, enginetest.Harness{
		Open: func(t *testing.T, dir string) engine.Engine {
			e, err := open(t, dir).Containers()
			if err != nil {
				t.Fatal(err)
			}
			return closing{e, e.Volumes().(*volume.Local)}
		},
		DataDir: func(t *testing.T) string { return testenv.DataDir(t) },
	})
}

// stranger is a user without an entry in any database.
const stranger = 23456

// TestConformanceRootless runs the suite again as an ordinary user.
func TestConformanceRootless(t *testing.T) {
	if os.Getenv(libraryEnv) != "" {
		conformance(t)
		return
	}
	testenv.Long(t)
	testenv.Root(t)
	lib := imagetest.Library(t)
	dir, err := os.MkdirTemp("", "hvr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, err := range []error{os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "tmp"), 0o700),
		os.Chown(filepath.Join(dir, "tmp"), stranger, stranger)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"test": self, "harvest": testenv.Binary(t),
		"keeper": testenv.KeeperBinary(t), "sentry": testenv.SentryBinary(t), "tools": testenv.ToolsBinary(t)} {
		copyFile(t, from, filepath.Join(dir, name))
	}
	library := filepath.Join(dir, "tmp", "images")
	copyImage(t, lib.Root(imagetest.Base(t, lib)), library, stranger)
	run := "^TestConformanceRootless$"
	if asked := flag.Lookup("test.run").Value.String(); strings.HasPrefix(asked, run) { // one check of the suite
		run = asked
	}
	// Large checks run as root. Here they are small.
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run="+run, "-test.v", "-test.short",
		"-test.timeout=20m")
	cmd.Dir = dir
	cmd.Env = append(testenv.CleanEnv(), libraryEnv+"="+library, "HARVEST_TEST_BINARY="+filepath.Join(dir, "harvest"),
		"HARVEST_TEST_KEEPER="+filepath.Join(dir, "keeper"),
		"HARVEST_TEST_SENTRY="+filepath.Join(dir, "sentry"), "HARVEST_TEST_TOOLS="+filepath.Join(dir, "tools"),
		"TMPDIR="+filepath.Join(dir, "tmp"), "HOME="+filepath.Join(dir, "tmp"),
		"HARVEST_COVERDIR="+testenv.CoverDir())
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
		if !strings.Contains(line, "--- PASS") && !strings.Contains(line, "=== ") &&
			!strings.Contains(line, "promise:") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// copyImage makes a library that belongs to a user and has one image, named base, whose root file system is given.
func copyImage(t *testing.T, root, library string, user int) {
	t.Helper()
	digits := filepath.Base(filepath.Dir(root))
	to := filepath.Join(library, digits)
	for _, err := range []error{os.MkdirAll(to, 0o700), os.Mkdir(filepath.Join(library, ".names"), 0o700),
		os.Symlink(digits, filepath.Join(library, ".names", "base"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{filepath.Base(root), "image.json"} {
		copyFile(t, filepath.Join(filepath.Dir(root), name), filepath.Join(to, name))
	}
	err := filepath.WalkDir(library, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, user, user))
	})
	if err != nil {
		t.Fatal(err)
	}
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
