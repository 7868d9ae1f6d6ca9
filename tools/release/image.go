package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/RelevanceAI/harvest/client/errors"
)

// image writes a container image for each server platform into one OCI archive.
func (p *packing) image() error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	base, err := p.layer(p.baseFiles())
	if err != nil {
		return err
	}
	for _, on := range platforms {
		if !on.server() {
			continue
		}
		program, err := p.layer([]entry{{name: "usr/bin/", mode: fs.ModeDir | 0o755}, {name: "usr/bin/harvest",
			mode: 0o755, path: filepath.Join(p.stage, on.String(), "harvest")}})
		if err != nil {
			return err
		}
		image, err := p.imageOf(on, base, program)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: on.OS, Architecture: on.Arch}}})
	}
	return p.ociArchive(index)
}

func (p *packing) imageOf(on platform, layers ...v1.Layer) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		return nil, errors.Wrapf(err, "add the layers")
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, errors.Wrapf(err, "read the configuration")
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = on.OS, on.Arch, v1.Time{Time: p.time()}
	config.History = nil
	config.Config = v1.Config{
		Entrypoint:   []string{"harvest"},
		Env:          []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HARVEST_DATA=/var/lib/harvest"},
		Volumes:      map[string]struct{}{"/var/lib/harvest": {}},
		ExposedPorts: map[string]struct{}{"7777/tcp": {}},
		Labels: map[string]string{"org.opencontainers.image.title": "Harvest",
			"org.opencontainers.image.version":  p.Version,
			"org.opencontainers.image.revision": p.Commit, "org.opencontainers.image.source": repository,
			"org.opencontainers.image.licenses": "Apache-2.0"},
	}
	image, err = mutate.ConfigFile(image, config)
	return image, errors.Wrapf(err, "set the configuration")
}

// baseFiles are the files of the image other than harvest: Mozilla's certificates, and directories.
func (p *packing) baseFiles() []entry {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a file of certificates cannot say for which chains the root counts
		}
		_ = pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // into memory
	}
	entries := []entry{}
	for _, dir := range []struct {
		name string
		mode fs.FileMode
	}{{"etc/", 0o755}, {"etc/ssl/", 0o755}, {"etc/ssl/certs/", 0o755}, {"root/", 0o700}, {"run/", 0o755},
		{"tmp/", fs.ModeSticky | 0o777}, {"usr/", 0o755}, {"usr/bin/", 0o755}, {"var/", 0o755}, {"var/lib/", 0o755},
		{"var/lib/harvest/", 0o700}, {"var/tmp/", fs.ModeSticky | 0o777}} {
		entries = append(entries, entry{name: dir.name, mode: fs.ModeDir | dir.mode})
	}
	return append(entries,
		entry{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: roots.Bytes()},
		entry{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/usr/bin/harvest\n")},
		entry{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\n")})
}

func (p *packing) layer(entries []entry) (v1.Layer, error) {
	var buffer bytes.Buffer
	if err := p.tar(&buffer, entries); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	return layer, errors.Wrapf(err, "make a layer")
}

// ociArchive writes an index as an OCI layout in a tar archive, with the version as its name.
func (p *packing) ociArchive(index v1.ImageIndex) error {
	temp, err := os.MkdirTemp("", "harvest-release-")
	if err != nil {
		return errors.Wrapf(err, "make a temporary directory")
	}
	defer os.RemoveAll(temp)
	path, err := layout.Write(temp, empty.Index)
	if err != nil {
		return errors.Wrapf(err, "write the layout")
	}
	name := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": p.Version})
	if err := path.AppendIndex(index, name); err != nil {
		return errors.Wrapf(err, "write the image")
	}
	var entries []entry
	err = filepath.WalkDir(temp, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == temp {
			return err
		}
		name, err := filepath.Rel(temp, path)
		if err != nil {
			return err
		}
		e := entry{name: filepath.ToSlash(name), mode: 0o644, path: path}
		if d.IsDir() {
			e = entry{name: e.name + "/", mode: fs.ModeDir | 0o755}
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return errors.Wrapf(err, "list the layout")
	}
	return p.file("harvest_"+p.Version+"_oci.tar", func(w io.Writer) error { return p.tar(w, entries) })
}
