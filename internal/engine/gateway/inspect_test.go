package gateway_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// only decides that good.org is allowed, and bad.org denied.
func only(check gateway.Check) gateway.Decide {
	p, err := gateway.Compile("allow", []string{"good.org", "also.org"}, []string{"bad.org"})
	if err != nil {
		return nil
	}
	return func(name string, _ uint16) gateway.Verdict { return p.Name(check, name, 443) }
}

// inspect feeds a stream in pieces of a size, and returns the forwarded bytes.
func inspect(check gateway.Check, stream []byte, piece int) (*gateway.Inspector, []byte, error) {
	i := gateway.NewInspector(check, only(check))
	var out []byte
	for len(stream) > 0 {
		n := min(piece, len(stream))
		b, err := i.Next(stream[:n])
		if err != nil {
			return i, out, err
		}
		out = append(out, b...)
		stream = stream[n:]
	}
	return i, out, nil
}

// clientHello returns the first flight of Go's TLS client.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	a, b := net.Pipe()
	go func() {
		c := tls.Client(a, &tls.Config{ServerName: name, InsecureSkipVerify: name == ""})
		_ = c.Handshake()
		_ = a.Close()
	}()
	var head [5]byte
	if _, err := io.ReadFull(b, head[:]); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(b, body); err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
	return append(head[:], body...)
}

// records cuts the handshake message of a record into records of a size.
func records(rec []byte, size int) []byte {
	var out []byte
	for m := rec[5:]; len(m) > 0; {
		n := min(size, len(m))
		out = append(out, 22, 3, 1, byte(n>>8), byte(n))
		out = append(out, m[:n]...)
		m = m[n:]
	}
	return out
}

// withExtension adds an extension to a ClientHello in one record.
func withExtension(rec []byte, kind uint16, data []byte) []byte {
	ext := binary.BigEndian.AppendUint16(nil, kind)
	ext = append(binary.BigEndian.AppendUint16(ext, uint16(len(data))), data...)
	m := bytes.Clone(rec[5:])
	at := 4 + 2 + 32
	at += 1 + int(m[at])
	at += 2 + int(binary.BigEndian.Uint16(m[at:]))
	at += 1 + int(m[at])
	binary.BigEndian.PutUint16(m[at:], binary.BigEndian.Uint16(m[at:])+uint16(len(ext)))
	m = append(m, ext...)
	n := len(m) - 4
	m[1], m[2], m[3] = byte(n>>16), byte(n>>8), byte(n)
	return append([]byte{22, 3, 1, byte(len(m) >> 8), byte(len(m))}, m...)
}

func record(kind byte, size int) []byte {
	return append([]byte{kind, 3, 3, byte(size >> 8), byte(size)}, make([]byte, size)...)
}

