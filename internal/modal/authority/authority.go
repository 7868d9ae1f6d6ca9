// Package authority signs the certificates of tunnels. An installation has one authority, which clients can trust: it
// signs names of the loopback interface only, and says so in its own certificate.
package authority

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/authority"
)

const fileName = "authority.pem" // the key and the certificate

// Authority signs certificates for localhost. Its methods may be called concurrently.
type Authority struct{ *authority.Authority }

// Open returns the authority that dir keeps. It creates one if dir has none, or if it has expired.
func Open(dir string) (*Authority, error) {
	path := filepath.Join(dir, fileName)
	text, err := os.ReadFile(path)
	if errors.IsNotExist(err) {
		return create(path)
	}
	if err != nil {
		return nil, errors.Wrapf(err, "read the authority of tunnels")
	}
	a, err := authority.Parse(text)
	if err != nil {
		err = errors.Explainf(err, errors.Invalid, "%s: %s", path, errors.Message(err))
		return nil, errors.Remedy(err, "restore the file, or remove it: clients must then trust a new authority")
	}
	if a.Expired() {
		return create(path)
	}
	return &Authority{a}, nil
}

func create(path string) (*Authority, error) {
	// A client that trusts the authority must not trust it for other hosts.
	a, err := authority.New("Harvest tunnels", authority.Limits{Names: []string{"localhost"}, Addrs: []*net.IPNet{
		{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)},
		{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
	}})
	if err != nil {
		return nil, err
	}
	text, err := a.Secret()
	if err != nil {
		return nil, err
	}
	return &Authority{a}, errors.Wrapf(atomicfile.WriteDurable(path, text, 0o600), "keep the authority of tunnels")
}

// Certificate implements the function GetCertificate of a tls.Config.
func (a *Authority) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return a.Authority.Certificate("localhost", "127.0.0.1", "::1")
}
