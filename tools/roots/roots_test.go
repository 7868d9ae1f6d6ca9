package roots_test

import (
	"crypto/x509"
	"testing"

	"github.com/RelevanceAI/harvest/tools/roots"
)

func TestPEM(t *testing.T) {
	t.Parallel()
	if !x509.NewCertPool().AppendCertsFromPEM(roots.PEM()) {
		t.Error("there are no certificates")
	}
}