// mission: A6
func TestStreamsAreReadForNames(t *testing.T) {
	t.Parallel()
	good, bad := clientHello(t, "good.org"), clientHello(t, "bad.org")
	none, other := clientHello(t, ""), clientHello(t, "other.org")
	ech := withExtension(good, 0xfe0d, []byte{0})
	early := withExtension(good, 42, nil)
	join := func(parts ...any) []byte {
		var out []byte
		for _, p := range parts {
			switch p := p.(type) {
			case string:
				out = append(out, p...)
			case []byte:
				out = append(out, p...)
			}
		}
		return out
	}
	const host = "Host: good.org\r\n"
	for _, test := range []struct {
		name    string
		stream  []byte
		allowed string // part of CheckAllowed's reason; "" if it allows
		denied  string // the same for CheckDenied
	}{
		{"tls", join(good, record(20, 1), record(23, 40)), "", ""},
		{"tls in small records", join(records(good, 37), record(20, 1), record(23, 40)), "", ""},
		{"tls to another", other, "other.org, which no rule", ""},
		{"tls to a denied one", bad, "bad.org", "bad.org"},
		{"denied in small records", records(bad, 37), "bad.org", "bad.org"},
		{"tls without a name", none, "does not name a server", ""},
		{"ech", ech, "ECH", ""},
		{"esni", withExtension(good, 0xffce, []byte{0}), "ECH", ""},
		{"two names", withExtension(good, 0, []byte{0, 10, 0, 0, 7, 'b', 'a', 'd', '.', 'o', 'r', 'g'}),
			"cannot be read", "cannot be read"},
		{"a second hello", join(good, record(20, 1), bad), "bad.org", "bad.org"},
		{"a second hello in small records", join(good, record(20, 1), records(bad[:5+4], 1),
			records(append(make([]byte, 5), bad[9:]...), 37)), "bad.org", "bad.org"},
		{"a hello in too many records", records(bad, 1), "cannot be read", "cannot be read"},
		{"a second hello after early data", join(early, record(23, 100), record(23, 16000), bad), "bad.org", "bad.org"},
		{"an encrypted handshake message", join(good, []byte{22, 3, 3, 0, 3, 16, 0, 0}, record(20, 1), record(22, 40),
			record(23, 10)), "", ""},
		{"one that begins as a hello", join(good, record(20, 1), []byte{22, 3, 3, 0, 8, 1, 9, 9, 9, 9, 9, 9, 9},
			record(23, 10)), "", ""},
		{"an alert", join(good, record(21, 2)), "", ""},
		{"tls nonsense", join([]byte{22, 3, 1, 0, 4, 9, 9, 9, 9}), "cannot be read", "cannot be read"},
		{"tls of another version", join([]byte{22, 3, 1, 0, 1, 1}, []byte{22, 9, 1, 0, 0}), "cannot be read",
			"cannot be read"},
		{"an endless hello", join([]byte{22, 3, 1, 0, 4, 1, 0xff, 0, 0}), "cannot be read", "cannot be read"},
		{"a record too large", []byte{22, 3, 1, 0xff, 0xff}, "cannot be read", "cannot be read"},
		{"not tls after all", []byte{22, 9, 1, 0, 0}, "", ""},

		{"http", join("GET / HTTP/1.1\r\n", host, "\r\n"), "", ""},
		{"http with a port", []byte("GET / HTTP/1.1\r\nhost:good.org:8080\r\n\r\n"), "", ""},
		{"line breaks first", join("\r\n\r\nGET / HTTP/1.1\r\n", host, "\r\n"), "", ""},
		{"http to another", []byte("GET / HTTP/1.1\r\nHost: other.org\r\n\r\n"), "other.org", ""},
		{"http to a denied one", []byte("GET / HTTP/1.1\r\nHost: BAD.org.\r\n\r\n"), "bad.org", "bad.org"},
		{"http to an address", []byte("GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"), "169.254.169.254", ""},
		{"http to an address of IPv6", []byte("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n"), "::1", ""},
		{"http to a number", []byte("GET / HTTP/1.1\r\nHost: 2852039166\r\n\r\n"), "form", "form"},
		{"http without a host", []byte("GET / HTTP/1.0\r\n\r\n"), "does not name", ""},
		{"http 0.9", []byte("GET /\r\n"), "does not name", ""},
		{"two hosts", join("GET / HTTP/1.1\r\n", host, "Host: bad.org\r\n\r\n"), "cannot be read", "cannot be read"},
		{"a folded line", join("GET / HTTP/1.1\r\nX: 1\r\n", " ", host, host, "\r\n"), "cannot be read",
			"cannot be read"},
		{"a space before the colon", join("GET / HTTP/1.1\r\nHost : bad.org\r\n", host, "\r\n"), "cannot be read",
			"cannot be read"},
		{"a bare line feed", join("GET / HTTP/1.1\r\nX: 1\nHost: bad.org\r\n", host, "\r\n"), "cannot be read",
			"cannot be read"},
		{"a bare carriage return", join("GET / HTTP/1.1\r\nX: 1\rHost: bad.org\r\n", host, "\r\n"), "cannot be read",
			"cannot be read"},
		{"a zero byte", join("GET / HTTP/1.1\r\nX: \x00\r\n", host, "\r\n"), "cannot be read", "cannot be read"},
		{"an absolute target", join("GET http://bad.org/ HTTP/1.1\r\n", host, "\r\n"), "bad.org", "bad.org"},
		{"an absolute target that is allowed", join("GET http://also.org/ HTTP/1.1\r\n", host, "\r\n"), "", ""},
		{"a target with a user", join("GET http://good.org@bad.org/ HTTP/1.1\r\n", host, "\r\n"), "cannot be read",
			"cannot be read"},
		{"spaces in the target", join("GET / x HTTP/1.1\r\n", host, "\r\n"), "cannot be read", "cannot be read"},
		{"options of all", join("OPTIONS * HTTP/1.1\r\n", host, "\r\n"), "", ""},
		{"a second request", join("GET / HTTP/1.1\r\n", host, "\r\n", "GET / HTTP/1.1\r\nHost: bad.org\r\n\r\n"),
			"bad.org", "bad.org"},
		{"a second request after a body", join("POST / HTTP/1.1\r\n", host, "Content-Length: 5\r\n\r\nhello",
			"GET / HTTP/1.1\r\nHost: bad.org\r\n\r\n"), "bad.org", "bad.org"},
		{"a request in a body", join("POST / HTTP/1.1\r\n", host, "Content-Length: 33\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: bad.org\r\n\r\n"), "", ""},
		{"chunks", join("POST / HTTP/1.1\r\n", host,
			"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n", "GET / HTTP/1.1\r\n", host,
			"\r\n"), "", ""},
		{"a request after chunks", join("POST / HTTP/1.1\r\n", host,
			"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "GET / HTTP/1.1\r\nHost: bad.org\r\n\r\n"),
			"bad.org", "bad.org"},
		{"chunks of no size", join("POST / HTTP/1.1\r\n", host, "Transfer-Encoding: chunked\r\n\r\nx\r\n"),
			"cannot be read", "cannot be read"},
		{"chunks with no end", join("POST / HTTP/1.1\r\n", host, "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n"),
			"cannot be read", "cannot be read"},
		{"a long line of a chunk", join("POST / HTTP/1.1\r\n", host, "Transfer-Encoding: chunked\r\n\r\n",
			strings.Repeat("0", 5000), "\r\n"), "cannot be read", "cannot be read"},
		{"length and chunks", join("POST / HTTP/1.1\r\n", host,
			"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"), "cannot be read", "cannot be read"},
		{"two lengths", join("POST / HTTP/1.1\r\n", host, "Content-Length: 5\r\nContent-Length: 6\r\n\r\n"),
			"cannot be read", "cannot be read"},
		{"a strange length", join("POST / HTTP/1.1\r\n", host, "Content-Length: +5\r\n\r\n"), "cannot be read",
			"cannot be read"},
		{"a strange encoding", join("POST / HTTP/1.1\r\n", host, "Transfer-Encoding: xchunked\r\n\r\n"),
			"cannot be read", "cannot be read"},
		{"something else after a request", join("GET / HTTP/1.1\r\n", host, "\r\n", "\x00\x01"), "cannot be read",
			"cannot be read"},
		{"connect", join("CONNECT good.org:443 HTTP/1.1\r\n", host, "\r\n", good), "", ""},
		{"connect to another", join("CONNECT bad.org:443 HTTP/1.1\r\n", host, "\r\n"), "bad.org", "bad.org"},
		{"another inside connect", join("CONNECT good.org:443 HTTP/1.1\r\n", host, "\r\n", bad), "bad.org", "bad.org"},
		{"connect with a body", join("CONNECT good.org:443 HTTP/1.1\r\n", host, "Content-Length: 600\r\n\r\n", bad),
			"cannot be read", "cannot be read"},
		{"a web socket", join("GET / HTTP/1.1\r\n", host, "Upgrade: websocket\r\n\r\n", "\x81\x85aaaahello"), "", ""},
		{"a request instead of a web socket", join("GET / HTTP/1.1\r\n", host, "Upgrade: websocket\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: bad.org\r\n\r\n"), "bad.org", "bad.org"},
		{"http 2 by upgrade", join("GET / HTTP/1.1\r\n", host, "Upgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
			"HTTP/2", ""},
		{"http 2", []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "HTTP/2", ""},
		{"an endless request line", join("GET /", strings.Repeat("a", 70<<10)), "cannot be read", "cannot be read"},
		{"an endless head", join("GET / HTTP/1.1\r\nX: ", strings.Repeat("a", 70<<10)), "cannot be read",
			"cannot be read"},
		{"a head of nothing", []byte("GET / HTTP/1.1\r\n\r\n"), "does not name", ""},
		{"a host that is none", []byte("GET / HTTP/1.1\r\nHost: a:b:c\r\n\r\n"), "cannot be read", "cannot be read"},

		{"ssh", []byte("SSH-2.0-OpenSSH_9.2\r\n"), "", ""},
		{"smtp", []byte("EHLO example.org\r\n"), "", ""},
		{"rtsp", []byte("OPTIONS rtsp://example.org/ RTSP/1.0\r\n"), "", ""},
		{"postgres", []byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"), "", ""},
		{"a long word", []byte(strings.Repeat("a", 100)), "", ""},
	} {
		for _, check := range []gateway.Check{gateway.CheckAllowed, gateway.CheckDenied, gateway.CheckNothing} {
			want := map[gateway.Check]string{gateway.CheckAllowed: test.allowed,
				gateway.CheckDenied: test.denied}[check]
			for _, piece := range []int{1, 3, 100, 1 << 20} {
				i, out, err := inspect(check, test.stream, piece)
				var refusal *gateway.Refusal
				switch {
				case want == "" && (err != nil || !bytes.Equal(out, test.stream) || i.Holding()):
					t.Errorf("%s, check %d, pieces of %d: %v; %d of %d bytes went on", test.name, check, piece, err,
						len(out), len(test.stream))
				case want != "" && (!errors.As(err, &refusal) || !strings.Contains(err.Error(), want)):
					t.Errorf("%s, check %d, pieces of %d: %v, want %q", test.name, check, piece, err, want)
				}
			}
		}
	}
}

func TestWhatIsHeldBack(t *testing.T) {
	t.Parallel()
	hello := clientHello(t, "good.org")
	for _, begin := range [][]byte{[]byte("G"), []byte("GET / HTTP/1.1\r\nHost: good.org"), hello[:1], hello[:20]} {
		i, out, err := inspect(gateway.CheckAllowed, begin, 1)
		if err != nil || len(out) > 0 || !i.Holding() || i.Done() {
			t.Errorf("%q: %q went on, %v", begin, out, err)
		}
	}
	i, out, err := inspect(gateway.CheckAllowed, []byte("SSH-2.0-x\r\n"), 100)
	if err != nil || len(out) == 0 || i.Holding() || !i.Done() {
		t.Errorf("ssh: %v", err)
	}
}

func FuzzInspector(f *testing.F) {
	f.Add(clientHello(f, "good.org"), 1)
	f.Add(clientHello(f, "bad.org"), 7)
	f.Add([]byte("POST / HTTP/1.1\r\nHost: good.org\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX: "+
		"y\r\n\r\nGET / HTTP/1.1\r\nHost: bad.org\r\n\r\n"), 3)
	f.Add([]byte("CONNECT good.org:443 HTTP/1.1\r\nHost: good.org\r\n\r\n\x16\x03"), 3)
	f.Add([]byte("\r\nGET / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"), 2)
	f.Fuzz(func(t *testing.T, stream []byte, piece int) {
		for _, check := range []gateway.Check{gateway.CheckAllowed, gateway.CheckDenied} {
			whole, out, err := inspect(check, stream, 1<<20)
			if !bytes.HasPrefix(stream, out) {
				t.Fatalf("%q went on of %q", out, stream)
			}
			cut, parts, cutErr := inspect(check, stream, max(piece, 1))
			if !bytes.HasPrefix(stream, parts) {
				t.Fatalf("%q went on of %q", parts, stream)
			}
			// The result is the same for each way to cut a stream.
			if err == nil && cutErr == nil && (!bytes.Equal(out, parts) || whole.Done() != cut.Done()) {
				t.Errorf("in pieces %q went on, whole %q", parts, out)
			}
			if len(stream) < 16<<10 && (err == nil) != (cutErr == nil) {
				t.Errorf("in pieces %v, whole %v", cutErr, err)
			}
		}
	})
}
