package debian

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
)

// certificate is one authority, as PEM.
type certificate struct{ Name, PEM string }

// readCertificates returns the authorities in the *.crt files of dir, in the order of their names. As update-ca-certificates does, it passes over
// what is not a certificate. A directory that does not exist has none.
func readCertificates(dir string) ([]certificate, error) {
	if _, err := os.Stat(dir); dir == "" || errors.IsNotExist(err) {
		return nil, nil
	}
	var certs []certificate
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".crt") {
			return err
		}
		data, err := os.ReadFile(name)
		if errors.IsNotExist(err) { // a link to nothing
			return nil
		}
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
			certs = append(certs, certificate{Name: "host-" + hex.EncodeToString(sum[:8]) + ".crt", PEM: string(text)})
		}
	})
	err = errors.Explainf(err, errors.Denied, "the certificates in %s cannot be read", dir)
	return certs, errors.Remedy(err, "make them readable, or set certificate_dir to another directory or to nothing")
}

// hook returns a command that puts the certificate where update-ca-certificates finds it. Name and PEM are our own encoding, so that
// nothing in them means anything to the shell.
func (c certificate) hook() string {
	return fmt.Sprintf("cat >\"$1/usr/local/share/ca-certificates/%s\" <<'END'\n%sEND\n", c.Name, c.PEM)
}
