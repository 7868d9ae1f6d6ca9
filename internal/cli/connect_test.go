package cli

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"testing"
)

// TestSilentServerIsReported checks that a command says what it waits for if a server on another machine accepts its
// request and does not answer.
func TestSilentServerIsReported(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	url := "http://" + silent.Addr().String()
	lines, stderr := io.Pipe()
	defer lines.Close()
	c := New("harvest", strings.NewReader(""), io.Discard, stderr, []string{EnvURL + "=" + url})
	server, err := c.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := server.Server(ctx)
		ended <- err
	}()
	line, err := bufio.NewReader(lines).ReadString('\n')
	if want := "harvest: waiting for the server at " + url + "…\n"; err != nil || line != want {
		t.Errorf("%q, %v; want %q", line, err, want)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("the request succeeded without an answer")
	}
}
