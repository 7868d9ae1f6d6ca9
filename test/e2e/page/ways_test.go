package page

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestPageWays checks that the page works with the server on a Unix socket behind a proxy that serves it below a path,
// where users of the proxy need no sign-in, and over TLS, with HTTP/2. TestPage covers loopback, and a path.
// mission: F2, 7.1, 7.3, 7.5
func TestPageWays(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	t.Run("a Unix socket behind a path", func(t *testing.T) {
		t.Parallel()
		h := host.New(t, "gvisor", host.GVisor(t))
		h.Must("sandbox", "ls") // which starts a server that has the socket only
		proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "harvest", r.In.Host
		}, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.Data, client.Socket))
		}}}
		server := httptest.NewServer(http.StripPrefix("/tools/harvest", proxy))
		t.Cleanup(server.Close)
		b := browser(t)
		b.do(chromedp.Navigate(server.URL + "/tools/harvest/"))
		wayWorks(b)
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		h := host.New(t, "gvisor", host.GVisor(t))
		cert, key := host.Certificate(t, t.TempDir())
		h.Env.Setenv("HARVEST_SERVER_TLS_CERT", cert)
		h.Env.Setenv("HARVEST_SERVER_TLS_KEY", key)
		h.Up()
		b := browser(t, chromedp.Flag("ignore-certificate-errors", true))
		b.signedIn(h)
		if got := b.value(`location.protocol + performance.getEntriesByType('navigation')[0].nextHopProtocol`); got != "https:h2" {
			t.Errorf("the page came by %s", got)
		}
		wayWorks(b)
	})
}

// wayWorks uses the features that need addresses, streams and WebSockets.
func wayWorks(b *tab) {
	b.t.Helper()
	b.creates()
	b.send("/run true\n/say it **streams**")
	b.sees(".message.agent strong", "streams")
	b.view("Terminal")
	b.sees(".of-terminal [role=status]", "Connected")
	b.do(chromedp.Evaluate(`document.querySelector('.xterm-helper-textarea').focus()`, nil))
	b.command("echo $((6*7))")
	b.until(`[...document.querySelectorAll('.xterm-rows > div')].some((r) => r.textContent.trim() === '42')`)
	b.view("Files")
	b.sees(".tree", "")
	b.do(chromedp.Reload())
	b.sees(".message.agent strong", "streams")
	// Also of a call of the past.
	b.until(`/^exit 0 · (under )?[\d.]+ m?s$/.test(document.querySelector('.tool .state')?.textContent)`)
	if at := b.value(`location.hash`); !strings.HasSuffix(at, "/files") {
		b.t.Errorf("after loading it again it is at %s", at)
	}
	b.clean()
	b.leavesNoImages()
}
