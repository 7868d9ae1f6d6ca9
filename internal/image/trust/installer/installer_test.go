package installer

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/authority"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

// emptyKeystore is a keystore without entries, as Java writes it.
const emptyKeystore = "\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x00" +
	"\xe2\x68\x6e\x45\xfb\x43\xdf\xa4\xd9\x92\xdd\x41\xce\xb6\xb2\x1c\x63\x30\xd7\x92"

// TestInstall checks what becomes of the files of an image: with several bundles, with a link between them, with the
// authority in them already, with a file that is no keystore, and without anything.
func TestInstall(t *testing.T) {
	t.Parallel()
	a, err := authority.New("test", authority.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	req := Request{Authority: a.PEM(), Bundle: "/usr/local/share/own/ca.crt", Java: "/opt/java", Otherwise: "machine\n"}
	const debian, fedora, store = "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
		"/opt/java/lib/security/cacerts"
	const java = "/etc/ssl/certs/java/cacerts"
	added, err := trust.AddToKeystore([]byte(emptyKeystore), req.Authority)
	if err != nil {
		t.Fatal(err)
	}
	full := string(added)
	const anyKeystore = "a keystore with the authority, once"
	der, _ := pem.Decode([]byte(req.Authority))
	for name, c := range map[string]struct {
		files, links, want map[string]string
		warned             string
	}{
		"one bundle": {files: map[string]string{debian: "image\n"},
			want: map[string]string{debian: "image\n" + req.Authority, req.Bundle: "image\n" + req.Authority}},
		"without a line end": {files: map[string]string{debian: "image"},
			want: map[string]string{debian: "image\n" + req.Authority, req.Bundle: "image\n" + req.Authority}},
		"a link": {files: map[string]string{debian: "image\n"}, links: map[string]string{fedora: debian},
			want: map[string]string{debian: "image\n" + req.Authority, req.Bundle: "image\n" + req.Authority}},
		"two bundles": {files: map[string]string{debian: "one\n", fedora: "two\n"},
			want: map[string]string{debian: "one\n" + req.Authority, fedora: "two\n" + req.Authority,
				req.Bundle: "one\n" + req.Authority}},
		"a snapshot": {files: map[string]string{debian: "one\n" + req.Authority + "more\n"},
			want: map[string]string{debian: "one\n" + req.Authority + "more\n",
				req.Bundle: "one\n" + req.Authority + "more\n"}},
		"nothing": {want: map[string]string{req.Bundle: "machine\n" + req.Authority}},
		"keystores": {files: map[string]string{debian: "image\n", java: emptyKeystore, store: full},
			want: map[string]string{java: anyKeystore, store: full}},
		"no keystore": {files: map[string]string{debian: "image\n", store: "no keystore"},
			want: map[string]string{store: "no keystore"}, warned: store},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
				t.Fatal(err)
			}
			testenv.WriteFile(t, filepath.Join(root, file), []byte(text))
		}
		for link, target := range c.links {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, link)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join(root, target), filepath.Join(root, link)); err != nil {
				t.Fatal(err)
			}
		}
		var warned bytes.Buffer
		if err := req.install(root, &warned); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for file, want := range c.want {
			got, err := os.ReadFile(filepath.Join(root, file))
			if want == anyKeystore && err == nil && bytes.Count(got, der.Bytes) == 1 {
				continue // entries have the time of their creation
			}
			if err != nil || string(got) != want {
				t.Errorf("%s: %s has %q, %v, want %q", name, file, got, err, want)
			}
		}
		if (warned.Len() > 0) != (c.warned != "") || !strings.Contains(warned.String(), c.warned) {
			t.Errorf("%s: it says %q", name, warned.String())
		}
	}
}

// TestBadRequests checks the program itself with input that is not a request, and where it cannot write.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	blocked := t.TempDir()
	testenv.WriteFile(t, filepath.Join(blocked, "file"), nil)
	b, err := json.Marshal(Request{Authority: "x", Bundle: filepath.Join(blocked, "file", "ca.crt")})
	if err != nil {
		t.Fatal(err)
	}
	for _, input := range []string{"", "no JSON", string(b)} {
		var stdout, stderr bytes.Buffer
		if code := Main(t.Context(), nil, strings.NewReader(input), &stdout, &stderr); code != 1 || stderr.Len() == 0 {
			t.Errorf("%q: code %d, %q", input, code, stderr.String())
		}
	}
}
