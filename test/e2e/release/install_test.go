// Package release tests what a release brings along.
package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// archive is a release's archive with a program that prints text.
func archive(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	tw := tar.NewWriter(zip)
	program := []byte("#!/bin/sh\necho " + text + "\n")
	if err := tw.WriteHeader(&tar.Header{Name: "harvest", Mode: 0o755, Size: int64(len(program)),
		Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := tw.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestInstall installs from a server on loopback: a good release, and one whose archive is not what its checksum
// says, which must leave the installed program alone.
func TestInstall(t *testing.T) {
	name := fmt.Sprintf("harvest_0.1.0_linux_%s.tar.gz", runtime.GOARCH)
	good := archive(t, "good")
	served := map[string][]byte{"/v0.1.0/" + name: good, "/v0.1.0/checksums.txt": fmt.Appendf(nil, "%x  %s\n",
		sha256.Sum256(good), name)}
	var mu sync.Mutex // guards served
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		body, ok := served[r.URL.Path]
		mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	dir := filepath.Join(t.TempDir(), "bin")
	install := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "../../../install.sh", dir)
		cmd.Env = append(os.Environ(), "HARVEST_RELEASES="+server.URL, "HARVEST_VERSION=0.1.0", "no_proxy=127.0.0.1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := install(); err != nil || !strings.Contains(out, "installed "+dir) ||
		!strings.Contains(out, "next: ") {
		t.Fatalf("%v: %s", err, out)
	}
	says := func() string {
		out, _ := exec.CommandContext(t.Context(), filepath.Join(dir, "harvest")).CombinedOutput()
		return strings.TrimSpace(string(out))
	}
	if got := says(); got != "good" {
		t.Errorf("the installed program says %q", got)
	}
	serve := func(path string, body []byte) {
		mu.Lock()
		defer mu.Unlock()
		served["/v0.1.0/"+path] = body
	}
	serve(name, archive(t, "bad"))
	if out, err := install(); err == nil || !strings.Contains(out, "nothing is installed") {
		t.Errorf("another archive than its checksum: %v: %s", err, out)
	}
	serve("checksums.txt", []byte("\n"))
	if out, err := install(); err == nil || !strings.Contains(out, "has no line for") {
		t.Errorf("without a checksum: %v: %s", err, out)
	}
	if got := says(); got != "good" {
		t.Errorf("after failures the installed program says %q", got)
	}
}
