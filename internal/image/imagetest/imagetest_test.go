package imagetest_test

import (
	"context"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/debian"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// mission: B1
func TestBaseImage(t *testing.T) {
	t.Parallel()
	l := imagetest.Library(t)
	img := imagetest.Base(t, l)
	t.Logf("%s: %d MB, built in %v", img.ID, img.Size/1e6, img.BuildTime)
	if img.Size >= 800e6 {
		t.Errorf("the image has %d bytes, which is not below 800 MB", img.Size)
	}
	have := map[string]string{}
	for _, p := range append(img.Parts, img.Missing...) {
		have[p.Name] = p.Version + p.Reason
	}
	for _, name := range []string{"python3", "git", "curl", "build-essential", "libffi-dev", "libssl-dev", "zlib1g-dev",
		"ca-certificates", "uv"} {
		if have[name] == "" {
			t.Errorf("%s is neither in the image nor said to be missing", name)
		}
	}
	if !strings.HasPrefix(have["python3"], "3.11") {
		t.Errorf("Python is %s", have["python3"])
	}
	for _, m := range img.Missing {
		if m.Name != "uv" {
			t.Errorf("%s is missing: %s", m.Name, m.Reason)
		}
	}
	f, err := os.Open(l.Root(img))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"usr/bin/python3.11", "usr/bin/git", "usr/bin/curl", "usr/bin/gcc", "usr/bin/pip",
		"usr/bin/nano", "usr/bin/vi", "usr/bin/rsync", "usr/bin/ssh", "usr/include/openssl/ssl.h", "usr/include/zlib.h",
		"usr/include/python3.11/Python.h"} {
		if _, err := fs.Stat(root, name); err != nil && !isLink(root, name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if found, err := fs.Glob(root, "usr/include/*/ffi.h"); err != nil || len(found) != 1 {
		t.Errorf("the headers of libffi: %v, %v", found, err)
	}
	if target, err := fs.ReadLink(root, "usr/bin/python"); err != nil || target != "python3" {
		t.Errorf("python is %q, %v", target, err)
	}
	for _, name := range []string{"etc/hostname", "usr/lib/python3.11/EXTERNALLY-MANAGED", "usr/share/man/man1"} {
		if _, err := fs.Stat(root, name); !errors.IsNotExist(err) {
			t.Errorf("%s is in the image: %v", name, err)
		}
	}
	if data, err := fs.ReadFile(root, "etc/resolv.conf"); err != nil || len(data) > 0 {
		t.Errorf("the image has the name servers of the machine that built it: %q, %v", data, err)
	}
	checkTrust(t, root, img)
}

// isLink is for links that the reader does not follow.
func isLink(root fs.FS, name string) bool {
	_, err := fs.ReadLink(root, name)
	return err == nil
}

// checkTrust fails if the image does not trust the machine's own certificate authorities.
func checkTrust(t *testing.T, root fs.FS, img image.Image) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(imagetest.Certificates, "*.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		return
	}
	bundle, err := fs.ReadFile(root, "etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(data)
		if block == nil {
			continue
		}
		if !strings.Contains(string(bundle),
			string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}))) {
			t.Errorf("%s is not in the image's trust store", name)
		}
	}
	for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO",
		"CURL_CA_BUNDLE", "PIP_CERT"} {
		if img.Config.Env[name] != "/etc/ssl/certs/ca-certificates.crt" {
			t.Errorf("%s is %q", name, img.Config.Env[name])
		}
	}
}

// snapshot lists the files that a build must not change: the machine's own package lists, and mmdebstrap's working
// directory.
func snapshot(t *testing.T, dirs ...string) string {
	t.Helper()
	var out strings.Builder
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "mmdebstrap.") || dir != os.TempDir() {
				out.WriteString(filepath.Join(dir, e.Name()) + "\n")
			}
		}
	}
	return out.String()
}

// mission: B1
func TestInterruptedBuildLeavesNothing(t *testing.T) {
	testenv.Long(t)
	testenv.RequireTool(t, "mmdebstrap", "mmdebstrap")
	host := []string{"/var/lib/apt/lists", "/var/cache/apt/archives", os.TempDir()}
	before := snapshot(t, host...)
	dir := t.TempDir()
	l, err := image.OpenLibrary(dir,
		image.Sources{Named: map[string]image.Source{"base": debian.New(debian.Options{})}})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"reading the package sources", "fetching the essential packages",
		"installing the essential packages"} {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := l.Build(ctx, image.Spec{Base: "base"}, image.BuildOptions{Progress: func(p image.Progress) {
			if p.Message == at {
				cancel()
			}
		}})
		cancel()
		if errors.KindOf(err) != errors.Canceled {
			t.Errorf("%s: got %v, want Canceled", at, err)
		}
		var left []string
		filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if !d.IsDir() && filepath.Base(filepath.Dir(name)) != ".locks" {
				left = append(left, name)
			}
			return err
		})
		if len(left) > 0 {
			t.Errorf("%s: %d files are left, such as %s", at, len(left), left[0])
		}
		if procs := running(t, dir); len(procs) > 0 {
			t.Errorf("%s: processes are left: %v", at, procs)
		}
	}
	if after := snapshot(t, host...); after != before {
		t.Errorf("this machine's files have changed; before:\n%safter:\n%s", before, after)
	}
}

// running lists the processes that have dir in their command line.
func running(t *testing.T, dir string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), dir) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}

func TestUnreachableSources(t *testing.T) {
	testenv.RequireTool(t, "mmdebstrap", "mmdebstrap")
	l, err := image.OpenLibrary(t.TempDir(),
		image.Sources{Named: map[string]image.Source{"base": debian.New(debian.Options{Sources: []string{"deb http://127.0.0.1:9/debian bookworm main"}})}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Build(t.Context(), image.Spec{Base: "base"}, image.BuildOptions{})
	if errors.KindOf(err) != errors.Unavailable || errors.StageOf(err) != "image: download" ||
		errors.RemedyOf(err) == "" {
		t.Errorf("got %v of kind %s in stage %q", err, errors.KindOf(err), errors.StageOf(err))
	}
}
