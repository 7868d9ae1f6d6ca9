package trust_test

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

var certs = []trust.Certificate{
	{Name: "host-1.crt", PEM: "one\n", Modified: time.Unix(1600000001, 0)},
	{Name: "host-2.crt", PEM: "two\n", Modified: time.Unix(1600000000, 0)},
}

// imageTime is the time of the files that images have before.
var imageTime = time.Unix(1500000000, 0)

// with adds the certificates to an image that has pairs of names and contents, and returns its files. A name with a
// slash at its end is a directory, content that begins with -> a symbolic link.
func with(t *testing.T, pairs ...string) (env, files map[string]string, err error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := rootfs.NewWriter(f, rootfs.Options{})
	for i := 0; i < len(pairs); i += 2 {
		hdr := &tar.Header{Name: pairs[i], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(pairs[i+1])),
			ModTime: imageTime}
		if strings.HasSuffix(hdr.Name, "/") {
			hdr.Typeflag, hdr.Mode = tar.TypeDir, 0o755
		}
		if target, ok := strings.CutPrefix(pairs[i+1], "->"); ok {
			hdr.Typeflag, hdr.Linkname, hdr.Size = tar.TypeSymlink, target, 0
		}
		if err := w.Add(hdr, strings.NewReader(pairs[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if env, err = trust.Add(w, certs); err != nil {
		return nil, nil, err
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := rootfs.OpenReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	return env, files, r.Walk(".", func(hdr *tar.Header, content io.Reader) error {
		if content == nil {
			return nil
		}
		data, err := io.ReadAll(content)
		files[hdr.Name] = string(data)
		want := imageTime
		switch {
		case strings.HasSuffix(hdr.Name, "/host-2.crt"):
			want = certs[1].Modified
		case strings.HasSuffix(hdr.Name, "/host-1.crt"), len(pairs) == 0 ||
			pairs[0] == "etc/ssl/cert.pem": // the bundle has the time of the newest
			want = certs[0].Modified
		}
		if !hdr.ModTime.Equal(want) {
			t.Errorf("%s has the time %v, want %v", hdr.Name, hdr.ModTime, want)
		}
		return err
	})
}

func TestAdd(t *testing.T) {
	t.Parallel()
	const local = "usr/local/share/ca-certificates/"
	for name, test := range map[string]struct {
		has  []string
		want map[string]string
		file string // the value of SSL_CERT_FILE
	}{
		"nothing": {nil, map[string]string{local + "host-1.crt": "one\n", local + "host-2.crt": "two\n",
			"etc/ssl/certs/ca-certificates.crt": "one\ntwo\n"}, ""},
		"Debian": {[]string{"etc/ssl/certs/ca-certificates.crt", "old"},
			map[string]string{local + "host-1.crt": "one\n", local + "host-2.crt": "two\n",
				"etc/ssl/certs/ca-certificates.crt": "old\none\ntwo\n"}, "/etc/ssl/certs/ca-certificates.crt"},
		"empty": {[]string{"etc/ssl/certs/ca-certificates.crt", ""}, map[string]string{local + "host-1.crt": "one\n",
			local + "host-2.crt": "two\n", "etc/ssl/certs/ca-certificates.crt": "one\ntwo\n"},
			"/etc/ssl/certs/ca-certificates.crt"},
		"there": {[]string{"etc/ssl/certs/ca-certificates.crt", "old\none\ntwo\n"},
			map[string]string{local + "host-1.crt": "one\n", local + "host-2.crt": "two\n",
				"etc/ssl/certs/ca-certificates.crt": "old\none\ntwo\none\ntwo\n"},
			"/etc/ssl/certs/ca-certificates.crt"},
		"two bundles": {[]string{"etc/ssl/certs/ca-certificates.crt", "old\none\ntwo\n", "etc/ssl/cert.pem", "old"},
			map[string]string{local + "host-1.crt": "one\n", local + "host-2.crt": "two\n",
				"etc/ssl/certs/ca-certificates.crt": "old\none\ntwo\none\ntwo\n",
				"etc/ssl/cert.pem":                  "old\none\ntwo\n"}, "/etc/ssl/certs/ca-certificates.crt"},
		"Fedora": {[]string{"etc/pki/ca-trust/source/anchors/", "", "etc/pki/tls/certs/ca-bundle.crt",
			"->/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
			"old\n"}, map[string]string{"etc/pki/ca-trust/source/anchors/host-1.crt": "one\n",
			"etc/pki/ca-trust/source/anchors/host-2.crt":       "two\n",
			"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "old\none\ntwo\n"}, "/etc/pki/tls/certs/ca-bundle.crt"},
		"dangling": {[]string{"etc/ssl/cert.pem", "->nowhere"}, map[string]string{local + "host-1.crt": "one\n",
			local + "host-2.crt": "two\n", "etc/ssl/certs/ca-certificates.crt": "one\ntwo\n"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, files, err := with(t, test.has...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, files); diff != "" {
				t.Error(diff)
			}
			if env["SSL_CERT_FILE"] != test.file || env["NODE_EXTRA_CA_CERTS"] == "" {
				t.Errorf("got the environment %v", env)
			}
		})
	}
}

func TestAddFails(t *testing.T) {
	t.Parallel()
	for name, has := range map[string][]string{
		"a file in the way":         {"usr/local/share", "file"},
		"a bundle that is too much": {"etc/ssl/certs/ca-certificates.crt", strings.Repeat("x", 17<<20)},
	} {
		_, _, err := with(t, has...)
		if kind := errors.KindOf(err); kind != errors.Invalid && kind != errors.Exhausted {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if env, err := trust.Add(nil, nil); env != nil || err != nil {
		t.Errorf("without certificates: %v, %v", env, err)
	}
}
