package main

import (
	"bytes"
	"encoding/pem"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootsFile is where programs look for certificate authorities.
const rootsFile = "etc/ssl/certs/ca-certificates.crt"

// roots returns Mozilla's certificate authorities, as the image of a release has them: tools/release, a module of its
// own.
func roots() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a file of certificates cannot say for which chains the root counts
		}
		_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // into memory
	}
	return all.Bytes()
}
