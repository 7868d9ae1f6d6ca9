package modalhost

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	push "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/RelevanceAI/harvest/test/host"
)

// StandIns serves images under the names that the suites of Modal's SDK ask Docker Hub for, and returns the registry's
// address. They are not those images, which no test can fetch here, but what the suites use of them: "alpine" and
// "debian" are Debian's static BusyBox with its links and two accounts, "python" is that with the Python of Harvest's
// base image.
func StandIns(t *testing.T) string {
	t.Helper()
	shell := busybox(t, "3.21")
	python := LayerOf(t, pythonOfBase(t))
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	for image, layers := range map[string][]v1.Layer{
		"library/alpine:3.21": {LayerOf(t, shell)}, "library/alpine:3.13": {LayerOf(t, busybox(t, "3.13"))},
		"library/alpine:latest":      {LayerOf(t, shell)},
		"library/debian:12-slim":     {LayerOf(t, shell)},
		"library/python:3.12-alpine": {LayerOf(t, shell), python},
		"library/python:3.13-alpine": {LayerOf(t, shell), python},
		// What the suite has in registries of its own, at Amazon and at Google.
		"ecr-private-registry-test-7522615:python":            {LayerOf(t, shell), python},
		"modal-prod-367916/private-repo-test/my-image:latest": {LayerOf(t, shell), python},
	} {
		img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
			OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
			Config: v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
				Cmd: []string{"/bin/sh"}},
		})
		if err == nil {
			img, err = mutate.AppendLayers(img, layers...)
		}
		if err != nil {
			t.Fatal(err)
		}
		ref, err := name.ParseReference(host + "/" + image)
		if err == nil {
			err = push.Write(ref, img)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return host
}

// LayerOf returns a layer with the content of a tar stream.
func LayerOf(t *testing.T, data []byte) v1.Layer {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser,
		error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// busybox returns a root file system with Debian's static BusyBox, which is asked for its applets.
func busybox(t *testing.T, version string) []byte {
	t.Helper()
	dir := t.TempDir()
	fetch := exec.CommandContext(t.Context(), "sh", "-c",
		"apt-get download -q busybox-static >&2 && dpkg-deb -x busybox-static_*.deb . && bin/busybox --list")
	fetch.Dir = dir
	var said bytes.Buffer
	fetch.Stderr = &said
	applets, err := fetch.Output()
	if err != nil {
		t.Skipf("Debian's BusyBox cannot be fetched, without which there are no images to test with: %v\n%s", err,
			said.String())
	}
	program, err := os.ReadFile(filepath.Join(dir, "bin/busybox"))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	put := func(hdr tar.Header, content string) {
		hdr.Size = int64(len(content))
		if err := tw.WriteHeader(&hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin", "etc", "home", "mnt", "opt", "root", "sbin", "srv", "usr", "usr/bin", "usr/local",
		"usr/local/bin", "var", "var/tmp", "dev", "proc", "sys", "run"} {
		put(tar.Header{Name: d + "/", Typeflag: tar.TypeDir, Mode: 0o755}, "")
	}
	put(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, "")
	put(tar.Header{Name: "etc/passwd", Mode: 0o644},
		"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
	put(tar.Header{Name: "etc/os-release", Mode: 0o644}, "ID=stand-in\nVERSION_ID="+version+"\n")
	put(tar.Header{Name: "bin/printenv", Mode: 0o755},
		"#!/bin/sh\n[ $# = 0 ] && exec env\nfor name; do eval \"[ \\\"\\${$name+x}\\\" ] && echo \\\"\\$$name\\\"\" "+
			"|| missing=1; done\nexit ${missing:-0}\n")
	put(tar.Header{Name: "etc/group", Mode: 0o644}, "root:x:0:\nnogroup:x:65534:\n")
	put(tar.Header{Name: "bin/busybox", Mode: 0o755}, string(program))
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			put(tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, "")
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// pythonOfBase returns Python, its library and what it is linked with, out of the base image.
func pythonOfBase(t *testing.T) []byte {
	t.Helper()
	libraries := []string{"libc.so", "libm.so", "libz.so", "libexpat.so", "ld-linux", "libssl.so", "libcrypto.so",
		"libffi.so", "liblzma.so", "libbz2.so", "libpthread", "libdl.so", "libutil.so", "libuuid.so", "libsqlite3.so"}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	host.AddBase(t, tw, []string{"usr/bin", "usr/lib"}, func(hdr *tar.Header) bool {
		base := filepath.Base(hdr.Name)
		return strings.HasPrefix(hdr.Name, "usr/bin/python3") ||
			strings.HasPrefix(hdr.Name, "usr/lib/python3.") && !strings.Contains(hdr.Name, "/test/") &&
				!strings.Contains(hdr.Name, "__pycache__") || hdr.Name == "lib64" ||
			slices.ContainsFunc(libraries, func(lib string) bool { return strings.HasPrefix(base, lib) })
	})
	for link, target := range map[string]string{"lib": "usr/lib", "usr/bin/python": "python3"} {
		if err := tw.WriteHeader(&tar.Header{Name: link, Typeflag: tar.TypeSymlink, Linkname: target,
			Mode: 0o777}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
