package pid1

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// links returns both ends of a link.
func links(t testing.TB) (a, b *Link) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*Link
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "link")
		conn, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = NewLink(conn.(*net.UnixConn))
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	return ends[0], ends[1]
}

// TestLink checks that messages of any size arrive in order, each with its own files.
func TestLink(t *testing.T) {
	t.Parallel()
	a, b := links(t)
	sizes := []int{0, 1, 70_000, 3, maxMessage - 100, 5}
	go func() {
		for i, size := range sizes {
			var files []*os.File
			for range i % 3 {
				r, w, err := os.Pipe()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = w.WriteString(strings.Repeat("x", i))
				_ = w.Close()
				files = append(files, r)
			}
			if err := a.Send(strings.Repeat("m", size), files...); err != nil {
				t.Error(err)
			}
			closeAll(files)
		}
		_ = a.Close()
	}()
	for i, size := range sizes {
		var text string
		files, err := b.Receive(&text)
		if err != nil || len(text) != size || len(files) != i%3 {
			t.Fatalf("message %d: %d bytes and %d files, %v; want %d and %d", i, len(text), len(files), err, size, i%3)
		}
		for _, f := range files {
			if content, err := io.ReadAll(f); err != nil || len(content) != i {
				t.Errorf("a file of message %d has %q, %v", i, content, err)
			}
		}
		closeAll(files)
	}
	var text string
	if _, err := b.Receive(&text); err != io.EOF {
		t.Errorf("after the last message: %v, want EOF", err)
	}
	if err := a.Send(bytes.Repeat([]byte("m"), maxMessage)); err == nil {
		t.Error("a message that is too large was sent")
	}
}

// FuzzReceive sends any bytes, with files at any place, as a process that a user of the container controls may.
func FuzzReceive(f *testing.F) {
	message := func(files byte, body string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{files}, uint32(len(body))), body...)
	}
	f.Add(message(0, `{"ID":1}`), 0)
	f.Add(message(1, `{"PID":2,"Exit":9}`), 1)
	f.Add(message(2, `{}`), 1)
	f.Add([]byte{0, 255, 255, 255, 255}, 0)
	f.Add(slices.Concat(message(0, `{"ID":1,"Content":"eA=="}`), message(3, `{`)), 9)
	f.Fuzz(func(t *testing.T, raw []byte, at int) {
		a, b := links(t)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		at = max(0, min(at, len(raw)))
		sent := make(chan struct{})
		defer func() {
			_ = b.Close() // the sender may wait for a reader
			<-sent
		}()
		go func() {
			defer close(sent)
			_, _ = a.conn.Write(raw[:at])
			if at < len(raw) {
				_, _, _ = a.conn.WriteMsgUnix(raw[at:], unix.UnixRights(int(null.Fd())), nil)
			}
			_ = a.Close()
		}()
		for {
			var m Message
			files, err := b.Receive(&m)
			closeAll(files)
			if err != nil {
				break
			}
		}
		if len(b.held) > 0 {
			t.Errorf("%d files are left open", len(b.held))
		}
	})
}

func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"run": 0o755, "text": 0o644} {
		if err := os.WriteFile(dir+"/"+name, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, path string
		want       string
		errno      unix.Errno
	}{
		{"run", "/nowhere:" + dir, dir + "/run", 0},
		{"run", ":/nowhere", dir + "//run", 0}, // an empty element is the working directory
		{"text", dir, "", unix.EACCES},
		{"none", dir, "", unix.ENOENT},
		{"./any", dir, "./any", 0},
	} {
		got, err := find(c.name, dir, []string{"A=1", "PATH=" + c.path})
		var errno unix.Errno
		if f, ok := err.(*Failure); ok {
			errno = f.Errno
		}
		if got != c.want || errno != c.errno {
			t.Errorf("%s in %s: got %q, %v; want %q, %v", c.name, c.path, got, err, c.want, c.errno)
		}
	}
}
