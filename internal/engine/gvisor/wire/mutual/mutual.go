// Package mutual carries the protocol of package wire over TCP, for keepers on other machines than the server.
//
// Both ends prove their identity with TLS 1.3. Each installation has an Authority, whose key never leaves the server's
// data directory. A keeper gets Credentials for one sandbox. The server connects with a certificate for the same
// sandbox, which it signs for that connection. So the certificate of one sandbox opens no other sandbox, and a keeper's
// certificate opens nothing. Any doubt ends the connection.
package mutual

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/authority"
)

// The lifetimes of certificates. A server renews a keeper's credentials long before their end.
const (
	authorityYears = 20
	keeperLife     = 24 * time.Hour
	clientLife     = 5 * time.Minute // of one connection's handshake
	margin         = 5 * time.Minute // by which clocks may differ
)

// AuthorityFile is the file of an installation's Authority in the data directory.
const AuthorityFile = "keepers.pem"

// Authority signs the certificates of an installation. Its methods may be called concurrently.
type Authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	now  func() time.Time
}

// Credentials identify the keeper of one sandbox. They contain its private key: they are sent over connections that
// only the keeper can read.
type Credentials struct {
	ID          string // of the sandbox
	Certificate []byte // PEM
	Key         []byte // PEM
	Authority   []byte // PEM of the only authority whose clients the keeper accepts
}

// Open reads the authority of the data directory dir, or makes one if there is none. A file that is damaged, expired or
// readable by other users is an error: a new authority would lose all keepers.
func Open(dir string) (*Authority, error) {
	path := filepath.Join(dir, AuthorityFile)
	info, err := os.Lstat(path)
	switch {
	case errors.IsNotExist(err):
		return create(path)
	case err != nil:
		return nil, errors.Wrapf(err, "read the authority of keepers")
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0:
		err := errors.Newf(errors.Denied, "%s: other users can read the key of the keepers", path)
		return nil, errors.Remedy(err, "remove it, and destroy the sandboxes of this server")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.Wrapf(err, "read the authority of keepers")
	}
	cert, key, err := authority.Decode(text)
	if err != nil {
		return nil, errors.Errorf("%s has no authority of keepers: %v", path, err)
	}
	a := &Authority{key: key, cert: cert, now: time.Now}
	if a.now().Add(keeperLife).After(a.cert.NotAfter) {
		return nil, errors.Errorf("the authority of keepers in %s has expired", path)
	}
	return a, nil
}

// create makes an authority and writes it to path.
func create(path string) (*Authority, error) {
	a := &Authority{now: time.Now}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "Harvest keepers"},
		NotBefore: a.now().Add(-margin), NotAfter: a.now().AddDate(authorityYears, 0, 0),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true}
	var err error
	if a.cert, a.key, err = authority.Sign(template, nil, nil); err != nil {
		return nil, err
	}
	text, err := authority.Encode(a.cert, a.key)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.WriteDurable(path, text, 0o600); err != nil {
		return nil, errors.Wrapf(err, "write the authority of keepers")
	}
	return a, nil
}

// leaf signs a certificate for one end of the connections to the sandbox id.
func (a *Authority) leaf(id string, usage x509.ExtKeyUsage, life time.Duration) (*x509.Certificate,
	*ecdsa.PrivateKey, error) {
	if id == "" {
		return nil, nil, errors.Errorf("a certificate needs the ID of a sandbox")
	}
	now := a.now()
	return authority.Sign(&x509.Certificate{NotBefore: now.Add(-margin), NotAfter: now.Add(life),
		URIs: []*url.URL{name(id)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}},
		a.cert, a.key)
}

// Keeper returns credentials for the keeper of the sandbox id.
func (a *Authority) Keeper(id string) (Credentials, error) {
	cert, key, err := a.leaf(id, x509.ExtKeyUsageServerAuth, keeperLife)
	if err != nil {
		return Credentials{}, err
	}
	secret, err := authority.EncodeKey(key)
	return Credentials{ID: id, Certificate: authority.EncodeCertificate(cert), Key: secret,
		Authority: authority.EncodeCertificate(a.cert)}, err
}

// name is the name of a sandbox in certificates.
func name(id string) *url.URL { return &url.URL{Scheme: "harvest", Host: "sandbox", Path: "/" + id} }

// verify returns an error unless the other end has a certificate of the authority, for the sandbox id and the usage.
func verify(state tls.ConnectionState, root *x509.Certificate, id string, usage x509.ExtKeyUsage,
	now time.Time) error {
	if len(state.PeerCertificates) == 0 {
		return errors.Newf(errors.Denied, "the other end has no certificate")
	}
	cert, roots := state.PeerCertificates[0], x509.NewCertPool()
	roots.AddCert(root)
	_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return errors.Explainf(err, errors.Denied, "the certificate of the other end is not valid")
	}
	if len(cert.URIs) != 1 || cert.URIs[0].String() != name(id).String() {
		return errors.Newf(errors.Denied, "the certificate of the other end is for another sandbox")
	}
	return nil
}
