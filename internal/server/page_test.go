package server_test

import (
	"compress/gzip"
	"io"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/web"
)

// TestPageFiles checks that the page is public, has a policy that runs only its own files, and is not sent again to a
// client with a cached copy.
// mission: 7.9
func TestPageFiles(t *testing.T) {
	t.Parallel()
	s := start(t).stranger()
	for path, kind := range map[string]string{"/": "text/html; charset=utf-8",
		"/ui/app.js": "text/javascript; charset=utf-8", "/ui/vendor/marked.js": "text/javascript; charset=utf-8",
		"/ui/style.css": "text/css; charset=utf-8", "/ui/icon.svg": "image/svg+xml"} {
		resp, body := s.do("GET", path, "")
		h := resp.Header
		if resp.StatusCode != 200 || h.Get("Content-Type") != kind ||
			h.Get("Content-Security-Policy") != web.Policy("") || h.Get("Cache-Control") != "no-cache" || body == "" {
			t.Errorf("%s: %s %v", path, resp.Status, h)
		}
		if resp, body := s.do("GET", path, "", "If-None-Match", h.Get("ETag")); resp.StatusCode != 304 || body != "" {
			t.Errorf("%s again: %s", path, resp.Status)
		}
	}
	// The page's files are below the version of all files, so that browsers cache them. A page of another version gets
	// the current files.
	_, index := s.do("GET", "/", "")
	addresses := regexp.MustCompile(`(?:href|src)="(ui/v-[0-9a-f]{16}/[^"]*)"`).FindAllStringSubmatch(index, -1)
	if len(addresses) != strings.Count(index, "href=")+strings.Count(index, "src=") || len(addresses) < 3 {
		t.Errorf("the page is\n%s", index)
	}
	for _, m := range addresses {
		if resp, body := s.do("GET", "/"+m[1], ""); resp.StatusCode != 200 ||
			resp.Header.Get("Cache-Control") != "max-age=31536000, immutable" || body == "" {
			t.Errorf("%s: %s %v", m[1], resp.Status, resp.Header)
		}
	}
	_, now := s.do("GET", "/ui/app.js", "")
	if resp, body := s.do("GET", "/ui/v-0123456789abcdef/app.js", ""); resp.StatusCode != 200 ||
		resp.Header.Get("Cache-Control") != "no-cache" || body != now {
		t.Errorf("another version: %s %v", resp.Status, resp.Header)
	}
	for _, path := range []string{"/ui/v-0123456789abcdef/nosuch.js", "/ui/v-0123456789abcdef", "/ui/", "/ui/nosuch.js",
		"/ui/web.go", "/ui/vendor", "/ui/..%2fweb.go"} {
		if resp, _ := s.do("GET", path, ""); resp.StatusCode != 404 {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if policy := web.Policy(""); strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-src 'none'") {
		t.Error(policy)
	}
	ports := start(t, func(o *server.Options) { o.PortDomain = "localhost" })
	resp, _ := ports.stranger().do("GET", "/", "")
	_, port, _ := strings.Cut(strings.TrimPrefix(ports.strict, "http://"), ":")
	if policy := resp.Header.Get("Content-Security-Policy"); !strings.Contains(policy,
		"; frame-src http://*.localhost:"+port+";") {
		t.Error(policy)
	}
}

// TestPageFilesAreCompressed checks that clients that accept gzip get the page's files compressed, with a tag of their
// own, and that caches keep both forms apart.
// mission: 7.9
func TestPageFilesAreCompressed(t *testing.T) {
	t.Parallel()
	s := start(t).stranger()
	for _, path := range []string{"/", "/ui/app.js", "/ui/vendor/xterm.js", "/ui/style.css", "/ui/icon.svg"} {
		plain, want := s.do("GET", path, "", "Accept-Encoding", "identity")
		if plain.Header.Get("Content-Encoding") != "" || plain.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: encoding %q, Vary %q", path, plain.Header.Get("Content-Encoding"), plain.Header.Get("Vary"))
		}
		for accepted, compressed := range map[string]bool{"gzip, deflate, br": true, "br, gzip;q=0.5": true, "*": true,
			"gzip;q=0": false, "gzip; q=0.000, *": false, "br": false, "x-gzip": false} {
			resp, body := s.do("GET", path, "", "Accept-Encoding", accepted)
			h := resp.Header
			if (h.Get("Content-Encoding") == "gzip") != compressed || h.Get("Vary") != "Accept-Encoding" ||
				(h.Get("ETag") != plain.Header.Get("ETag")) != compressed ||
				h.Get("Content-Type") != plain.Header.Get("Content-Type") {
				t.Errorf("%s for %q: encoding %q, Vary %q, tag %s", path, accepted, h.Get("Content-Encoding"),
					h.Get("Vary"), h.Get("ETag"))
			}
			if compressed {
				if len(body) >= len(want) {
					t.Errorf("%s: %d bytes, compressed %d", path, len(want), len(body))
				}
				unzip, err := gzip.NewReader(strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				data, err := io.ReadAll(unzip)
				if err != nil || string(data) != want {
					t.Errorf("%s for %q is another file: %v", path, accepted, err)
				}
			} else if body != want {
				t.Errorf("%s for %q is another file", path, accepted)
			}
			if resp, body := s.do("GET", path, "", "Accept-Encoding", accepted, "If-None-Match",
				h.Get("ETag")); resp.StatusCode != 304 || body != "" || resp.Header.Get("Vary") != "Accept-Encoding" {
				t.Errorf("%s again: %s, Vary %q", path, resp.Status, resp.Header.Get("Vary"))
			}
		}
	}
	if resp, body := s.do("HEAD", "/ui/app.js", "", "Accept-Encoding", "gzip"); resp.StatusCode != 200 || body != "" ||
		resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("HEAD: %s %v", resp.Status, resp.Header)
	}
}

