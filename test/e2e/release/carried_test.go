package release

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// carrying returns a host whose harvest is the command line with an embedded server.
func carrying(t *testing.T, program string) *host.Host {
	t.Helper()
	bin := t.TempDir()
	if err := os.Symlink(program, filepath.Join(bin, "harvest")); err != nil {
		t.Fatal(err)
	}
	prepare := host.GVisor(t)
	return host.New(t, "gvisor", func(env *testscript.Env) error {
		if err := prepare(env); err != nil {
			return err
		}
		env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
		return nil
	})
}

// TestCarriedServer checks that a small command line unpacks the server once, starts it, and lets it run the commands
// that need its packages.
//
// mission: A1
func TestCarriedServer(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	program := testenv.CommandLine(t)
	h := carrying(t, program)
	programs := filepath.Join(h.Data, "bin")

	h.Must("version")
	if _, err := os.Stat(programs); err == nil {
		t.Error("harvest version unpacked programs")
	}
	// In memory, the server of tests cannot start itself as a keeper; a release contains keepers.
	elsewhere := filepath.Join(t.TempDir(), "none")
	if out, stderr, _ := h.Run("doctor", "--data", elsewhere); !strings.Contains(out, "does not exist yet") {
		t.Errorf("doctor: %s\n%s", out, stderr)
	}
	if _, err := os.Stat(elsewhere); err == nil {
		t.Error("doctor created the data directory")
	}

	_, stderr, code := h.Run("up", "--data", "/proc/none")
	if code != 2 || !strings.Contains(stderr, "cannot be used") {
		t.Errorf("up in /proc: exit code %d, %s", code, stderr)
	}

	if err := os.MkdirAll(programs, 0o700); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(programs, "server-0123456789abcdef")
	if err := os.WriteFile(old, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if out := h.Must("run", "--", "echo", "inside"); out != "inside" {
		t.Errorf("run prints %q", out)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("the server of another version is still unpacked")
	}
	h.Has(t, "trial sandbox booted", "doctor")
	if exe := executable(t, h.Server().PID); filepath.Dir(exe) != programs {
		t.Errorf("the server runs %s", exe)
	}

	context := t.TempDir()
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte("FROM base\nCOPY Dockerfile /copied\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	h.Must("image", "build", context, "-t", "copied")
	if out := h.Must("run", "--image", "copied", "--", "cat", "/copied"); !strings.HasPrefix(out, "FROM base") {
		t.Errorf("the image has %q", out)
	}
	h.Must("down", "--sandboxes")
	foreground(t, h, programs)
}

// foreground checks that harvest up becomes the server: signals reach it.
func foreground(t *testing.T, h *host.Host, programs string) {
	t.Helper()
	cmd := h.Command(context.WithoutCancel(t.Context()), "up", "--listen", "127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	host.Expect(t, out, "Harvest listens on")
	if exe := executable(t, cmd.Process.Pid); filepath.Dir(exe) != programs || h.Server().PID != cmd.Process.Pid {
		t.Errorf("process %d runs %s, and the server is process %d", cmd.Process.Pid, exe, h.Server().PID)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// TestBuildCanBeTheFirstCommand checks that a build with a context starts a server in an empty data directory, and that
// one with another machine's server creates no data directory.
func TestBuildCanBeTheFirstCommand(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := carrying(t, testenv.CommandLine(t))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nCOPY Dockerfile /copied\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	h.Must("image", "build", dir, "-t", "first")
	if exe := executable(t, h.Server().PID); filepath.Dir(exe) != filepath.Join(h.Data, "bin") {
		t.Errorf("the server runs %s", exe)
	}

	h.Must("down")
	url := h.Up()
	key := h.Must("key", "create", "builder", "--quiet")
	elsewhere := filepath.Join(t.TempDir(), "none")
	cmd := h.Command(t.Context(), "image", "build", dir, "-t", "second", "--data", elsewhere)
	cmd.Env = append(slices.Clone(cmd.Env), "HARVEST_URL="+url, "HARVEST_API_KEY="+key)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("build with HARVEST_URL: %v\n%s", err, out)
	}
	if _, err := os.Stat(elsewhere); err == nil {
		t.Error("a build with HARVEST_URL created the data directory")
	}
	for _, name := range []string{"first", "second"} {
		h.Must("image", "inspect", name)
	}
}

// TestCarriedServerWithoutExec checks the error for a data directory from which no program can be started.
func TestCarriedServerWithoutExec(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	data := t.TempDir()
	if err := unix.Mount("tmpfs", data, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Skipf("mount a file system with noexec: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(data, 0); err != nil {
			t.Error(err)
		}
	})
	bin := t.TempDir()
	if err := os.Symlink(testenv.CommandLine(t), filepath.Join(bin, "harvest")); err != nil {
		t.Fatal(err)
	}
	h := &host.Host{T: t, Data: data, Env: &testscript.Env{Vars: append(testenv.CleanEnv(), "HARVEST_DATA="+data,
		"PATH="+bin)}}
	for _, args := range [][]string{{"run", "--", "true"}, {"up"}} {
		if _, stderr, code := h.Run(args...); code == 0 || !strings.Contains(stderr, "without noexec") {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
}

func executable(t *testing.T, pid int) string {
	t.Helper()
	path, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}
