package github

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// signJWT returns the JWT with which an App authenticates: RS256, valid for nine minutes of the ten that GitHub
// allows, and issued a minute in the past, to tolerate clock differences.
func signJWT(app string, key config.Secret, now time.Time) (string, error) {
	private, err := parseKey([]byte(key.Reveal()))
	if err != nil {
		return "", err
	}
	claims, err := json.Marshal(struct {
		Issued  int64  `json:"iat"`
		Expires int64  `json:"exp"`
		Issuer  string `json:"iss"`
	}{now.Add(-time.Minute).Unix(), now.Add(9 * time.Minute).Unix(), app})
	if err != nil {
		return "", errors.Wrapf(err, "encode a JWT")
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + encode(claims)
	digest := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, private, crypto.SHA256, digest[:])
	if err != nil {
		return "", badKey(err)
	}
	return text + "." + encode(signature), nil
}

func parseKey(text []byte) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, badKey(nil)
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if rsaKey, ok := key.(*rsa.PrivateKey); ok && err == nil {
		return rsaKey, nil
	}
	return nil, badKey(nil) // the parse error would contain parts of the key
}

func badKey(err error) error {
	const text = "the GitHub App's private key is not one"
	if err == nil {
		err = errors.Newf(errors.Invalid, text)
	} else {
		err = errors.Explainf(err, errors.Invalid, text)
	}
	return errors.Remedy(err,
		"put the .pem file that GitHub gave you into GITHUB_APP_PRIVATE_KEY, its line ends included")
}
