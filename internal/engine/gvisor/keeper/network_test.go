package keeper

import (
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/tool"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// TestRelay checks that the relay receives connections, and connects them to a listener here.
func TestRelay(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				said, _ := io.ReadAll(c)
				_, _ = c.Write(append([]byte("you said "), said...))
			}()
		}
	}()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(fds[0]), "relay")
	c, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	_ = ours.Close()
	ended := make(chan error, 1)
	go func() { ended <- tool.Relay(fds[1]) }()
	port := l.Addr().(*net.TCPAddr).Port
	for text, port := range map[string]int{"kyou said hello": port, "\x00": freePort(t)} {
		client, server := connection(t)
		if err := handOver(c.(*net.UnixConn), server, port); err != nil {
			t.Fatal(err)
		}
		_ = server.Close()
		_, _ = client.Write([]byte("hello"))
		_ = client.CloseWrite()
		got, _ := io.ReadAll(client)
		if string(got) != text {
			t.Errorf("port %d: %q, want %q", port, got, text)
		}
	}
	_ = c.Close()
	if err := <-ended; err != nil {
		t.Errorf("the relay ended with %v", err)
	}
	_ = unix.Close(fds[1])
	if wire.DialOK != 'k' {
		t.Error("the text above knows the first byte")
	}
}

// connection returns both ends of a Unix socket.
func connection(t *testing.T) (client, server *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return ends[0], ends[1]
}

// freePort is a port without a listener.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
