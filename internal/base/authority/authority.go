// Package authority is a certificate authority of Harvest's own. It signs certificates of servers for programs that
// trust it.
package authority

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"strings"
	"sync"
	"time"
)

// Lifetimes of certificates.
const (
	years  = 20                  // of the authority
	life   = 90 * 24 * time.Hour // of a server
	renew  = 30 * 24 * time.Hour // remaining lifetime at which a server's is replaced
	margin = 24 * time.Hour      // by which the clocks of clients may be slow
)

// maxKept limits the certificates of servers that an authority keeps for the next connection.
const maxKept = 256

// Authority signs certificates. Its methods may be called concurrently.
type Authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // guarded by mu; by the names
}

// Limits are the only servers that clients of an authority accept from it. The zero value limits nothing.
type Limits struct {
	Names []string // domains, with all below them
	Addrs []*net.IPNet
}

// New makes an authority. Users see its name in lists of certificates.
func New(name string, only Limits) (*Authority, error) {
	number := serial()
	now := time.Now()
	cert, key, err := Sign(&x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: name + " " + number.Text(16)[:8]},
		NotBefore: now.Add(-margin), NotAfter: now.AddDate(years, 0, 0), KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: len(only.Names)+len(only.Addrs) > 0, PermittedDNSDomains: only.Names,
		PermittedIPRanges: only.Addrs,
	}, nil, nil)
	if err != nil {
		return nil, err
	}
	return &Authority{key: key, cert: cert, leaves: map[string]*tls.Certificate{}}, nil
}

// Parse returns the authority that Secret encoded. Invalid: the text is something else.
func Parse(secret []byte) (*Authority, error) {
	cert, key, err := Decode(secret)
	if err != nil {
		return nil, err
	}
	return &Authority{key: key, cert: cert, leaves: map[string]*tls.Certificate{}}, nil
}

// Secret returns the key and the certificate as PEM.
func (a *Authority) Secret() ([]byte, error) { return Encode(a.cert, a.key) }

// PEM returns the authority's own certificate, for clients that trust it.
func (a *Authority) PEM() string {
	return string(EncodeCertificate(a.cert))
}

// Expired reports whether the authority can no longer sign for the whole lifetime of a server's certificate.
func (a *Authority) Expired() bool { return time.Until(a.cert.NotAfter) < life }

// Certificate returns a certificate for servers with these names and addresses, which may be an earlier one.
func (a *Authority) Certificate(names ...string) (*tls.Certificate, error) {
	all := strings.Join(names, " ")
	a.mu.Lock()
	defer a.mu.Unlock()
	if leaf := a.leaves[all]; leaf != nil && time.Until(leaf.Leaf.NotAfter) > renew {
		return leaf, nil
	}
	leaf, err := a.issue(names)
	if err != nil {
		return nil, err
	}
	for kept := range a.leaves {
		if len(a.leaves) < maxKept {
			break
		}
		delete(a.leaves, kept)
	}
	a.leaves[all] = leaf
	return leaf, nil
}

func (a *Authority) issue(names []string) (*tls.Certificate, error) {
	now := time.Now()
	template := &x509.Certificate{
		NotBefore: now.Add(-margin), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		template.DNSNames = append(template.DNSNames, name)
	}
	const maxCommonName = 64 // RFC 5280, ub-common-name
	if len(names[0]) <= maxCommonName {
		template.Subject.CommonName = names[0]
	}
	cert, key, err := Sign(template, a.cert, a.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}
