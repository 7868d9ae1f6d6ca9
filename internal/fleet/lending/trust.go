package lending

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

// bundle is the file in sandboxes with all authorities that its programs trust, the broker's among them.
const bundle = "/usr/local/share/harvest/ca-certificates.crt"

// maxBundle is the maximum size of a bundle; usual ones have 200 KB.
const maxBundle = 16 << 20

// Env returns the variables that point programs to the bundle.
func Env() map[string]string { return trust.Env(bundle) }

// Install makes the programs of a sandbox trust the broker: it adds the authority to the bundles and keystores of the
// image, and writes the bundle that Env names. java is the directory of an installation of Java, or "".
func (b *Borrower) Install(ctx context.Context, box engine.Sandbox, java string) error {
	signs, err := b.server.secrets.Authority(ctx, b.sandbox.Account)
	if err != nil {
		return err
	}
	own := signs.PEM()
	all := ""
	var found []string
	for _, name := range trust.Bundles() {
		text, err := readFile(ctx, box, name)
		if errors.Is(err, errors.NotFound) {
			continue
		}
		if err != nil {
			return errors.Wrapf(err, "read the authorities in %s", name)
		}
		if text == "" { // a link to another one
			continue
		}
		found = append(found, name)
		added := text
		if !strings.Contains(text, own) { // as it is in the files of a snapshot
			added = strings.TrimRight(text, "\n") + "\n" + own
		}
		if all == "" {
			all = added
		}
		if added == text {
			continue
		}
		if err := writeFile(ctx, box, name, added); err != nil {
			return errors.Wrapf(err, "add the authority of credentials to %s", name)
		}
	}
	if all == "" { // of an image without authorities: those of this machine
		of, err := os.ReadFile(trust.Bundle)
		if err != nil && !errors.IsNotExist(err) {
			return errors.Wrapf(err, "read the authorities of this machine")
		}
		all = string(of) + own
	}
	if err := writeFile(ctx, box, bundle, all); err != nil {
		return errors.Wrapf(err, "write the authorities for credentials")
	}
	for _, name := range trust.Keystores(found, java) {
		if err := b.installJava(ctx, box, name, own); err != nil {
			return errors.Wrapf(err, "add the authority of credentials to %s", name)
		}
	}
	return nil
}

// installJava adds an authority to a keystore of Java, if the file exists and can be read.
func (b *Borrower) installJava(ctx context.Context, box engine.Sandbox, name, own string) error {
	store, err := readFile(ctx, box, name)
	switch {
	case errors.Is(err, errors.NotFound), errors.Is(err, errors.Invalid): // the variable may name anything
		return nil
	case store == "" && err == nil: // a link to another one
		return nil
	case err != nil:
		return err
	}
	added, err := trust.AddToKeystore([]byte(store), own)
	if errors.Is(err, errors.Unsupported) {
		logf.Warnf(ctx, "programs in Java do not trust the broker of credentials in sandbox %s: %s: %v", b.sandbox.ID,
			name, err)
		return nil
	}
	if err != nil || string(added) == store {
		return err
	}
	return writeFile(ctx, box, name, string(added))
}

// readFile returns the text of a regular file in a sandbox, or "" if it is something else.
func readFile(ctx context.Context, box engine.Sandbox, name string) (string, error) {
	r, err := box.CopyOut(ctx, name)
	if err != nil {
		return "", err
	}
	defer r.Close()
	t := tar.NewReader(r)
	hdr, err := t.Next()
	if err != nil {
		return "", err
	}
	if hdr.Typeflag != tar.TypeReg || hdr.Size > maxBundle {
		return "", nil
	}
	b, err := io.ReadAll(t)
	return string(b), err
}

// writeFile writes a file that everybody may read. Its directory is made if it is missing.
func writeFile(ctx context.Context, box engine.Sandbox, name, text string) error {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	hdr := &tar.Header{Typeflag: tar.TypeReg, Name: path.Base(name), Mode: 0o644, Size: int64(len(text)),
		ModTime: time.Now()}
	if err := t.WriteHeader(hdr); err != nil {
		return err
	}
	if _, err := io.WriteString(t, text); err != nil {
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	return box.CopyIn(ctx, path.Dir(name), &b)
}
