package oci_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/oci"
)

// Layers that several pulls want, in several processes, are fetched once.
// mission: B2
func TestConcurrentPulls(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref := h.push(t, "app", imageOf(t, v1.Config{}, tarOf(t, "a", strings.Repeat("1", 1<<20)), tarOf(t, "b", "2")))
	dir := t.TempDir()
	var fetched atomic.Int64
	h.change(blobsOnly(func(http.ResponseWriter, *http.Request) bool { fetched.Add(1); return false }))
	var wg sync.WaitGroup
	for range 2 {
		s := open(t, oci.Options{Dir: dir}) // like another process
		for range 3 {
			wg.Go(func() {
				if got, err := pull(t, s, ref, image.BuildOptions{}); err != nil || len(got.files) != 3 {
					t.Errorf("got %d files, %v", len(got.files), err)
				}
			})
		}
	}
	wg.Wait()
	if n := fetched.Load(); n != 3 {
		t.Errorf("three blobs were fetched %d times", n)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.part")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=256k")
	h := newHub(t)
	noise := make([]byte, 1<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	_, err := pull(t, open(t, oci.Options{Dir: dir}),
		h.push(t, "app", imageOf(t, v1.Config{}, tarOf(t, "a", string(noise)))), image.BuildOptions{})
	expect(t, "a full disk", err, errors.Exhausted)
}

// TestCertificates checks that sandboxes of images trust the machine's certificate authorities, and that an image
// records the ones that it was built with.
func TestCertificates(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref := h.push(t, "app", imageOf(t, v1.Config{Env: []string{"SSL_CERT_FILE=/mine",
		"OTHER=/etc/ssl/certs/ca-certificates.crt"}},
		tarOf(t, "etc/ssl/certs/ca-certificates.crt", "old\n")))
	dir := t.TempDir()
	text := authority(t, dir)
	plain, err := pull(t, open(t, oci.Options{}), ref, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := pull(t, open(t, oci.Options{CertificateDir: dir}), ref, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.print == plain.print {
		t.Error("the fingerprint does not know the certificates")
	}
	if got.files["etc/ssl/certs/ca-certificates.crt"] != "old\n"+text ||
		plain.files["etc/ssl/certs/ca-certificates.crt"] != "old\n" {
		t.Errorf("got %q", got.files)
	}
	if got.Config.Env["SSL_CERT_FILE"] != "/mine" ||
		got.Config.Env["CURL_CA_BUNDLE"] != "/etc/ssl/certs/ca-certificates.crt" {
		t.Errorf("got %v", got.Config.Env)
	}
	snapshot, err := os.Create(filepath.Join(t.TempDir(), "layer.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	layer := tarOf(t, "etc/ssl/certs/ca-certificates.crt", "new\n"+text, "own", "file",
		"etc/ssl/certs/host-0123456789abcdef.pem", "->/usr/local/share/ca-certificates/host-0123456789abcdef.crt",
		"etc/ssl/certs/0a1b2c3d.0", "->host-0123456789abcdef.pem", "etc/ssl/certs/kept.0", "->kept.pem")
	if _, err := snapshot.Write(layer); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := oci.Export(t.Context(), &archive, image.Image{Config: got.Config}, got.root, snapshot); err != nil {
		t.Fatal(err)
	}
	body := archive.String()
	for _, foreign := range []string{strings.Split(text, "\n")[1], "host-", "0a1b2c3d.0", "CURL_CA_BUNDLE"} {
		if strings.Contains(body, foreign) {
			t.Errorf("an export has %q of this machine", foreign)
		}
	}
	for _, want := range []string{"old\n", "new\n", "own", "kept.0", "SSL_CERT_FILE=/mine",
		"OTHER=/etc/ssl/certs/ca-certificates.crt"} {
		if !strings.Contains(body, want) {
			t.Errorf("an export lacks %q", want)
		}
	}
	bare, err := pull(t, open(t, oci.Options{CertificateDir: dir}), h.push(t, "bare", imageOf(t, v1.Config{},
		tarOf(t, "a", ""))), image.BuildOptions{})
	if err != nil || bare.files["etc/ssl/certs/ca-certificates.crt"] != text {
		t.Fatalf("got %v, %v", bare.files, err)
	}
	archive.Reset()
	if err := oci.Export(t.Context(), &archive, image.Image{}, bare.root, nil); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(archive.String(), "ca-certificates.crt") {
		t.Error("an export has an empty bundle of certificates")
	}
}

// Most registries hand out tokens.
// mission: B2
func TestTokens(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref := h.push(t, "team/app", imageOf(t, v1.Config{}, tarOf(t, "a", "1")))
	var tokens atomic.Int64
	h.change(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			user, password, _ := r.BasicAuth()
			if r.Method == http.MethodPost {
				user, password = r.FormValue("username"), r.FormValue("password")
			}
			if user != "u" || password != "p" || !strings.Contains(r.FormValue("scope"), "repository:team/app:pull") {
				w.WriteHeader(http.StatusForbidden)
				return true
			}
			if tokens.Add(1) == 1 { // once, it is too busy
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			fmt.Fprint(w, `{"token":"secret-token"}`)
			return true
		}
		if r.Header.Get("Authorization") == "Bearer secret-token" {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="x"`, h.host))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	if _, err := pull(t, open(t, oci.Options{}), ref, as(image.Credential{User: "u", Password: "p"})); err != nil {
		t.Error(err)
	}
	if tokens.Load() < 2 {
		t.Errorf("%d tokens", tokens.Load())
	}
	_, err := pull(t, open(t, oci.Options{}), ref, as(image.Credential{User: "u", Password: "wrong"}))
	expect(t, "a wrong password", err, errors.Denied)
	if _, err := pull(t, open(t, oci.Options{}), ref, as(image.Credential{Token: "secret-token"})); err != nil {
		t.Errorf("with a token of ours: %v", err)
	}
	_, err = pull(t, open(t, oci.Options{}), ref, as(image.Credential{Anonymous: true}))
	if kind := errors.KindOf(err); kind != errors.Denied && kind != errors.Unauthenticated {
		t.Errorf("as nobody: %v", err)
	}
}

// as returns options with a credential for any registry.
func as(c image.Credential) image.BuildOptions {
	return image.BuildOptions{Credentials: func(context.Context, string) (image.Credential, error) { return c, nil }}
}

func TestManifestsThatCannotBe(t *testing.T) {
	t.Parallel()
	const oci1, config = `"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json"`,
		`"mediaType":"application/vnd.oci.image.config.v1+json"`
	zeros := strings.Repeat("0", 64)
	for what, text := range map[string]string{
		"another digest": `{` + oci1 + `,"config":{` + config + `,"digest":"sha512:` + zeros + zeros +
			`","size":1},"layers":[]}`,
		"a negative size": `{` + oci1 + `,"config":{` + config + `,"digest":"sha256:` + zeros +
			`","size":-1},"layers":[]}`,
		"a path for a digest": `{` + oci1 + `,"config":{` + config +
			`,"digest":"sha256:../../../etc/passwd","size":1},"layers":[]}`,
		"an index without end": `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json",` +
			`"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:` + zeros +
			`","size":3}]}`,
		"an index of odd things": `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json",` +
			`"manifests":[{"digest":"md5:00","size":3}]}`,
	} {
		h := newHub(t)
		h.change(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/" {
				return false
			}
			_, _ = io.WriteString(w, text)
			return true
		})
		_, err := pull(t, open(t, oci.Options{}), h.host+"/app", image.BuildOptions{})
		if kind := errors.KindOf(err); kind != errors.Invalid && kind != errors.Unsupported &&
			kind != errors.Unavailable {
			t.Errorf("%s: got %v", what, err)
		}
	}
}
