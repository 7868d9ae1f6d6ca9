package enginetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A4

var inputChecks = []check{
	{"input/and its end", "a command reads its standard input to the end", nil, checkInput},
	{"input/nil is empty", "without an input, a command sees its end at once", nil, checkNoInput},
	{"input/8 MB", "input that is larger than any pipe goes through whole", nil, checkLargeInput},
	{"input/not read", "Wait returns although the input was not read, or has nothing to give", nil, checkUnreadInput},
	{"input/lost", "a command whose input fails is killed, and its exit says so", nil, checkLostInput},
	{"input/in pieces", "input arrives as it comes, before its end", nil, checkInputPieces},
}

// soon returns a context that ends after d.
func soon(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func checkInput(t *testing.T, s *suite) {
	for _, text := range []string{"hello\n", "no newline at the end", "\x00\x04\xff\n", ""} {
		cmd := engine.Command{Args: []string{"cat"}, Stdin: strings.NewReader(text)}
		probe.Start(t, s.shared, cmd).Expect(t, engine.Exit{}, text)
	}
}

func checkNoInput(t *testing.T, s *suite) {
	probe.Start(t, s.shared, probe.Sh(`wc -c; read line || echo end`)).Expect(t, engine.Exit{}, "0\nend\n")
}

func checkLargeInput(t *testing.T, s *suite) {
	data := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	sum := sha256.New()
	cmd := engine.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(data), Stdout: sum}
	probe.Start(t, s.shared, cmd).Expect(t, engine.Exit{}, "")
	if want := sha256.Sum256(data); !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Error("the received data differ from the sent data")
	}
}

func checkUnreadInput(t *testing.T, s *suite) {
	for name, in := range map[string]io.Reader{
		"8 MB": bytes.NewReader(make([]byte, 8<<20)), "an input without an end": endless{},
		"an input that gives nothing": probe.Silent(t),
	} {
		t.Run(name, func(t *testing.T) {
			cmd := probe.Sh(`echo ran; exit 3`)
			cmd.Stdin = in
			probe.Start(t, s.shared, cmd).Expect(t, engine.Exit{Code: 3}, "ran\n")
		})
	}
}

// checkLostInput checks that a part of an input is not taken for all of it, if the input cannot be continued.
func checkLostInput(t *testing.T, s *suite) {
	in, w := io.Pipe()
	cmd := probe.Sh(`rm -f /tmp/whole; cat >/tmp/part; touch /tmp/whole`)
	cmd.Stdin, cmd.InputOnce = in, true
	c := probe.Start(t, s.shared, cmd)
	if _, err := io.WriteString(w, "a part"); err != nil {
		t.Fatal(err)
	}
	_ = w.CloseWithError(errors.Errorf("the server has ended"))
	exit, err := c.Wait(soon(t, time.Minute))
	if err != nil || !exit.InputLost || exit.Signal != "KILL" {
		t.Errorf("%+v, %v", exit, err)
	}
	probe.Start(t, s.shared, probe.Sh(`test -e /tmp/whole || echo incomplete`)).Expect(t, engine.Exit{}, "incomplete\n")
	cmd = engine.Command{Args: []string{"cat"}, Stdin: strings.NewReader("all"), InputOnce: true}
	probe.Start(t, s.shared, cmd).Expect(t, engine.Exit{}, "all")
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func checkInputPieces(t *testing.T, s *suite) {
	r, w := io.Pipe()
	cmd := probe.Sh(`while read line; do echo "got $line"; done; echo end`)
	cmd.Stdin = r
	c := probe.Start(t, s.shared, cmd)
	for _, piece := range []string{"one", "two", "three"} {
		if _, err := io.WriteString(w, piece+"\n"); err != nil {
			t.Fatal(err)
		}
		c.Stdout.Until(t, "got "+piece+"\n")
	}
	w.Close()
	c.Expect(t, engine.Exit{}, "got one\ngot two\ngot three\nend\n")
}
