package client_test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
	"github.com/RelevanceAI/harvest/client/transport/socket"
)

// mission: A6
func TestDial(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := socket.Listen(dir, client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.SandboxConnect, func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") != "box" || r.URL.Query().Get("port") != "8080" {
			w.Header().Set("Content-Type", api.TypeProblem)
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"code":"unavailable","detail":"nothing listens on port 81 in the sandbox"}`)
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		c := bytestream.New(context.WithoutCancel(r.Context()), ws)
		said, _ := io.ReadAll(c)
		_, _ = c.Write(append([]byte("you said "), said...))
		_ = c.CloseWrite()
		_ = c.Close()
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	c := client.New(dir)
	t.Cleanup(c.Close)

	ctx, cancel := context.WithCancel(t.Context())
	conn, err := c.Dial(ctx, "box", 8080)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // ends connecting only
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != "you said hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_ = conn.Close()
	if _, err := c.Dial(t.Context(), "box", 81); !errors.Is(err, errors.Unavailable) ||
		errors.Message(err) != "nothing listens on port 81 in the sandbox" {
		t.Errorf("nobody listens: %v", err)
	}
	nobody := client.New(filepath.Join(dir, "none"))
	defer nobody.Close()
	if _, err := nobody.Dial(t.Context(), "box", 80); !errors.Is(err, errors.Unavailable) {
		t.Errorf("no server: %v", err)
	}
}
