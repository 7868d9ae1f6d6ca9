package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/containerd/platforms"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

// epoch is the time of the archive's own entries, as in docker save and skopeo, so that exports of
// an image are identical. Tools do not show it.
var epoch = time.Unix(0, 0).UTC()

// annotations of OCI with the name of an image in an archive.
const (
	refName       = "org.opencontainers.image.ref.name"
	containerdRef = "io.containerd.image.name"
)

// Export writes an image as an OCI archive for docker load, podman load and skopeo: a tar stream of
// an OCI layout with Docker's manifest.json. root is its root file system, and layer, if not nil,
// that of a snapshot. Both are read twice, since their digests come first. Equal images give equal
// bytes. The certificates of this machine, which sandboxes trust, are left out.
func Export(ctx context.Context, w io.Writer, img image.Image, root *os.File, layer *os.File) error {
	r, err := rootfs.OpenReader(root)
	if err != nil {
		return err
	}
	a := &archive{ctx: ctx, tw: tar.NewWriter(w)}
	own, err := trust.NewFilter(r)
	if err != nil {
		return err
	}
	img.Config.Env = img.Config.OwnEnv()
	parts := []func(io.Writer) error{func(w io.Writer) error { return r.WriteTar(ctx, w, own.Edit) }}
	if layer != nil {
		parts = append(parts, func(w io.Writer) error {
			info, err := layer.Stat()
			if err != nil {
				return errors.Wrapf(err, "measure a layer")
			}
			return own.Layer(w, io.NewSectionReader(layer, 0, info.Size()))
		})
	}
	var layers []v1.Descriptor
	for _, write := range parts {
		d, err := describe(write)
		if err != nil {
			return err
		}
		layers = append(layers, d)
	}
	if err := a.meta(img, layers); err != nil {
		return err
	}
	for i, write := range parts {
		if err := a.blob(layers[i], write); err != nil {
			return err
		}
	}
	return errors.Wrapf(a.tw.Close(), "end the archive")
}

// describe returns digest and size of the output of write.
func describe(write func(io.Writer) error) (v1.Descriptor, error) {
	sum := sha256.New()
	count := &counter{w: sum}
	if err := write(count); err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: types.OCIUncompressedLayer, Size: count.n,
		Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}}, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// archive is an OCI archive being written.
type archive struct {
	ctx  context.Context
	tw   *tar.Writer
	seen []string // blobs written so far
}

// meta writes everything but the layers.
func (a *archive) meta(img image.Image, layers []v1.Descriptor) error {
	config, err := a.json(types.OCIConfigJSON, configFileOf(img, layers))
	if err != nil {
		return err
	}
	manifest, err := a.json(types.OCIManifestSchema1, v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: config, Layers: layers})
	if err != nil {
		return err
	}
	tags := tagsOf(img.Names)
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{}}
	if len(tags) == 0 {
		index.Manifests = append(index.Manifests, manifest)
	}
	for _, tag := range tags {
		named := manifest
		named.Annotations = map[string]string{containerdRef: tag, refName: tag[strings.LastIndexByte(tag, ':')+1:]}
		index.Manifests = append(index.Manifests, named)
	}
	docker := dockerManifest{Config: blobPath(config.Digest), RepoTags: tags}
	for _, l := range layers {
		docker.Layers = append(docker.Layers, blobPath(l.Digest))
	}
	for _, f := range []struct {
		name  string
		value any
	}{{"oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}}, {"index.json", index},
		{"manifest.json", []dockerManifest{docker}}} {
		text, err := json.Marshal(f.value)
		if err != nil {
			return errors.Wrapf(err, "encode %s", f.name)
		}
		if err := a.file(f.name, int64(len(text)),
			func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
			return err
		}
	}
	return nil
}

// dockerManifest is an entry of Docker's manifest.json.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func blobPath(digest v1.Hash) string { return "blobs/sha256/" + digest.Hex }

// json writes a value as a blob.
func (a *archive) json(media types.MediaType, value any) (v1.Descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return v1.Descriptor{}, errors.Wrapf(err, "encode a part of the image")
	}
	digest, size, err := v1.SHA256(bytes.NewReader(text))
	if err != nil {
		return v1.Descriptor{}, errors.Wrapf(err, "sum a part of the image")
	}
	d := v1.Descriptor{MediaType: media, Size: size, Digest: digest}
	return d, a.blob(d, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// blob writes a blob unless it is already in the archive.
func (a *archive) blob(d v1.Descriptor, write func(io.Writer) error) error {
	if slices.Contains(a.seen, d.Digest.Hex) {
		return nil
	}
	a.seen = append(a.seen, d.Digest.Hex)
	return a.file(blobPath(d.Digest), d.Size, write)
}

func (a *archive) file(name string, size int64, write func(io.Writer) error) error {
	if err := context.Cause(a.ctx); err != nil {
		return err
	}
	hdr := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: epoch,
		Format: tar.FormatPAX}
	if err := a.tw.WriteHeader(hdr); err != nil {
		return errors.Wrapf(err, "write %s", name)
	}
	return errors.Wrapf(write(a.tw), "write %s", name)
}

// configFileOf returns the configuration in the form of OCI. The instructions of the history are entries without
// layers, because the layers of an export are others.
func configFileOf(img image.Image, layers []v1.Descriptor) *dockerspec.DockerOCIImage {
	file := img.Config.Docker()
	file.Created, file.RootFS.Type = &img.Built, "layers"
	file.OS, file.Architecture = "linux", runtime.GOARCH
	if p, err := platforms.Parse(img.Spec.Platform); err == nil {
		file.Platform = p
	}
	for i := range file.History {
		file.History[i].EmptyLayer = true
	}
	for _, l := range layers {
		file.RootFS.DiffIDs = append(file.RootFS.DiffIDs, digest.Digest(l.Digest.String()))
		file.History = append(file.History, ocispecs.History{Created: &img.Built, CreatedBy: "harvest image export"})
	}
	return file
}

// tagsOf returns the names that other tools can use for the image: those with a tag instead of a
// digest.
func tagsOf(names []string) []string {
	var tags []string
	for _, n := range names {
		tag, err := name.NewTag(n)
		if err != nil || strings.Contains(n, "@") {
			continue
		}
		if !strings.Contains(n[strings.LastIndexByte(n, '/')+1:], ":") {
			n += ":" + tag.TagStr()
		}
		tags = append(tags, n)
	}
	return tags
}
