// Package authority signs the certificates of tunnels. An installation has one authority, which clients can trust: it
// signs names of the loopback interface only, and says so in its own certificate.
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
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
)

const (
	fileName = "authority.pem" // the key and the certificate

	years  = 20                  // lifetime of the authority
	life   = 90 * 24 * time.Hour // lifetime of a tunnel's certificate
	renew  = 30 * 24 * time.Hour // remaining lifetime at which it is replaced
	margin = time.Hour           // by which clocks of clients may be slow
)

// Authority signs certificates for localhost. Its methods may be called concurrently.
type Authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate

	mu   sync.Mutex
	leaf *tls.Certificate // guarded by mu; made on first use
}

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
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		err = errors.Explainf(err, errors.Invalid, "%s: not a key and a certificate", path)
		return nil, errors.Remedy(err, "restore the file, or remove it: clients must then trust a new authority")
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.Newf(errors.Invalid, "%s: not a key of Harvest", path)
	}
	if time.Until(pair.Leaf.NotAfter) < life {
		return create(path)
	}
	return &Authority{key: key, cert: pair.Leaf}, nil
}

func create(path string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errors.Wrapf(err, "make the key of an authority")
	}
	number, err := serial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: "Harvest tunnels " + number.Text(16)[:8]},
		NotBefore: now.Add(-margin), NotAfter: now.AddDate(years, 0, 0), KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		// A client that trusts the authority must not trust it for other hosts.
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{"localhost"},
		PermittedIPRanges: []*net.IPNet{
			{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)},
			{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
		},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, errors.Wrapf(err, "make the certificate of an authority")
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.Wrapf(err, "read the certificate of an authority")
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.Wrapf(err, "encode the key of an authority")
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), encode(der)...)
	if err := atomicfile.WriteDurable(path, text, 0o600); err != nil {
		return nil, errors.Wrapf(err, "keep the authority of tunnels")
	}
	return &Authority{key: key, cert: cert}, nil
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func serial() (*big.Int, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return nil, errors.Wrapf(err, "make the number of a certificate")
	}
	b[0] = b[0]&0x7f | 0x40 // positive, and always as long
	return new(big.Int).SetBytes(b), nil
}

// PEM returns the authority's own certificate, for clients that trust it.
func (a *Authority) PEM() string { return string(encode(a.cert.Raw)) }

// Certificate implements the function GetCertificate of a tls.Config.
func (a *Authority) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.leaf != nil && a.leaf.Leaf.NotAfter.Sub(now) > renew {
		return a.leaf, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errors.Wrapf(err, "make the key of tunnels")
	}
	number, err := serial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: now.Add(-margin), NotAfter: now.Add(life), DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, errors.Wrapf(err, "make the certificate of tunnels")
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.Wrapf(err, "read the certificate of tunnels")
	}
	a.leaf = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	return a.leaf, nil
}
