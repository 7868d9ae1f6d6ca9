package ssh

import (
	"crypto/ed25519"
	"encoding/pem"
	"os"
	"strings"

	gossh "golang.org/x/crypto/ssh"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
)

// HostKey returns the key of a server from a file in the format of OpenSSH. It makes an Ed25519 key if there is no
// file. A damaged file is an error: with another key, clients would believe that the server is not the one that they
// know.
func HostKey(path string) (gossh.Signer, error) {
	text, err := os.ReadFile(path)
	if errors.IsNotExist(err) {
		if text, err = newHostKey(); err == nil {
			err = atomicfile.WriteDurable(path, text, 0o600)
		}
	}
	if err != nil {
		return nil, errors.Wrapf(err, "read the key for SSH")
	}
	key, err := gossh.ParsePrivateKey(text)
	if err != nil {
		err = errors.Explainf(err, errors.Invalid, "%s is not a key of SSH", path)
		return nil, errors.Remedy(err, "restore it from a backup, or remove it: then a new one is made, "+
			"which the clients of SSH must accept")
	}
	return key, nil
}

func newHostKey() ([]byte, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, errors.Wrapf(err, "make a key for SSH")
	}
	block, err := gossh.MarshalPrivateKey(key, "harvest")
	if err != nil {
		return nil, errors.Wrapf(err, "encode a key for SSH")
	}
	return pem.EncodeToMemory(block), nil
}

// HostKey returns the public key of the server, as a line of known_hosts has it after the host.
func (s *Server) HostKey() string {
	return strings.TrimSpace(string(gossh.MarshalAuthorizedKey(s.opts.Host.PublicKey())))
}
