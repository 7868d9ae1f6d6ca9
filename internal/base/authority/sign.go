package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Sign makes a key, and its certificate from a template, whose serial number it sets if there is none. parent and by
// sign it: the certificate of an authority, and its key. Without a parent, the certificate signs itself.
func Sign(template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "make a key")
	}
	if parent == nil {
		parent, by = template, key
	}
	if template.SerialNumber == nil {
		template.SerialNumber = serial()
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "sign a certificate")
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, errors.Wrapf(err, "parse a certificate")
}

func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b)     // it never fails: crypto/rand.Read
	b[0] = b[0]&0x7f | 0x40 // positive, and always as long
	return new(big.Int).SetBytes(b)
}

// Encode returns a key and its certificate as PEM, for Decode.
func Encode(cert *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	secret, err := EncodeKey(key)
	return append(secret, EncodeCertificate(cert)...), err
}

// EncodeCertificate returns a certificate as PEM.
func EncodeCertificate(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

// EncodeKey returns a key as PEM.
func EncodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.Wrapf(err, "encode a key")
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Decode returns the key and the certificate of an authority that Encode encoded. Invalid: the text is something else.
func Decode(text []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, nil, errors.Explainf(err, errors.Invalid, "not a key and a certificate")
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, nil, errors.Newf(errors.Invalid, "not a key of Harvest")
	}
	return pair.Leaf, key, nil
}
