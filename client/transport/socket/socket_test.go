package socket_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
)

func TestLongDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200), strings.Repeat("e", 200))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := socket.Listen(dir, "a.sock")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "a.sock"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v; want 0600", info.Mode(), err)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(c, "hello")
		c.Close()
	}()
	c, err := socket.Dial(t.Context(), dir, "a.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Fatalf("read %q, %v", got, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Fatalf("left behind: %v", left)
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := socket.Dial(t.Context(), dir, "a.sock"); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("no socket: %v", err)
	}
	if _, err := socket.Dial(t.Context(), filepath.Join(dir, "none"),
		"a.sock"); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("no directory: %v", err)
	}
	// A socket that a killed server left behind.
	l, err := socket.Listen(dir, "a.sock")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "a.sock"), filepath.Join(dir, "b.sock")); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := socket.Dial(t.Context(), dir, "b.sock"); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("stale socket: %v", err)
	}
	again, err := socket.Listen(dir, "b.sock")
	if err != nil {
		t.Fatalf("in place of a stale socket: %v", err)
	}
	again.Close()
}
