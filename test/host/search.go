package host

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// Certificate makes one for 127.0.0.1 that signs itself.
func Certificate(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, secret.Public(), secret)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	testenv.WriteFile(t, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	testenv.WriteFile(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return cert, key
}

// InFiles returns the files below dir that hold one of the texts.
func InFiles(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, ".erofs") {
			return nil // gone meanwhile, or an image that was there before
		}
		b, err := os.ReadFile(path)
		for _, text := range texts {
			if err == nil && bytes.Contains(b, []byte(text)) {
				found = append(found, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// InArguments returns the processes of this machine that have one of the texts in their arguments.
func InArguments(t *testing.T, texts ...string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, _ := os.ReadFile(file)
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				found = append(found, file+": "+strings.ReplaceAll(string(b), "\x00", " "))
			}
		}
	}
	return found
}

// MinimalRoot returns a tar stream of what a shell needs, out of the base image.
func MinimalRoot(t *testing.T) []byte {
	t.Helper()
	want := []string{"dash", "sh", "cat", "id", "ls", "stat", "libc.so.6", "libselinux.so.1", "libpcre2-8.so.0",
		"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
	dirs := []string{"bin", "lib", "lib64", "x86_64-linux-gnu", "aarch64-linux-gnu", "tmp"}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	AddBase(t, tw, []string{"bin", "lib", "usr/bin", "usr/lib", "tmp", "etc/passwd"}, func(hdr *tar.Header) bool {
		base := filepath.Base(hdr.Name)
		if hdr.Typeflag == tar.TypeDir {
			return slices.Contains(dirs, base)
		}
		return !strings.Contains(hdr.Name, "/") || hdr.Name == "etc/passwd" ||
			slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(base, w) })
	})
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// AddBase adds the wanted files and directories below top-level ones of the base image to an archive, and lib64 and
// usr/lib64 if the image has them. It omits hard links.
func AddBase(t *testing.T, tw *tar.Writer, tops []string, wanted func(*tar.Header) bool) {
	t.Helper()
	l := imagetest.Library(t)
	f, err := os.Open(l.Root(imagetest.Base(t, l)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := rootfs.OpenReader(f)
	if err != nil {
		t.Fatal(err)
	}
	optional := []string{"lib64", "usr/lib64"}
	for _, top := range slices.Concat(tops, optional) {
		err := r.Walk(top, func(hdr *tar.Header, content io.Reader) error {
			if hdr.Typeflag == tar.TypeLink || !wanted(hdr) {
				return nil
			}
			if err := tw.WriteHeader(hdr); err != nil || content == nil {
				return err
			}
			_, err := io.Copy(tw, content)
			return err
		})
		if err != nil && !slices.Contains(optional, top) {
			t.Fatal(err)
		}
	}
}
