package embedded_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
	"github.com/RelevanceAI/harvest/internal/s3/embedded/serve"
)

func TestMain(m *testing.M) {
	serve.Main(context.Background())
	os.Exit(m.Run())
}

func start(t *testing.T, dir string) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func dial(t *testing.T, s *embedded.Server) {
	t.Helper()
	c, err := net.Dial("unix", s.Socket())
	if err != nil {
		t.Error(err)
		return
	}
	c.Close()
}

// The process is started again when it dies, and ends with the Server; a second Server has the same keys and buckets.
// mission: A8
func TestServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testenv.DataDir(t), "s3")
	s := start(t, dir)
	dial(t, s)
	for range 2 {
		if err := s.Bucket("one"); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", ".hidden"} {
		if err := s.Bucket(name); errors.KindOf(err) != errors.Invalid {
			t.Errorf("the bucket %q: %v", name, err)
		}
	}
	first := s.PID()
	for range 2 {
		pid := s.PID()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); s.PID() == pid || s.PID() == 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it is not started again")
			}
		}
		dial(t, s)
	}
	pid := s.PID()
	s.Stop()
	if pid == first || syscall.Kill(pid, 0) == nil {
		t.Errorf("the process %d goes on", pid)
	}
	again := start(t, dir)
	defer again.Stop()
	if again.Keys() != s.Keys() || again.Keys().SecretAccessKey == "" {
		t.Error("it has other keys")
	}
	if _, err := os.Stat(filepath.Join(dir, "buckets", "one")); err != nil {
		t.Error(err)
	}
}

// Stop also ends the wait for the next start of a process that cannot be started.
func TestServerThatCannotComeBack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testenv.DataDir(t), "s3")
	s := start(t, dir)
	if err := os.Rename(filepath.Join(dir, "buckets"), filepath.Join(dir, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for s.PID() != 0 {
		time.Sleep(10 * time.Millisecond)
	}
	s.Stop()
}

// mission: 9.3
func TestServerRefused(t *testing.T) {
	t.Parallel()
	dir := testenv.DataDir(t)
	for name, prepare := range map[string]func(dir string) error{
		"a file for the directory": func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"damaged keys": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "keys.json"), []byte("{}"), 0o600))
		},
		"keys that cannot be read": func(dir string) error {
			return os.MkdirAll(filepath.Join(dir,
				"keys.json"), 0o700)
		},
		"no socket": func(dir string) error {
			return os.MkdirAll(filepath.Join(dir, embedded.Socket,
				"x"), 0o700)
		},
		"no log": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "s3.log"), 0o700) },
		"no lock": func(dir string) error {
			return os.MkdirAll(filepath.Join(dir,
				embedded.Lock), 0o700)
		},
		"keys that cannot be saved": func(dir string) error {
			return os.MkdirAll(filepath.Join(dir,
				"keys.json.new"), 0o700)
		},
	} {
		at := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := prepare(at); err != nil {
			t.Fatal(err)
		}
		if s, err := embedded.Start(t.Context(), embedded.Options{Dir: at}); err == nil {
			s.Stop()
			t.Errorf("%s: it starts", name)
		}
	}
	if _, err := embedded.Start(t.Context(), embedded.Options{Dir: filepath.Join(dir, "other"),
		Executable: "/bin/false"}); err == nil {
		t.Error("a program that does nothing: it starts")
	}
	if _, err := embedded.Start(t.Context(), embedded.Options{Dir: filepath.Join(dir, "other"),
		Executable: "/nothing"}); err == nil {
		t.Error("no program: it starts")
	}
	if err := embedded.Check("/proc/self"); err == nil {
		t.Error("/proc keeps extended attributes")
	}
}

// TestKeeperHasNone checks that the keeper does not link the server: each sandbox would pay for it.
func TestKeeperHasNone(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"github.com/RelevanceAI/harvest/cmd/harvest/keeper").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "versitygw") || !strings.Contains(string(out), "gvisor") {
		t.Errorf("the keeper has the S3 server, or is no keeper: %.200s", out)
	}
}
