package testenv

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FreePort returns a TCP port of the loopback interface that was just free.
func FreePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// WriteFile writes a file and creates its missing parent directories.
func WriteFile(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// NPMRegistry returns the address of the npm registry that the build of the agent image uses. It skips the test
// if the registry does not answer.
func NPMRegistry(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // npm takes long to start on a busy machine
	defer cancel()
	bootstrap := filepath.Join(root(t), "internal", "image", "agent", "files", "lib", "bootstrap.py")
	out, err := exec.CommandContext(ctx, RequireTool(t, "python3", "python3"), bootstrap).CombinedOutput()
	address := strings.TrimSpace(string(out))
	if err != nil {
		t.Skipf("no npm registry: %s", address)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/npm/10.9.9", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Skipf("the npm registry does not answer: %v", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Skipf("the npm registry answers %s", answer.Status)
	}
	return address
}

// SmallDisk mounts a tmpfs with these options, such as "size=1m", until the test ends, and returns its
// directory. It skips the test if the user may not mount.
func SmallDisk(t testing.TB, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("this test mounts a small file system: run it with sudo: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
