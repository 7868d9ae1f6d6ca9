// Package roots has the certificate authorities that images of containers get.
package roots

import (
	"bytes"
	"encoding/pem"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// File is where programs look for them.
const File = "etc/ssl/certs/ca-certificates.crt"

// PEM returns Mozilla's authorities, one after the other.
func PEM() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a file of certificates cannot say for which chains the root counts
		}
		_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // into memory
	}
	return all.Bytes()
}
