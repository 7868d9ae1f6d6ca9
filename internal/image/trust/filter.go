package trust

import (
	"archive/tar"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// ownName matches the names of this machine's certificates, and of the links that update-ca-certificates makes to them.
var ownName = pattern.New(`^host-[0-9a-f]{16}\.(crt|pem)$`)

// Filter removes the certificates of this machine from images that leave it. The zero value removes nothing.
type Filter struct {
	pems             []string
	anchors, bundles []string
}

// NewFilter returns a Filter for the certificates that are in an image.
func NewFilter(r *rootfs.Reader) (*Filter, error) {
	f := &Filter{anchors: resolve(r, anchors), bundles: resolve(r, bundles)}
	for _, dir := range anchors {
		err := r.Walk(dir, func(hdr *tar.Header, content io.Reader) error {
			if content == nil || !ownName().MatchString(path.Base(hdr.Name)) {
				return nil
			}
			text, err := io.ReadAll(io.LimitReader(content, maxBundle))
			f.pems = append(f.pems, string(text))
			return errors.Wrapf(err, "read a certificate")
		})
		if err != nil && errors.KindOf(err) != errors.NotFound && errors.KindOf(err) != errors.Invalid {
			return nil, err
		}
	}
	return f, nil
}

// resolve adds the paths without symbolic links of the files that exist.
func resolve(r *rootfs.Reader, names []string) []string {
	all := slices.Clone(names)
	for _, name := range names {
		if hdr, _, err := r.Open(name); err == nil {
			all = append(all, path.Clean("/"+hdr.Name))
		}
	}
	return all
}

// Edit returns an entry of an image without the certificates. omit means that nothing of it is left.
func (f *Filter) Edit(hdr *tar.Header, content io.Reader) (edited *tar.Header, rest io.Reader, omit bool, err error) {
	if len(f.pems) == 0 {
		return hdr, content, false, nil
	}
	name := path.Clean("/" + hdr.Name)
	switch {
	case hdr.Typeflag == tar.TypeReg && slices.Contains(f.anchors, path.Dir(name)) &&
		ownName().MatchString(path.Base(name)),
		hdr.Typeflag == tar.TypeSymlink && ownName().MatchString(path.Base(hdr.Linkname)):
		return nil, nil, true, nil
	case content == nil || hdr.Typeflag != tar.TypeReg || hdr.Size > maxBundle || !slices.Contains(f.bundles, name):
		return hdr, content, false, nil
	}
	old, err := io.ReadAll(content)
	if err != nil {
		return nil, nil, false, errors.Wrapf(err, "read a bundle of certificates")
	}
	text := string(old)
	for _, pem := range f.pems {
		// An earlier copy belongs to the image's author, who trusts the same authority.
		if i := strings.LastIndex(text, pem); i >= 0 {
			text = text[:i] + text[i+len(pem):]
		}
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil, true, nil
	}
	twin := *hdr
	twin.Size = int64(len(text))
	return &twin, strings.NewReader(text), false, nil
}

// Layer copies a layer without the certificates.
func (f *Filter) Layer(to io.Writer, from io.Reader) error {
	if len(f.pems) == 0 {
		_, err := io.Copy(to, from)
		return errors.Wrapf(err, "read a layer")
	}
	tr, tw := tar.NewReader(from), tar.NewWriter(to)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return errors.Wrapf(tw.Close(), "end a layer")
		}
		if err != nil {
			return errors.Wrapf(err, "read a layer")
		}
		edited, content, omit, err := f.Edit(hdr, tr)
		if err != nil {
			return err
		}
		if omit {
			continue
		}
		if err := tw.WriteHeader(edited); err != nil {
			return errors.Wrapf(err, "write %.200q", hdr.Name)
		}
		if edited.Typeflag == tar.TypeReg {
			if _, err := io.Copy(tw, content); err != nil {
				return errors.Wrapf(err, "write %.200q", hdr.Name)
			}
		}
	}
}
