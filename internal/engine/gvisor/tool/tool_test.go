package tool

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

func TestTools(t *testing.T) {
	t.Parallel()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "a/b.txt", Mode: 0o640, Size: 5, Uid: os.Getuid(),
		Gid: os.Getgid()}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new")
	var stderr bytes.Buffer
	if code := Main([]string{wire.ToolUnpack, dir}, &archive, nil, &stderr); code != 0 {
		t.Fatalf("unpack: code %d, %s", code, &stderr)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "a", "b.txt")); err != nil || string(b) != "hello" {
		t.Errorf("unpacked %q, %v", b, err)
	}
	var out bytes.Buffer
	if code := Main([]string{wire.ToolPack, filepath.Join(dir, "a", "b.txt")}, nil, &out, &stderr); code != 0 {
		t.Fatalf("pack: code %d, %s", code, &stderr)
	}
	if h, err := tar.NewReader(&out).Next(); err != nil || h.Name != "b.txt" || h.Mode != 0o640 {
		t.Errorf("packed %+v, %v", h, err)
	}
	for _, bad := range [][]string{nil, {"other", "x"}, {wire.ToolPack, filepath.Join(dir, "nothing")},
		{wire.ToolUnpack, filepath.Join(dir, "a", "b.txt")}, {wire.ToolPack, filepath.Join(dir, "no", "x")}} {
		stderr.Reset()
		if code := Main(bad, strings.NewReader(""), &out, &stderr); code == 0 {
			t.Errorf("%v: no error", bad)
		}
		var f wire.Failure
		if err := json.Unmarshal(stderr.Bytes(), &f); err != nil || f.Kind == "" {
			t.Errorf("%v: stderr is %q", bad, &stderr)
		}
	}
}

func TestRelayRefusesWhatIsNoConnection(t *testing.T) {
	t.Parallel()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	if _, err := unix.Write(fds[0], []byte("no")); err != nil {
		t.Fatal(err)
	}
	if err := Relay(fds[1]); err == nil {
		t.Error("a message without a connection was taken")
	}
	_ = unix.Close(fds[0])
	if err := Relay(fds[1]); err != nil {
		t.Errorf("the end: %v", err)
	}
}
