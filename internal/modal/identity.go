package modal

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
)

const (
	identityFile = "identity.key"
	identityEnv  = "MODAL_IDENTITY_TOKEN"
	identityKeys = "/.well-known/jwks.json"
)

// identityKey returns the key that signs the identities of sandboxes. It creates the key on first use.
func (s *Server) identityKey() (*ecdsa.PrivateKey, error) {
	name := filepath.Join(s.opts.Dir, identityFile)
	der, err := os.ReadFile(name)
	if err == nil {
		key, err := x509.ParseECPrivateKey(der)
		return key, errors.Wrapf(err, "read the key of identities")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err == nil {
		der, err = x509.MarshalECPrivateKey(key)
	}
	if err == nil {
		err = atomicfile.WriteDurable(name, der, 0o600)
	}
	return key, errors.Wrapf(err, "make the key of identities")
}

// identity makes a token (ES256) that proves a sandbox's identity to anyone who trusts this server's keys.
func (s *Server) identity(acc, env, app, address string, life time.Duration) (string, error) {
	s.mu.Lock()
	key, err := s.identityKey()
	s.mu.Unlock()
	if err != nil {
		return "", err
	}
	now := time.Now()
	body, err := json.Marshal(map[string]any{
		"iss": "http://" + address, "aud": "harvest",
		"sub": "modal:workspace:" + acc + ":environment:" + env + ":app:" + app,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(life).Unix(), "workspace_name": acc,
		"environment_name": env, "app_name": app,
	})
	if err != nil {
		return "", errors.Wrapf(err, "encode an identity")
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT","kid":"1"}`)) + "." + base64.RawURLEncoding.EncodeToString(body)
	sum := sha256.Sum256([]byte(text))
	r, v, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return "", errors.Wrapf(err, "sign an identity")
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

// keys serves the public half of the identity key.
func (s *Server) keys(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	key, err := s.identityKey()
	s.mu.Unlock()
	if err != nil {
		http.Error(w, "there is no key", http.StatusInternalServerError)
		return
	}
	point, err := key.PublicKey.Bytes() // 4, X, Y
	if err != nil || len(point) != 65 {
		http.Error(w, "there is no key", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]string{{ // the client has gone
		"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "1",
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}}})
}
