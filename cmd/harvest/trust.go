package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
)

// trusting is the subdirectory of the data directory for the certificates that programs trust.
const trusting = "modal-trust"

// systemRoots are the usual files with the roots that a system trusts.
var systemRoots = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem"}

// trust makes programs trust an authority in addition to the roots that they trust already.
type trust struct {
	dir   string                   // of the files
	env   func(name string) string // of the programs
	roots []string                 // files with the system's roots; the first that exists counts
}

// variable is an environment variable of programs.
type variable struct{ name, value string }

// variables writes the certificates and returns the variables that name them. A variable that names another file keeps
// the certificates of that file. Without roots, the variables that would replace them are left out.
func (t trust) variables(authority string) (vars []variable, err error) {
	for _, v := range []struct {
		name, file string
		adds       bool // to the roots of the program
	}{
		{"SSL_CERT_FILE", "roots.pem", false},
		{"REQUESTS_CA_BUNDLE", "requests.pem", false},
		{"NODE_EXTRA_CA_CERTS", "node.pem", true},
	} {
		own := filepath.Join(t.dir, v.file)
		var before []byte
		if set := t.env(v.name); set != "" && set != own {
			if before, err = os.ReadFile(set); err != nil {
				return nil, errors.Remedy(errors.Explainf(err, errors.Invalid, "%s=%s: %v", v.name, set, err),
					"unset %s, or name a readable file", v.name)
			}
		} else if !v.adds {
			before = t.system()
		}
		if !v.adds && len(before) == 0 {
			continue
		}
		if len(before) > 0 && !bytes.HasSuffix(before, []byte("\n")) {
			before = append(before, '\n')
		}
		if err := keep(own, append(before, authority...)); err != nil {
			return nil, err
		}
		vars = append(vars, variable{v.name, own})
	}
	return vars, nil
}

// system returns the system's roots, nil if there are none.
func (t trust) system() []byte {
	for _, path := range t.roots {
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			return text
		}
	}
	return nil
}

// quoted returns a value as a word of a shell.
func quoted(value string) string {
	if strings.ContainsFunc(value, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("-_./:@%+,[]", r))
	}) {
		return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
	}
	return value
}

// keep writes a file, unless it has that content.
func keep(path string, text []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return errors.Wrapf(err, "make the directory of certificates")
	}
	return errors.Wrapf(atomicfile.Write(path, text, 0o644), "write the certificates for programs")
}
