package server_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/server"
	"github.com/RelevanceAI/harvest/web"
)

// TestPageFiles checks that the page is public, has a policy that runs only its own files, and is not sent again to a
// client with a cached copy.
// mission: 7.9
func TestPageFiles(t *testing.T) {
	t.Parallel()
	s := start(t).stranger()
	for path, kind := range map[string]string{"/": "text/html; charset=utf-8", "/ui/app.js": "text/javascript; charset=utf-8", "/ui/vendor/marked.js": "text/javascript; charset=utf-8",
		"/ui/style.css": "text/css; charset=utf-8", "/ui/icon.svg": "image/svg+xml"} {
		resp, body := s.do("GET", path, "")
		h := resp.Header
		if resp.StatusCode != 200 || h.Get("Content-Type") != kind || h.Get("Content-Security-Policy") != web.Policy("") || h.Get("Cache-Control") != "no-cache" || body == "" {
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
		if resp, body := s.do("GET", "/"+m[1], ""); resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "max-age=31536000, immutable" || body == "" {
			t.Errorf("%s: %s %v", m[1], resp.Status, resp.Header)
		}
	}
	_, now := s.do("GET", "/ui/app.js", "")
	if resp, body := s.do("GET", "/ui/v-0123456789abcdef/app.js", ""); resp.StatusCode != 200 || resp.Header.Get("Cache-Control") != "no-cache" || body != now {
		t.Errorf("another version: %s %v", resp.Status, resp.Header)
	}
	for _, path := range []string{"/ui/v-0123456789abcdef/nosuch.js", "/ui/v-0123456789abcdef", "/ui/", "/ui/nosuch.js", "/ui/web.go", "/ui/vendor", "/ui/..%2fweb.go"} {
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
	if policy := resp.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "; frame-src http://*.localhost:"+port+";") {
		t.Error(policy)
	}
}
