// Package trust adds the certificate authorities of this machine to images, so that sandboxes reach
// the same servers as the machine through an inspecting proxy.
package trust

import (
	"archive/tar"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// Bundle is the file with Debian's trusted certificate authorities.
const Bundle = "/etc/ssl/certs/ca-certificates.crt"

// bundles are the bundle files of distributions; several may be the same file.
var bundles = []string{Bundle, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem"}

// Bundles returns the bundle files of distributions; several may be the same file.
func Bundles() []string { return slices.Clone(bundles) }

// anchors are the directories from which distributions rebuild the bundle. If none exists, the last
// one is made.
var anchors = []string{"/etc/pki/ca-trust/source/anchors", "/etc/pki/trust/anchors", "/usr/local/share/ca-certificates"}

// maxBundle is the maximum size of a bundle; usual ones have 200 KB.
const maxBundle = 16 << 20

// Certificate is a certificate authority in PEM, with the name of its file.
type Certificate struct {
	Name, PEM string
	Modified  time.Time `json:"-"` // of the file on this machine; not part of fingerprints
}

// Read returns the authorities in the *.crt files of dir, sorted by name. Like
// update-ca-certificates, it skips files that are not certificates. A missing directory has none.
func Read(dir string) ([]Certificate, error) {
	if _, err := os.Stat(dir); dir == "" || errors.IsNotExist(err) {
		return nil, nil
	}
	var certs []Certificate
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".crt") {
			return err
		}
		info, err := os.Stat(name)
		if errors.IsNotExist(err) { // a dangling link
			return nil
		}
		if err != nil {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for {
			var block *pem.Block
			if block, data = pem.Decode(data); block == nil {
				return nil
			}
			if _, err := x509.ParseCertificate(block.Bytes); err != nil || block.Type != "CERTIFICATE" {
				continue
			}
			sum := sha256.Sum256(block.Bytes)
			text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})
			certs = append(certs, Certificate{Name: "host-" + hex.EncodeToString(sum[:8]) + ".crt", PEM: string(text),
				Modified: info.ModTime()})
		}
	})
	err = errors.Explainf(err, errors.Denied, "the certificates in %s cannot be read", dir)
	return certs, errors.Remedy(err, "make them readable, or set certificate_dir to another directory or to nothing")
}

// Env returns variables that point programs with their own certificates to the bundle. AWS_CA_BUNDLE is not one of
// them: the SDKs of Go refuse it in programs with their own transport, such as rclone, and boto reads
// REQUESTS_CA_BUNDLE.
func Env(bundle string) map[string]string {
	env := map[string]string{}
	for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO",
		"CURL_CA_BUNDLE", "PIP_CERT", "DENO_CERT", "CARGO_HTTP_CAINFO"} {
		env[name] = bundle
	}
	return env
}

// Variables returns the variables that images with these certificates can get, for fingerprints.
func Variables(certs []Certificate) map[string]string {
	if len(certs) == 0 {
		return nil
	}
	return Env(Bundle)
}

// Add adds the authorities to an image that is being written, and returns the environment that its
// commands need. If the image has no bundle, Add makes one with these authorities alone, and sets
// only the variables of programs that add it to their own certificates.
func Add(w *rootfs.Writer, certs []Certificate) (map[string]string, error) {
	if len(certs) == 0 {
		return nil, nil
	}
	dir := anchors[len(anchors)-1]
	for _, d := range anchors {
		if w.IsDir(d) {
			dir = d
			break
		}
	}
	var all strings.Builder
	var newest time.Time
	for _, c := range certs {
		all.WriteString(c.PEM)
		if c.Modified.After(newest) {
			newest = c.Modified
		}
		if err := write(w, dir+"/"+c.Name, c.PEM, c.Modified); err != nil {
			return nil, err
		}
	}
	found := map[string]string{} // content of the bundles
	for _, name := range bundles {
		old, err := w.ReadFile(name, maxBundle)
		if errors.Is(err, errors.NotFound) || errors.Is(err, errors.Invalid) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[name] = string(old)
	}
	var env map[string]string
	for _, name := range bundles {
		old, ok := found[name]
		if !ok {
			continue
		}
		if env == nil {
			env = Env(name)
		}
		now, err := w.ReadFile(name, 2*maxBundle)
		if err != nil {
			return nil, err
		}
		if string(now) != old { // it has them under another name
			continue
		}
		// A bundle that has some of them already gets another copy, which Filter removes.
		text := strings.TrimRight(old, "\n") + "\n" + all.String()
		if err := w.Replace(name, []byte(strings.TrimLeft(text, "\n"))); err != nil {
			return nil, err
		}
	}
	if env != nil {
		return env, nil
	}
	return map[string]string{"NODE_EXTRA_CA_CERTS": Bundle}, write(w, Bundle, all.String(), newest)
}

func write(w *rootfs.Writer, name, text string, modified time.Time) error {
	if modified.IsZero() {
		modified = time.Now()
	}
	hdr := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text)), ModTime: modified}
	return w.Add(hdr, strings.NewReader(text))
}
