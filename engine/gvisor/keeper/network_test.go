package keeper

import (
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/tool"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/gateway"
)

func TestDenialsAreKeptAndTold(t *testing.T) {
	t.Parallel()
	var d denials
	found, more := d.after(0)
	if len(found) != 0 || more == nil {
		t.Fatalf("%+v", found)
	}
	d.add(gateway.Denial{Protocol: "dns", Domain: "x.org", Reason: "no rule allows it", Count: 2})
	<-more
	found, _ = d.after(0)
	if len(found) != 1 || found[0].Seq != 1 || found[0].Domain != "x.org" || found[0].Count != 2 {
		t.Errorf("%+v", found)
	}
	for range 2 * keptDenials {
		d.add(gateway.Denial{Protocol: "tcp"})
	}
	found, _ = d.after(1)
	if len(found) != keptDenials || found[0].Seq != keptDenials+2 || found[len(found)-1].Seq != 2*keptDenials+1 {
		t.Errorf("%d are kept, from %d", len(found), found[0].Seq)
	}
	if found, _ := d.after(found[len(found)-1].Seq); len(found) != 0 {
		t.Errorf("after the last: %+v", found)
	}
	if found, _ := d.after(1 << 40); len(found) != keptDenials { // of another sandbox's count
		t.Errorf("after what never was: %d", len(found))
	}
}

func TestNetworkWithoutOne(t *testing.T) {
	t.Parallel()
	var n network
	for _, mode := range []engine.NetworkMode{"", engine.NetworkNone} {
		if err := n.set(engine.Network{Mode: mode}, nil); err != nil || n.gateway != nil ||
			n.state().Mode != engine.NetworkNone {
			t.Errorf("mode %q: %v, %+v", mode, err, n.state())
		}
	}
	if err := n.set(engine.Network{Mode: "odd"}, nil); !errors.Is(err, errors.Invalid) ||
		n.state().Mode != engine.NetworkNone {
		t.Errorf("an odd mode: %v, %+v", err, n.state())
	}
	if err := n.close(); err != nil {
		t.Error(err)
	}
}

func TestFilesOfNames(t *testing.T) {
	t.Parallel()
	steps := nameFiles("box", "")
	if len(steps) != 2 || steps[0].rename != "/etc/hosts" || !strings.Contains(steps[0].content, "127.0.1.1\tbox\n") ||
		steps[1].rename != "/etc/resolv.conf" || !strings.HasPrefix(steps[1].content, "nameserver 10.0.2.3\n") {
		t.Errorf("%+v", steps)
	}
	if all := nameFiles("box", "0123"); len(all) != 4 || all[2].rename != "/etc/hostname" ||
		all[2].content != "box\n" || all[3].rename != "/etc/machine-id" || all[3].content != "0123\n" {
		t.Errorf("%+v", all)
	}
	if s := nameFiles("localhost", "")[0].content; strings.Count(s, "\n") != 2 {
		t.Errorf("hosts %q", s)
	}
	want := []string{"/init", "box", "/d", "/d/f", "text", "/d/g"}
	if got := initArgs("/init", "box", initStep{"/d", "/d/f", "text", "/d/g"}); !slices.Equal(got, want) {
		t.Errorf("arguments %q", got)
	}
	if n := len(initCode()); n > initData {
		t.Errorf("the code of %d bytes overlaps its data at %d", n, initData)
	}
}

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
