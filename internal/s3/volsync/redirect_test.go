package volsync

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// redirecting answers each request with a temporary redirect to the address that to returns, as S3 does for a new
// bucket in another region.
func redirecting(t *testing.T, region string, to func(r *http.Request) string) (at string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Location", to(r)+r.URL.RequestURI())
		if region != "" {
			w.Header().Set("X-Amz-Bucket-Region", region)
		}
		xmlFault(w, http.StatusTemporaryRedirect, "TemporaryRedirect")
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

// behind is a second address of a server. It keeps the host of requests, which is signed.
func behind(t *testing.T, server string) (at string, asked *atomic.Int64) {
	t.Helper()
	target, err := url.Parse(server)
	must(t, err)
	asked = &atomic.Int64{}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

// TestTemporaryRedirect checks that a sync follows redirects of all its requests: it signs them anew for the other
// host, and for the region that the redirect names, and sends their bodies again.
// mission: 2.7, 3.4
func TestTemporaryRedirect(t *testing.T) {
	t.Parallel()
	for name, region := range map[string]string{"same region": "", "another region": "us-east-1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loc := location(t)
			moved, there := behind(t, loc.Endpoint)
			first, asked := redirecting(t, region, func(*http.Request) string { return moved })
			if loc.Endpoint = first; region != "" {
				loc.Region = "eu-north-1"
			}
			b := openBucket(t, loc)
			m := &machine{t.TempDir(), t.TempDir(), b}
			write(t, m.dir, "small", "content")
			write(t, m.dir, "d/f", "content")
			write(t, m.dir, "large", strings.Repeat("x", buffer.PartSize+1))
			m.both(t)
			must(t, os.Remove(filepath.Join(m.dir, "d/f")))
			write(t, m.dir, "small", "another content")
			mustSync(t, m.dir, b, Options{Direction: plan.Up, Mirror: true, List: true, State: m.state})
			back := t.TempDir()
			mustSync(t, back, b, Options{Direction: plan.Down, List: true, Owners: true})
			sameTrees(t, m.dir, back)
			if asked.Load() == 0 || there.Load() != asked.Load() {
				t.Errorf("%d redirects, and %d requests that followed them", asked.Load(), there.Load())
			}
		})
	}
}

// TestRefusedRedirects checks that redirects without end, to another scheme, to another provider or to an address that
// the rules do not allow are errors, and that no request reaches the other server.
// mission: 2.7, 3.4
func TestRefusedRedirects(t *testing.T) {
	t.Parallel()
	loc := location(t)
	other, reached := behind(t, loc.Endpoint)
	hosts := func(endpoint string) *netguard.Rules {
		return &netguard.Rules{Hosts: []string{strings.TrimPrefix(endpoint, "http://")}}
	}
	for name, c := range map[string]struct {
		to     func(r *http.Request) string
		rules  func(endpoint string) *netguard.Rules
		kind   errors.Kind
		reason string
	}{
		"without end": {func(r *http.Request) string { return "http://" + r.Host }, nil,
			errors.Invalid, "more than 3 times"},
		"another provider": {func(*http.Request) string {
			return strings.Replace(other, "127.0.0.1", "localhost", 1)
		}, nil,
			errors.Invalid, "localhost"},
		"another scheme": {func(*http.Request) string { return strings.Replace(other, "http:", "https:", 1) }, nil,
			errors.Invalid, "https://127.0.0.1"},
		"a user": {func(*http.Request) string { return strings.Replace(other, "//", "//u:p@", 1) }, nil,
			errors.Unavailable, "invalid"},
		"not allowed": {func(*http.Request) string { return other }, hosts, errors.Denied, "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			loc := loc
			var asked *atomic.Int64
			loc.Endpoint, asked = redirecting(t, "", c.to)
			if c.rules != nil {
				loc.Rules = c.rules(loc.Endpoint)
			}
			b := openBucket(t, loc)
			_, direct := b.Put(t.Context(), "k", []byte("body"), 0, http.Header{})
			for what, err := range map[string]error{"in the SDK": b.Check(t.Context()), "direct": direct} {
				if errors.KindOf(err) != c.kind || !strings.Contains(errors.Message(err), c.reason) ||
					c.kind != errors.Unavailable && errors.RemedyOf(err) == "" {
					t.Errorf("%s: %v; %s", what, err, errors.RemedyOf(err))
				}
			}
			if n := asked.Load(); n > 8 || reached.Load() > 0 {
				t.Errorf("%d requests, and %d to the other server", n, reached.Load())
			}
		})
	}
}

// TestWrongRegionIsNamed checks that the error for a wrong region names the right one, whether the answer has a body
// with it, a message with it, or a header alone.
// mission: 3.4
func TestWrongRegionIsNamed(t *testing.T) {
	t.Parallel()
	const message = "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-north-1'"
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"301": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Amz-Bucket-Region", "eu-north-1")
			xmlFault(w, http.StatusMovedPermanently, "PermanentRedirect")
		},
		"400, header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Amz-Bucket-Region", "eu-north-1")
			w.WriteHeader(http.StatusBadRequest)
		},
		"400, message": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w,
				"<Error><Code>AuthorizationHeaderMalformed</Code><Message>"+message+"</Message></Error>")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(answer))
			t.Cleanup(s.Close)
			loc := strictPlace(&strictServer{})
			loc.Endpoint = s.URL
			_, err := Sync(t.Context(), openTree(t, t.TempDir()), openBucket(t, loc), Options{Direction: plan.Up})
			if errors.KindOf(err) != errors.Invalid ||
				!strings.Contains(errors.Message(err), "is in the region eu-north-1, not in us-east-1") ||
				!strings.Contains(errors.RemedyOf(err), "AWS_REGION=eu-north-1") {
				t.Errorf("%v; %s", err, errors.RemedyOf(err))
			}
		})
	}
}
