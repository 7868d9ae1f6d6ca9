package main

import (
	"crypto/x509"
	"testing"
)

func TestRoots(t *testing.T) {
	t.Parallel()
	if !x509.NewCertPool().AppendCertsFromPEM(roots()) {
		t.Error("there are no certificates")
	}
}
