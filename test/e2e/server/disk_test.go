package server

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestFullDiskKeepsOutput checks that on a full disk of the data directory, commands still reach their clients with all
// output, files and copies name the full disk, and records are written. With space again, everything works.
func TestFullDiskKeepsOutput(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	gvisor := host.GVisor(t)
	h := host.New(t, "gvisor", func(env *testscript.Env) error {
		data := env.Getenv("HARVEST_DATA")
		if err := unix.Mount("tmpfs", data, "tmpfs", 0, "size=500m,mode=0700"); err != nil {
			t.Skipf("this test mounts a small file system: run it with sudo: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(data, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		return gvisor(env)
	})
	h.Must("sandbox", "create", "--name", "box")
	filler := filepath.Join(h.Data, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	f.Close()

	out, _, code := h.Run("sandbox", "exec", "--json", "box", "--", "sh", "-c", "echo hello; echo oops >&2; exit 3")
	var res api.Result
	if err := json.Unmarshal([]byte(out), &res); err != nil || code != 3 || res.Stdout != "hello\n" ||
		res.Stderr != "oops\n" || res.Truncated {
		t.Errorf("exit code %d, %s, %v", code, out, err)
	}
	const lines = 200_000
	if out := h.Must("sandbox", "exec", "box", "--", "seq", "200000"); strings.Count(out, "\n") != lines-1 ||
		!strings.HasSuffix(out, "\n200000") {
		t.Errorf("%d bytes of a long output", len(out))
	}
	out, stderr, code := h.Run("sandbox", "logs", "box")
	if code != 0 || !strings.HasSuffix(out, "\n200000\n") || len(out) < 64<<10 || !strings.Contains(stderr,
		"are no longer kept") {
		t.Errorf("logs: exit code %d, %d bytes, %s", code, len(out), stderr)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"sandbox", "cp", large, "box:/large"},
		{"sandbox", "files", "put", "box:/large", "--from", large}} {
		if _, stderr, code := h.Run(args...); code == 0 || !strings.Contains(stderr, "no space left") {
			t.Errorf("%v: exit code %d, %s", args[1:3], code, stderr)
		}
	}
	if out := h.Must("sandbox", "files", "ls", "box:/etc/passwd"); !strings.Contains(out, "passwd") {
		t.Errorf("files ls: %s", out)
	}
	h.Must("sandbox", "extend", "box", "--timeout", "3h") // a record
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	h.Must("sandbox", "cp", large, "box:/large")
	if out := h.Must("sandbox", "exec", "box", "--", "stat", "-c", "%s", "/large"); out != "3145728" {
		t.Errorf("with space again: %s", out)
	}
}
