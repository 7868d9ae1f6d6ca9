package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestVersionCheck compares the version with that of the newest release, and checks the errors of addresses without
// one.
func TestVersionCheck(t *testing.T) {
	t.Parallel()
	text := "00  harvest_0.2.0_linux_amd64.tar.gz\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/checksums.txt":
			_, _ = w.Write([]byte(text))
		case "/other":
			_, _ = w.Write([]byte("<html>a page</html>"))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	version := func(args ...string) (string, string, int) {
		var out, err bytes.Buffer
		code := run(t.Context(), append([]string{"harvest", "version"}, args...), nil, &out, &err,
			[]string{"HARVEST_DATA=" + t.TempDir()})
		return out.String(), err.String(), code
	}
	if out, stderr, code := version("--check", "--url", server.URL+"/checksums.txt"); code != 0 ||
		!strings.HasPrefix(out, "harvest ") || !strings.Contains(out, "newest release") ||
		!strings.Contains(out, "0.2.0") {
		t.Errorf("%d: %q, %q", code, out, stderr)
	}
	if out, _, _ := version("--check", "--url", server.URL+"/checksums.txt", "-o", "json"); !strings.Contains(out,
		`"newest": "0.2.0"`) {
		t.Errorf("JSON: %s", out)
	}
	if out, _, code := version(); code != 0 || strings.Contains(out, "0.2.0") {
		t.Errorf("without --check: %s", out)
	}
	for path, want := range map[string]string{"/none": "404", "/other": "no release of Harvest"} {
		if _, stderr, code := version("--check", "--url", server.URL+path); code == 0 ||
			!strings.Contains(stderr, want) || !strings.Contains(stderr, "--url") {
			t.Errorf("%s: %d, %s", path, code, stderr)
		}
	}
	server.Close()
	if _, stderr, code := version("--check", "--url", server.URL); code != 75 || !strings.Contains(stderr, server.URL) {
		t.Errorf("no server: %d, %s", code, stderr)
	}
}

func TestStanding(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ version, newest, want string }{
		{"0.1.0", "0.1.0", "this is it"}, {"0.1.0", "0.1.1", "newer than this"},
		{"0.2.0-rc.1", "0.2.0", "newer than this"},
		{"0.10.0", "0.9.0", "older than this"}, {"devel-0123456789ab", "0.1.0", "this is a build of a commit"},
	} {
		if got := standing(c.version, c.newest); got != c.want {
			t.Errorf("%s and %s: %q, want %q", c.version, c.newest, got, c.want)
		}
	}
}
