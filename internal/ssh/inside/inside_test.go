package inside

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/yamux"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestArguments starts the program with wrong arguments.
func TestArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"unknown"}, {Files, Relay}} {
		var problem bytes.Buffer
		if code := Main(t.Context(), args, strings.NewReader(""), &bytes.Buffer{}, &problem); code != 1 ||
			!strings.Contains(problem.String(), "arguments") {
			t.Errorf("%q: %d, %q", args, code, problem.String())
		}
	}
}

// TestEnd ends the program with its input.
func TestEnd(t *testing.T) {
	for _, mode := range []string{Files, Relay} {
		var problem bytes.Buffer
		if code := Main(t.Context(), []string{mode}, strings.NewReader(""), &bytes.Buffer{}, &problem); code != 0 {
			t.Errorf("%s: %d, %q", mode, code, problem.String())
		}
	}
}

// TestFrames sends frames that are too long, and receives damaged ones.
func TestFrames(t *testing.T) {
	var buf bytes.Buffer
	want := Head{Dial: "tcp", Address: "example.org:80"}
	if err := Send(&buf, want); err != nil {
		t.Fatal(err)
	}
	var got Head
	if err := Receive(&buf, &got); err != nil || got != want {
		t.Errorf("received %+v, %v", got, err)
	}
	if err := Send(&buf, Head{Address: strings.Repeat("x", mostHead)}); !errors.Is(err, errors.Invalid) {
		t.Errorf("a frame that is too long: %v", err)
	}
	for name, frame := range map[string][]byte{
		"nothing": {}, "half a length": {0}, "cut": {0, 5, '{'}, "no JSON": append([]byte{0, 1}, 'x'),
		"too long": binary.BigEndian.AppendUint16(nil, mostHead+1),
	} {
		if err := Receive(bytes.NewReader(frame), &got); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// relayed returns a session with a relay.
func relayed(t *testing.T) *yamux.Session {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan int, 1)
	go func() { done <- Main(t.Context(), []string{Relay}, far, far, os.Stderr) }()
	session, err := yamux.Client(near, Yamux())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = session.Close()
		_ = far.Close()
		if code := <-done; code != 0 {
			t.Errorf("the relay ended with %d", code)
		}
	})
	return session
}

// ask opens a stream with a request, and returns the answer.
func ask(t *testing.T, session *yamux.Session, head Head) (net.Conn, Answer) {
	t.Helper()
	stream, err := session.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	var answer Answer
	if err := errors.Join(Send(stream, head), Receive(stream, &answer)); err != nil {
		t.Fatal(err)
	}
	return stream, answer
}

// TestListen listens on a socket that only the user may use, and connects to it through the relay itself.
func TestListen(t *testing.T) {
	session := relayed(t)
	control, answer := ask(t, session, Head{Listen: "unix"})
	if info, err := os.Stat(filepath.Dir(answer.Address)); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("%+v: %v, %v", answer, info, err)
	}
	up, dialed := ask(t, session, Head{Dial: "unix", Address: answer.Address})
	if dialed.Error != "" {
		t.Fatal(dialed.Error)
	}
	accepted, err := session.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	var head Head
	if err := Receive(accepted, &head); err != nil || head.Accepted != answer.Address {
		t.Fatalf("%+v, %v", head, err)
	}
	buf := make([]byte, 5)
	if _, err := up.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := accepted.Read(buf); err != nil || string(buf) != "hello" {
		t.Errorf("it gets %q, %v", buf, err)
	}
	_ = up.Close()
	_ = accepted.Close()
	_ = control.Close()
	if _, answer := ask(t, session, Head{Dial: "tcp", Address: "127.0.0.1:0"}); answer.Error == "" {
		t.Error("port 0 accepts")
	}
	if _, answer := ask(t, session, Head{Listen: "tcp", Address: "192.0.2.1:0"}); answer.Error == "" {
		t.Error("it listens on an address of another machine")
	}
	if _, answer := ask(t, session, Head{}); answer.Error == "" {
		t.Error("it knows an empty request")
	}
}

// FuzzReceive decodes frames.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x00\x02{}"))
	f.Add([]byte("\x00\x0f{\"Dial\":\"unix\"}"))
	f.Add([]byte("\xff\xff"))
	f.Fuzz(func(t *testing.T, frame []byte) {
		var head Head
		if Receive(bytes.NewReader(frame), &head) != nil {
			return
		}
		var buf bytes.Buffer
		if err := Send(&buf, head); err != nil && !errors.Is(err, errors.Invalid) {
			t.Error(err)
		}
	})
}
