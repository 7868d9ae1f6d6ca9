// Package installation names an installation of Harvest at a provider where several may have sandboxes: a cluster, or
// an account at Modal.
package installation

import (
	"crypto/rand"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
)

// length is the number of characters of a name: letters and digits with 60 bits of randomness.
const length = 12

// Name returns the name in a file. It makes one if there is none: a file that is lost loses the sandboxes at the
// provider.
func Name(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err == nil && len(data) > 0 {
		return string(data), nil
	}
	if err != nil && !errors.IsNotExist(err) {
		return "", errors.Wrapf(err, "read the name of this installation")
	}
	name := strings.ToLower(rand.Text())[:length]
	err = atomicfile.WriteDurable(file, []byte(name), 0o600)
	return name, errors.Wrapf(err, "note the name of this installation")
}
