package tunnel_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/model/tunnel"
)

// start runs the program of the sandbox and returns the URL for agents and the address for servers.
func start(t *testing.T) (url, servers string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	said, out := io.Pipe()
	var ended sync.WaitGroup
	ended.Go(func() {
		if code := tunnel.Main(ctx, []string{"-agents", "0", "-servers", "0"}, nil, out, io.Discard); code != 0 {
			t.Errorf("exit code %d", code)
		}
		_ = out.Close()
	})
	t.Cleanup(func() { stop(); ended.Wait() })
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addresses := strings.Fields(line)
	return "http://" + addresses[0], addresses[1]
}

// connect is a server that comes.
func connect(t *testing.T, servers string, h http.Handler) (leave func()) {
	t.Helper()
	conn, err := net.Dial("tcp", servers)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := tunnel.Serve(ctx, conn, h); err != nil {
			t.Error(err)
		}
	})
	leave = sync.OnceFunc(func() { stop(); ended.Wait() })
	t.Cleanup(leave)
	return leave
}

func post(t *testing.T, url, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/messages?beta=true", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "token")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// echo answers with the request.
func echo(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s %d", name, r.Method, r.RequestURI, r.Header.Get("X-Api-Key"), len(body))
	})
}

func TestTunnel(t *testing.T) {
	t.Parallel()
	url, servers := start(t)
	// A request waits for the server.
	type reply struct {
		status int
		text   string
		err    error
	}
	early := make(chan reply, 1)
	go func() {
		status, text, err := post(t, url, "early")
		early <- reply{status, text, err}
	}()
	leave := connect(t, servers, echo("one"))
	if r := <-early; r.err != nil || r.status != 200 || r.text != "one POST /v1/messages?beta=true token 5" {
		t.Errorf("early: %+v", r)
	}
	if status, text, err := post(t, url, strings.Repeat("x", 5<<20)); err != nil || status != 200 ||
		!strings.HasSuffix(text, " 5242880") {
		t.Errorf("large: %d %s %v", status, text, err)
	}
	// Another server takes over.
	leave()
	connect(t, servers, echo("two"))
	for deadline := time.Now().Add(time.Minute); ; {
		status, text, err := post(t, url, "")
		if err == nil && status == 200 && strings.HasPrefix(text, "two") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d %s %v", status, text, err)
		}
	}
}

// TestEarlyAnswer sends the end of a request after the beginning of its answer.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	url, servers := start(t)
	connect(t, servers, http.HandlerFunc(testenv.AnswerEarly))
	testenv.EarlyAnswer(t, url+"/v1/messages")
}

// TestServerGoes checks that a server that stops in the middle of an answer breaks it off, and that one that stops
// before it causes an error that agents retry.
func TestServerGoes(t *testing.T) {
	t.Parallel()
	url, servers := start(t)
	asked := make(chan struct{}, 2)
	heard := make(chan struct{})
	leave := connect(t, servers, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == "speak" {
			fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
		}
		asked <- struct{}{}
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // like a reverse proxy
	}))
	results := make(chan string, 2)
	go func() {
		status, text, err := post(t, url, "silence")
		results <- fmt.Sprint("silence ", status, " ", text != "" && err == nil, " ", err != nil)
	}()
	go func() {
		res, err := http.Post(url, "application/json", strings.NewReader("speak"))
		close(heard) // the answer has begun where it is waited for
		if err != nil {
			results <- err.Error()
			return
		}
		defer res.Body.Close()
		_, err = io.ReadAll(res.Body)
		results <- fmt.Sprint("speak ", res.StatusCode, " ", err == nil, " ", err != nil)
	}()
	<-asked
	<-asked
	<-heard
	leave()
	for range 2 {
		if r := <-results; r != "speak 200 false true" && r != "silence 503 true false" {
			t.Errorf("%s", r)
		}
	}
}

// An agent that gives up is given up.
func TestAgentGoes(t *testing.T) {
	t.Parallel()
	url, servers := start(t)
	gone := make(chan struct{})
	begun := make(chan struct{})
	connect(t, servers, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(gone)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
	go func() {
		<-begun
		cancel()
	}()
	if _, err := http.DefaultClient.Do(req); err == nil {
		t.Error("an answer to nobody")
	}
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Error("the request goes on")
	}
}

func TestMainRefuses(t *testing.T) {
	t.Parallel()
	if code := tunnel.Main(t.Context(), []string{"-odd"}, nil, io.Discard, io.Discard); code != 2 {
		t.Errorf("exit code %d", code)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	for _, args := range [][]string{{"-agents", port, "-servers", "0"}, {"-agents", "0", "-servers", port}} {
		var said strings.Builder
		if code := tunnel.Main(t.Context(), args, nil, io.Discard, &said); code != 1 ||
			!strings.Contains(said.String(), "in use") {
			t.Errorf("exit code %d, %s", code, said.String())
		}
	}
	if tunnel.URL() != "http://127.0.0.1:47100" {
		t.Error(tunnel.URL())
	}
}

// TestWebSocketsAreRefused checks that a program that wants a WebSocket learns at once that there is none.
func TestWebSocketsAreRefused(t *testing.T) {
	t.Parallel()
	url, _ := start(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/openai/v1/responses", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("status %d", resp.StatusCode)
	}
}
