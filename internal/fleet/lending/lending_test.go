package lending_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/pem"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/lending"
	"github.com/RelevanceAI/harvest/internal/image/trust"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

const account = "personal"

// borrower returns a sandbox with a secret that is bound to places.
func borrower(t *testing.T, places ...string) (*lending.Borrower, *secret.Vault) {
	t.Helper()
	v, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "secret.key")})
	if err != nil {
		t.Fatal(err)
	}
	var b binding.Binding
	for _, text := range places {
		var p binding.Place
		if err := p.Host.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		b.Places = append(b.Places, p)
	}
	if _, err := v.SetBound(t.Context(), account, "api", secret.Pairs{"API_TOKEN": "a-value-of-a-secret"},
		secret.Create,
		&b); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		tasks.Wait()
	})
	return lending.New(ctx, v, &tasks).Of(lending.Sandbox{ID: "sbx", Account: account, Hosts: func() []string { return nil }, Lent: func() []string {
		return []string{"api"}
	}}), v
}

// TestHosts checks that connections to bound hosts are intercepted, also those without TLS.
func TestHosts(t *testing.T) {
	t.Parallel()
	b, _ := borrower(t, "api.example.org", "*.example.org:8443", "http://plain.example.org:81")
	got, err := b.Hosts(t.Context())
	want := []string{"*.example.org:80", "*.example.org:8443", "api.example.org:443", "api.example.org:80",
		"plain.example.org:81"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// box is a sandbox with files.
type box struct {
	engine.Sandbox
	files map[string]string
}

// CopyOut implements engine.Sandbox.
func (b *box) CopyOut(_ context.Context, name string) (io.ReadCloser, error) {
	text, ok := b.files[name]
	if !ok {
		return nil, errors.Newf(errors.NotFound, "%s does not exist", name)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: path.Base(name), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))})
	_, werr := io.WriteString(w, text)
	return io.NopCloser(&out), errors.Join(err, werr, w.Close())
}

// CopyIn implements engine.Sandbox.
func (b *box) CopyIn(_ context.Context, dir string, r io.Reader) error {
	t := tar.NewReader(r)
	hdr, err := t.Next()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(t)
	b.files[path.Join(dir, hdr.Name)] = string(text)
	return err
}

// TestInstall checks that the bundles and the keystores of an image have the authority, once, and that keystores that
// cannot be read stay the same.
func TestInstall(t *testing.T) {
	t.Parallel()
	b, v := borrower(t, "api.example.org")
	signs, err := v.Authority(t.Context(), account)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := pem.Decode([]byte(signs.PEM()))
	other, err := trust.AddToKeystore(emptyKeystore(t), signs.PEM())
	if err != nil {
		t.Fatal(err)
	}
	const (
		debian = "/etc/ssl/certs/java/cacerts"
		mine   = "/jdk/lib/security/cacerts"
		broken = "/jdk/jre/lib/security/cacerts"
	)
	bundle := lending.Env()["SSL_CERT_FILE"]
	sandbox := &box{files: map[string]string{trust.Bundle: "a certificate\n", debian: string(emptyKeystore(t)),
		mine: string(other), broken: "text"}}
	for range 2 {
		if err := b.Install(t.Context(), sandbox, "/jdk"); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{trust.Bundle, bundle} {
			if got := sandbox.files[name]; got != "a certificate\n"+signs.PEM() {
				t.Errorf("%s is %.300q", name, got)
			}
		}
		if n := strings.Count(sandbox.files[debian], string(own.Bytes)); n != 1 {
			t.Errorf("%s has the authority %d times", debian, n)
		}
		if sandbox.files[mine] != string(other) || sandbox.files[broken] != "text" {
			t.Error("a keystore with the authority, or of an unknown format, has changed")
		}
	}
}

// emptyKeystore returns a keystore without entries, as Java writes it.
func emptyKeystore(t *testing.T) []byte {
	t.Helper()
	b := binary.BigEndian.AppendUint32(nil, 0xfeedfeed)
	b = binary.BigEndian.AppendUint32(b, 2)
	b = binary.BigEndian.AppendUint32(b, 0)
	return append(b, 0xe2, 0x68, 0x6e, 0x45, 0xfb, 0x43, 0xdf, 0xa4, 0xd9, 0x92, 0xdd, 0x41, 0xce, 0xb6, 0xb2, 0x1c,
		0x63,
		0x30, 0xd7, 0x92)
}
