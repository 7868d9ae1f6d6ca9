package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/internal/testenv"
)

// up runs harvest up in the foreground, until the test ends, and returns where it listens.
func (h *host) up(args ...string) string {
	h.t.Helper()
	cmd := h.command(context.WithoutCancel(h.t.Context()), append([]string{"up", "--listen", "127.0.0.1:0"}, args...)...)
	url := h.started(cmd)
	h.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			h.t.Errorf("harvest up: %v\n%s", err, h.log())
		}
	})
	return url
}

// started starts a server in the foreground and returns where it listens.
func (h *host) started(cmd *exec.Cmd) string {
	h.t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(h.data, logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			h.t.Fatalf("%v\n%s", err, h.log())
		}
		if _, url, ok := strings.Cut(strings.TrimSpace(line), "listens on "); ok {
			go io.Copy(io.Discard, lines)
			return url
		}
	}
}

// A browser opens a link to a port of a sandbox of gVisor.
// mission: A6
func TestLinkToAPort(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := newHost(t, "gvisor", gvisorSetup(t))
	h.up()
	id := h.must("sandbox", "create", "--network", "none", "-p", "8093")
	h.must("sandbox", "exec", "-d", "-w", "/etc", id, "--", "python3", "-c", serve, "8093")
	h.must("sandbox", "exec", id, "--", "python3", "-c", "import socket, time\nwhile socket.socket().connect_ex(('127.0.0.1', 8093)): time.sleep(0.05)")
	link := h.must("sandbox", "port", id, "--link")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	// Browsers lead names below localhost to this machine; resolvers of machines need not.
	browser := http.Client{Jar: jar, Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+port)
	}}}
	defer browser.CloseIdleConnections()
	get := func(url string) (*http.Response, string) {
		t.Helper()
		resp, err := browser.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(page)
	}
	before, _, _ := strings.Cut(link, "?")
	if resp, page := get(before); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the link: %s %s", resp.Status, page)
	}
	resp, page := get(link)
	if resp.StatusCode != http.StatusOK || !strings.Contains(page, "resolv.conf") || resp.Request.URL.String() != before {
		t.Errorf("%s at %s: %.300s", resp.Status, resp.Request.URL, page)
	}
	if resp, page := get(before + "passwd"); resp.StatusCode != http.StatusOK {
		t.Errorf("with the cookie: %s %.300s", resp.Status, page)
	}
	h.must("sandbox", "links", id, "--revoke", h.must("sandbox", "links", id, "-o", "name"))
	if resp, _ := get(before); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("revoked: %s", resp.Status)
	}
}
