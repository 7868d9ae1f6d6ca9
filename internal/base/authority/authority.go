// Package authority is a certificate authority of Harvest's own. It signs certificates of servers for programs that
// trust it.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errors.Wrapf(err, "make the key of an authority")
	}
	number := serial()
	now := time.Now()
	cert, err := sign(&x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: name + " " + number.Text(16)[:8]},
		NotBefore: now.Add(-margin), NotAfter: now.AddDate(years, 0, 0), KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: len(only.Names)+len(only.Addrs) > 0, PermittedDNSDomains: only.Names,
		PermittedIPRanges: only.Addrs,
	}, nil, key, key)
	if err != nil {
		return nil, err
	}
	return &Authority{key: key, cert: cert, leaves: map[string]*tls.Certificate{}}, nil
}

// Parse returns the authority that Secret encoded. Invalid: the text is something else.
func Parse(secret []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(secret, secret)
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "not a key and a certificate")
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.Newf(errors.Invalid, "not a key of Harvest")
	}
	return &Authority{key: key, cert: pair.Leaf, leaves: map[string]*tls.Certificate{}}, nil
}

// Secret returns the key and the certificate as PEM.
func (a *Authority) Secret() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, errors.Wrapf(err, "encode the key of an authority")
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), a.PEM()...), nil
}

// PEM returns the authority's own certificate, for clients that trust it.
func (a *Authority) PEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errors.Wrapf(err, "make the key of a server")
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), NotBefore: now.Add(-margin), NotAfter: now.Add(life),
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
	cert, err := sign(template, a.cert, key, a.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

// sign makes a certificate for a key; parent is nil for one that signs itself.
func sign(template, parent *x509.Certificate, of, by *ecdsa.PrivateKey) (*x509.Certificate, error) {
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &of.PublicKey, by)
	if err != nil {
		return nil, errors.Wrapf(err, "make a certificate")
	}
	cert, err := x509.ParseCertificate(der)
	return cert, errors.Wrapf(err, "read a certificate")
}

func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b)     // it never fails: crypto/rand.Read
	b[0] = b[0]&0x7f | 0x40 // positive, and always as long
	return new(big.Int).SetBytes(b)
}
