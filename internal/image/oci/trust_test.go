package oci_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/oci"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

// TestExportKeepsTheAuthorsTrust checks that an export keeps the variables and certificates of an image's author that
// equal those of this machine, and only drops those that were added.
//
// mission: B2
func TestExportKeepsTheAuthorsTrust(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	dir := t.TempDir()
	text := authority(t, dir)
	const bundle = "/etc/ssl/certs/ca-certificates.crt"
	sandbox := trust.Env(bundle)
	if len(sandbox) != 8 {
		t.Fatalf("sandboxes have %v", sandbox)
	}
	for name := range sandbox {
		for _, value := range []string{bundle, "/etc/ssl/cert.pem", ""} {
			ref := h.push(t, "app", imageOf(t, v1.Config{Env: []string{name + "=" + value}},
				tarOf(t, bundle[1:], "old\n"+text+"end\n", "usr/local/share/ca-certificates/mine.crt", text)))
			got, err := pull(t, open(t, oci.Options{CertificateDir: dir}), ref, image.BuildOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := maps.Clone(sandbox)
			want[name] = value
			if diff := cmp.Diff(want, got.Config.Env); diff != "" {
				t.Errorf("the environment of sandboxes (-want +got):\n%s", diff)
			}
			exported := reimport(t, h, image.Image{Config: got.Config}, got.root)
			if diff := cmp.Diff(map[string]string{name: value}, exported.Config.Env); diff != "" {
				t.Errorf("the environment of an export (-want +got):\n%s", diff)
			}
			maps.DeleteFunc(exported.files, func(_, content string) bool { return content == "" }) // directories
			if diff := cmp.Diff(map[string]string{bundle[1:]: "old\n" + text + "end\n",
				"usr/local/share/ca-certificates/mine.crt": text}, exported.files); diff != "" {
				t.Errorf("the files of an export (-want +got):\n%s", diff)
			}
		}
	}
}

// TestExportFindsCertificatesBehindLinks checks that an export lacks the machine's certificates also in files and
// directories that have their usual paths through symbolic links only.
//
// mission: B2
func TestExportFindsCertificatesBehindLinks(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	dir := t.TempDir()
	text := authority(t, dir)
	ref := h.push(t, "app", imageOf(t, v1.Config{}, tarOf(t, "store/bundle", "old\n", "store/local/", "", "usr/local",
		"->../store/local", "etc/ssl/certs/ca-certificates.crt", "->/store/bundle")))
	got, err := pull(t, open(t, oci.Options{CertificateDir: dir}), ref, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.files["store/bundle"] != "old\n"+text {
		t.Fatalf("got %q", got.files)
	}
	for name, content := range reimport(t, h, image.Image{Config: got.Config}, got.root).files {
		if strings.Contains(content, text) || strings.Contains(name, "host-") {
			t.Errorf("an export has %s with %q", name, content)
		}
	}
}

// authority writes a certificate authority into a directory of certificates, and returns its text.
func authority(t *testing.T, dir string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if err := os.WriteFile(filepath.Join(dir, "mine.crt"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return text
}

// reimport exports an image and pulls the export, without certificates of the machine.
func reimport(t *testing.T, h *hub, img image.Image, root *os.File) result {
	t.Helper()
	file := filepath.Join(t.TempDir(), "export.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(oci.Export(t.Context(), f, img, root, nil), f.Close()); err != nil {
		t.Fatal(err)
	}
	exported, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pull(t, open(t, oci.Options{}), h.push(t, "exported", exported), image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}
