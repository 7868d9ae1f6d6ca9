package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// certificateTime is the lifetime of the certificates. A cluster lives for one run of the tests.
const certificateTime = 24 * time.Hour

// authority signs the certificates of one cluster.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes a certificate authority and writes its certificate to ca.crt in dir.
func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errors.Wrapf(err, "make a key")
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(certificateTime), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, errors.Wrapf(err, "sign a certificate")
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.Wrapf(err, "parse a certificate")
	}
	return &authority{dir, cert, key}, writePEM(filepath.Join(dir, "ca.crt"), "CERTIFICATE", der)
}

// issue writes the files name.crt and name.key for a user of the API server, or for a server at addresses.
func (a *authority) issue(name, user, group string, addresses ...string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return errors.Wrapf(err, "make a key")
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: user},
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(certificateTime), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	if group != "" {
		template.Subject.Organization = []string{group}
	}
	for _, address := range addresses {
		if ip := net.ParseIP(address); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, address)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return errors.Wrapf(err, "sign a certificate")
	}
	if err := writePEM(filepath.Join(a.dir, name+".crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	return writeKey(filepath.Join(a.dir, name+".key"), key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return errors.Wrapf(err, "encode a key")
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	b := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return errors.Wrapf(os.WriteFile(path, b, 0o600), "write %s", filepath.Base(path))
}

// kubeconfig writes name.kubeconfig, with which a program is the user of name.crt.
func (a *authority) kubeconfig(name, server string) (string, error) {
	const text = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
	base := filepath.Join(a.dir, name)
	config := fmt.Sprintf(text, server, filepath.Join(a.dir, "ca.crt"), base+".crt", base+".key")
	return base + ".kubeconfig", errors.Wrapf(os.WriteFile(base+".kubeconfig", []byte(config), 0o600),
		"write %s.kubeconfig", name)
}

// identities writes the certificates and keys of all components.
func (c *Cluster) identities() error {
	a, err := newAuthority(c.path("keys"))
	if err != nil {
		return err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return errors.Wrapf(err, "make a key")
	}
	if err := writeKey(c.path("keys/accounts.key"), accounts); err != nil {
		return err
	}
	for _, i := range []struct{ name, user, group string }{
		{"admin", "admin", "system:masters"},
		{"controllers", "system:kube-controller-manager", ""},
		{"scheduler", "system:kube-scheduler", ""},
		{"node", "system:node:" + Node, "system:nodes"},
	} {
		if err := a.issue(i.name, i.user, i.group); err != nil {
			return err
		}
		if _, err := a.kubeconfig(i.name, "https://"+c.api); err != nil {
			return err
		}
	}
	err = a.issue("apiserver", "apiserver", "", "127.0.0.1", serviceAddress, "kubernetes", "localhost")
	if err != nil {
		return err
	}
	return a.issue("kubelet", "kubelet", "", nodeAddress, Node)
}
