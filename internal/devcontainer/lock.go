package devcontainer

import (
	"path"
	"regexp"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Lock has the digests of features by their references, as a repository pins them.
type Lock map[string]string

// LockPath returns the path of the file in the repository that pins the features of the configuration. It need not
// exist.
func (c *Config) LockPath() string {
	dir, base := path.Split(c.Path())
	if strings.HasPrefix(base, ".") {
		return dir + ".devcontainer-lock.json"
	}
	return dir + "devcontainer-lock.json"
}

var lockShape = record(map[string]shape{"features": table(record(map[string]shape{
	"version": text, "resolved": text, "dependsOn": strings_,
	"integrity": {form: "a digest", kinds: `"`, valid: regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString},
}), nil)})

// ParseLock decodes a devcontainer-lock.json. Errors are Invalid, or Exhausted for a file that is too large.
func ParseLock(file string, text []byte) (Lock, error) {
	doc, err := parse(file, text)
	if err != nil {
		return nil, err
	}
	if err := doc.check(lockShape); err != nil {
		return nil, err
	}
	var content struct {
		Features map[string]struct{ Integrity string }
	}
	if err := decode(doc.root, &content); err != nil {
		return nil, errors.Wrapf(err, "decode %s", file)
	}
	lock := Lock{}
	for reference, entry := range content.Features {
		if entry.Integrity != "" {
			lock[reference] = entry.Integrity
		}
	}
	return lock, nil
}
