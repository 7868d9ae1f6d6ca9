// Package installer is the program that makes the programs of a sandbox trust one more authority. One command does it:
// a command for each file would delay the start of a sandbox by half a second.
package installer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

// Program is the name of the program (engine.Command.Own).
const Program = "trust"

// Request is the input of the program, as JSON.
type Request struct {
	Authority string // PEM
	// Bundle is the file that gets all authorities of the image and this one. It is made with its directory.
	Bundle string
	Java   string // directory of an installation of Java besides the usual ones, or ""
	// Otherwise are the authorities of an image that has none, PEM.
	Otherwise string
}

// maxFile is the maximum size of a bundle or a keystore; usual ones have 200 KB.
const maxFile = 16 << 20

// Main adds the authority of the Request in stdin to the bundles and the keystores of the sandbox, and writes its
// Bundle. It prints the keystores that it cannot change, a line each, with the reason.
func Main(_ context.Context, _ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var req Request
	err := json.NewDecoder(stdin).Decode(&req)
	if err == nil {
		err = req.install("/", stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// install does it below a root.
func (r Request) install(root string, warn io.Writer) error {
	all := ""
	var found []string
	for _, name := range trust.Bundles() {
		text, err := read(filepath.Join(root, name))
		if err != nil || text == "" { // it is missing, or a link to another one
			continue
		}
		found = append(found, name)
		added := text
		if !strings.Contains(text, r.Authority) { // as it is in the files of a snapshot
			added = strings.TrimRight(text, "\n") + "\n" + r.Authority
		}
		if all == "" {
			all = added
		}
		if added == text {
			continue
		}
		if err := write(filepath.Join(root, name), added); err != nil {
			return err
		}
	}
	if all == "" {
		all = r.Otherwise + r.Authority
	}
	own := filepath.Join(root, r.Bundle)
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		return errors.Wrapf(err, "make the directory of the authorities")
	}
	if err := write(own, all); err != nil {
		return err
	}
	for _, name := range trust.Keystores(found, r.Java) {
		if err := r.addToKeystore(filepath.Join(root, name)); errors.Is(err, errors.Unsupported) {
			fmt.Fprintf(warn, "%s: %v\n", name, err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// addToKeystore adds the authority to a keystore of Java, if the file exists.
func (r Request) addToKeystore(name string) error {
	store, err := read(name)
	if err != nil || store == "" { // the variable may name anything
		return nil
	}
	added, err := trust.AddToKeystore([]byte(store), r.Authority)
	if err != nil || string(added) == store {
		return err
	}
	return write(name, string(added))
}

// read returns the text of a regular file, or "" if it is something else, or too large.
func read(name string) (string, error) {
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
		return "", err
	}
	b, err := os.ReadFile(name)
	return string(b), err
}

// write writes a file. One that exists keeps its mode; others may be read by everybody.
func write(name, text string) error {
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return errors.Wrapf(err, "write authorities")
	}
	return errors.Wrapf(os.Chmod(name, 0o644), "let everybody read the authorities in %s", name)
}
