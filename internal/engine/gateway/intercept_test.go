package gateway_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// intercept feeds a stream in pieces of a size to an Inspector that intercepts good.org only, and returns the forwarded
// bytes with what is held back at the end.
func intercept(stream []byte, piece int) (out []byte, err error) {
	i := gateway.NewInspector(gateway.CheckIntercept, func(name string, _ uint16) gateway.Verdict {
		canonical, _ := gateway.CanonicalName(name)
		return gateway.Verdict{Allowed: true, Intercept: canonical == "good.org"}
	})
	for len(stream) > 0 {
		n := min(piece, len(stream))
		b, err := i.Next(stream[:n])
		if err != nil {
			return out, err
		}
		out, stream = append(out, b...), stream[n:]
	}
	return append(out, i.Release()...), nil
}

// TestOtherConnectionsAreNotLookedAt checks that connections which do not name an intercepted server go on, whatever
// they contain.
//
// mission: 9.1
func TestOtherConnectionsAreNotLookedAt(t *testing.T) {
	t.Parallel()
	for name, stream := range map[string]string{
		"many headers": "GET / HTTP/1.1\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 100) +
			"Host: other.org\r\n\r\n",
		"a large value":    "GET / HTTP/1.1\r\nHost: other.org\r\nX: " + strings.Repeat("x", 1<<20),
		"another protocol": "SSH-2.0-OpenSSH_9.2\r\n" + strings.Repeat("\x00", 100<<10),
		"a long line":      "GET /" + strings.Repeat("x", 100<<10),
	} {
		for _, piece := range []int{1000, 1 << 20} {
			if out, err := intercept([]byte(stream), piece); err != nil || string(out) != stream {
				t.Errorf("%s in pieces of %d: %d of %d bytes went on, %v", name, piece, len(out), len(stream), err)
			}
		}
	}
}

// FuzzIntercept checks that the same connections are handed over however they are cut, with all their bytes, and that
// others go on unchanged.
func FuzzIntercept(f *testing.F) {
	for i, seed := range [][]byte{clientHello(f, "good.org"), clientHello(f, "other.org"), clientHello(f, ""),
		[]byte("GET / HTTP/1.1\r\nHost: good.org\r\n\r\n"),
		[]byte("CONNECT good.org:443 HTTP/1.1\r\nHost: proxy\r\n\r\n"),
		[]byte("GET / HTTP/1.1\r\nHost: other.org\r\n\r\nGET / HTTP/1.1\r\nHost: good.org\r\n\r\n"),
		[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")} {
		f.Add(seed, i+1)
	}
	f.Fuzz(func(t *testing.T, stream []byte, piece int) {
		var over, cutOver *gateway.Handover
		whole, err := intercept(stream, len(stream)+1)
		parts, cutErr := intercept(stream, max(piece, 1))
		for _, out := range [][]byte{whole, parts} {
			if !bytes.HasPrefix(stream, out) {
				t.Fatalf("%q went on of %q", out, stream)
			}
		}
		handed, cut := errors.As(err, &over), errors.As(cutErr, &cutOver)
		switch {
		case handed && len(whole) > 0, cut && len(parts) > 0:
			t.Errorf("%q went on before the connection was handed over", parts)
		case handed && !bytes.Equal(over.Data, stream), cut && !bytes.HasPrefix(stream, cutOver.Data):
			t.Errorf("other bytes were handed over than %q", stream)
		case handed && cut && (over.Name != cutOver.Name || over.TLS != cutOver.TLS || over.Connect != cutOver.Connect):
			t.Errorf("in pieces %+v, whole %+v", cutOver, over)
		case len(stream) < 16<<10 && (handed != cut || (err == nil) != (cutErr == nil)):
			t.Errorf("in pieces %v, whole %v", cutErr, err)
		case err == nil && !bytes.Equal(whole, stream), cutErr == nil && !bytes.Equal(parts, stream):
			t.Errorf("%q went on of %q", parts, stream)
		}
	})
}
