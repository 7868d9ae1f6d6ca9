package cli

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// A browser opens a link to a port of a sandbox of gVisor.
// mission: A6
func TestLinkToAPort(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Up()
	id := h.Must("sandbox", "create", "--network", "none", "-p", "8093")
	h.Must("sandbox", "exec", "-d", "-w", "/etc", id, "--", "python3", "-c", serve, "8093")
	h.Must("sandbox", "exec", id, "--", "python3", "-c",
		"import socket, time\nwhile socket.socket().connect_ex(('127.0.0.1', 8093)): time.sleep(0.05)")
	link := h.Must("sandbox", "port", id, "--link")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	// Browsers resolve names below localhost to this machine. System resolvers need not.
	browser := http.Client{Jar: jar, Transport: &http.Transport{DialContext: func(ctx context.Context, network,
		address string) (net.Conn, error) {
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
	if resp.StatusCode != http.StatusOK || !strings.Contains(page, "resolv.conf") ||
		resp.Request.URL.String() != before {
		t.Errorf("%s at %s: %.300s", resp.Status, resp.Request.URL, page)
	}
	if resp, page := get(before + "passwd"); resp.StatusCode != http.StatusOK {
		t.Errorf("with the cookie: %s %.300s", resp.Status, page)
	}
	h.Must("sandbox", "links", id, "--revoke", h.Must("sandbox", "links", id, "-o", "name"))
	if resp, _ := get(before); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("revoked: %s", resp.Status)
	}
}
