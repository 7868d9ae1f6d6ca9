package server_test

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/server"
	"github.com/RelevanceAI/harvest/web"
)

// The page is for everybody, with a policy by which only its own files run, and is not sent again to who has it.
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
	for _, path := range []string{"/ui/", "/ui/nosuch.js", "/ui/web.go", "/ui/vendor", "/ui/..%2fweb.go"} {
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
