package wire

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/engine"
)

// said is a connection to a keeper that only sends the given bytes.
type said struct {
	net.Conn
	io.Reader
}

func (s said) Read(b []byte) (int, error) { return s.Reader.Read(b) }
func (s said) Close() error               { return nil }

func frames(pairs ...string) []byte {
	var all []byte
	for i := 0; i < len(pairs); i += 2 {
		var h [HeaderSize]byte
		PutHeader(h[:], Kind(pairs[i][0]), len(pairs[i+1]))
		all = append(append(all, h[:]...), pairs[i+1]...)
	}
	return all
}

// FuzzDeliver sends arbitrary data about a command from a compromised keeper: the command ends, and only sent output is
// delivered.
func FuzzDeliver(f *testing.F) {
	f.Add(frames("o", "out", "u", "err", "x", `{"Code":3}`))
	f.Add(frames("t", "17", "o", "rest", "e", `{"Kind":"conflict","Message":"it has ended"}`))
	f.Add(frames("t", "17 and more", "?", "", "x", "{"))
	f.Add([]byte("o\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &process{c: &Client{ID: "box"}, conn: NewConn(said{Reader: bytes.NewReader(data)}),
			done: make(chan struct{})}
		var out, problems strings.Builder
		p.deliver(engine.Stdio{Stdout: &out, Stderr: &problems, Truncated: func(int64) {}})
		if _, err := p.Wait(t.Context()); err == nil && !bytes.Contains(data, []byte("x")) {
			t.Error("a command has ended of which nobody said so")
		}
		if out.Len()+problems.Len() > len(data) {
			t.Errorf("%d bytes of output of %d", out.Len()+problems.Len(), len(data))
		}
	})
}