// TestErrorsInBrowsers checks that a person who opens an address that leads nowhere gets a page with the reason and one
// next step: a used or expired link to sign in, an unknown or withdrawn link to a port, a port without a server, an
// unknown object. The page of the port, which can begin to exist, tries again by itself.
// mission: 7.7
func TestErrorsInBrowsers(t *testing.T) {
	t.Parallel()
	w, user, box := portWorld(t)
	here, err := url.Parse(w.strict)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, w: w, host: here.Host}
	shows := func(what string, status int, method, path, reason, next string, again, home bool) {
		t.Helper()
		resp, page := b.get(method, path, "", "Accept", "text/html,application/xhtml+xml,*/*;q=0.8",
			"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
		if resp.StatusCode != status || resp.Header.Get("Content-Type") != "text/html; charset=utf-8" ||
			resp.Header.Get("Cache-Control") != "no-store" ||
			!strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %s %v", what, resp.Status, resp.Header)
		}
		if !strings.Contains(page, "<h1>"+reason) || strings.Count(page, "Next: ") != 1 ||
			!strings.Contains(page, next) || strings.Contains(page, "tries again by itself") != again ||
			strings.Contains(page, "<script>") != again || strings.Contains(page, "Go to Harvest") != home {
			t.Errorf("%s: the page is\n%s", what, page)
		}
	}
	link := func(as account.Principal) string {
		t.Helper()
		made, err := server.SignInLink(w.ring, as, w.strict)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimPrefix(made, w.strict)
	}
	expired := account.Local()
	expired.Until = time.Now().Add(-time.Second)
	for _, method := range []string{"GET", "POST"} { // a link is shown first, and then its button is pressed
		shows("an expired link", 401, method, link(expired), "this link was used already, or is older than 15 minutes",
			"harvest key link", false, true)
	}
	used := link(account.Local())
	b.want(303, "POST", used, "Sec-Fetch-Site", "same-origin")
	for _, method := range []string{"GET", "POST"} {
		shows("a used link", 401, method, used, "this link was used already, or is older than 15 minutes",
			"harvest key link", false, true)
	}
	shows("a stranger", 401, "GET", "/v1/sandboxes/box", "sign in first", "harvest key link", false, false)
	shows("no address", 404, "GET", "/nosuch/place", "unknown route GET", "/docs", false, false)
	fresh := link(account.Local())
	resp, _ := b.get("POST", fresh, "", "Sec-Fetch-Site", "same-origin")
	b.cookie = resp.Cookies()[0].Name + "=" + resp.Cookies()[0].Value
	shows("an unknown sandbox", 404, "GET", "/v1/sandboxes/none", "sandbox &#34;none&#34;: not found",
		"harvest sandbox ls", false, false)

	port := testenv.FreePort(t)
	links := "/v1/sandboxes/box/links"
	withdrawn := user.link(links, `{"port":`+port+`}`)
	user.want(204, "DELETE", links+"/"+withdrawn.ID, "")
	to, err := url.Parse(withdrawn.URL)
	if err != nil {
		t.Fatal(err)
	}
	b.host, b.cookie = to.Host, ""
	shows("a withdrawn link", 401, "GET", "/?"+to.RawQuery, "this link is not known, or has ended",
		"harvest sandbox port", false, false)
	shows("a port without a link", 401, "GET", "/", "this port is not public", "harvest sandbox port", false, false)
	b.open(user.link(links, `{"port":`+port+`}`).URL, "elsewhere")
	shows("a dead port", 503, "GET", "/", "nothing listens on port "+port, "start it", true, false)
	user.want(204, "DELETE", "/v1/sandboxes/"+box.ID, "")
	shows("a port of an ended sandbox", 410, "GET", "/", "sandbox "+box.ID+" is terminated",
		"create a new sandbox", false, false)
}
