package oci

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/platforms"
	"github.com/docker/go-units"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

const (
	parallel    = 4       // concurrent downloads of layers
	maxManifest = 4 << 20 // bytes; the limit of most registries too
	maxLayers   = 1000    // Docker's own limit is 127
)

// manifestOf has the fields that distinguish manifests from indexes.
type manifestOf struct {
	SchemaVersion int               `json:"schemaVersion"`
	Manifests     []json.RawMessage `json:"manifests"`
	Layers        []json.RawMessage `json:"layers"`
}

// maxNested is the maximum depth of indexes in indexes.
const maxNested = 3

// resolve returns the digest of the manifest that a reference means on a platform. It stores the
// manifest and the image's configuration.
func (s *Source) resolve(ctx context.Context, r *remote, want platforms.Platform) (v1.Hash, error) {
	return s.find(ctx, r, r.ref.Identifier(), want, 0)
}

func (s *Source) find(ctx context.Context, r *remote, identifier string, want platforms.Platform,
	depth int) (v1.Hash, error) {
	text, digest, err := s.manifest(ctx, r, identifier)
	if err != nil {
		return v1.Hash{}, err
	}
	var kind manifestOf
	if err := json.Unmarshal(text, &kind); err != nil {
		return v1.Hash{}, errors.Explainf(err, errors.Invalid, "the manifest of %s cannot be read", r.ref.Name())
	}
	switch {
	case kind.SchemaVersion == 1:
		err := errors.Newf(errors.Unsupported, "%s has the format that Docker deprecated in 2017", r.ref.Name())
		return v1.Hash{}, errors.Remedy(err, "push it again with a current tool")
	case kind.Manifests == nil:
		_, _, err := s.image(ctx, r, digest, want)
		return digest, err
	case depth == maxNested:
		err := errors.Newf(errors.Invalid, "the index of %s lists only other indexes", r.ref.Name())
		return v1.Hash{}, errors.Remedy(err, "push the image itself, or one index of its platforms")
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(text))
	if err != nil {
		return v1.Hash{}, errors.Explainf(err, errors.Invalid, "the index of %s cannot be read", r.ref.Name())
	}
	all, others := choose(index, want)
	err = wrongPlatform(r.ref.Name(), want, others)
	for _, d := range all {
		if err := checkDescriptor(d); err != nil {
			return v1.Hash{}, err
		}
		var found v1.Hash
		if found, err = s.find(ctx, r, d.Digest.String(), want, depth+1); errors.KindOf(err) != errors.Unsupported {
			return found, err
		}
	}
	return v1.Hash{}, err
}

// manifest returns a manifest by tag or digest. A manifest with a known digest is requested only
// once.
func (s *Source) manifest(ctx context.Context, r *remote, identifier string) ([]byte, v1.Hash, error) {
	want, err := v1.NewHash(identifier)
	if err == nil {
		if text, err := r.small(want); text != nil || err != nil {
			return text, want, err
		}
	}
	var text []byte
	err = r.each(ctx, func(session *session) (err error) {
		text, err = r.manifest(ctx, session, identifier)
		return err
	})
	if err != nil {
		return nil, v1.Hash{}, err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(text))
	if err != nil {
		return nil, v1.Hash{}, errors.Wrapf(err, "sum a manifest")
	}
	if want.Hex != "" && digest != want {
		err := errors.Newf(errors.Unavailable, "the registry sent a manifest that does not match the digest of %s",
			r.ref.Name())
		return nil, v1.Hash{}, errors.Remedy(err,
			"try again; if it fails again, check the registry and any proxy before it")
	}
	return text, digest, r.blobs.put(ctx, digest, text)
}

// small returns the content of a small blob, or nil if it is missing or damaged.
func (r *remote) small(digest v1.Hash) ([]byte, error) {
	f, err := r.blobs.open(digest)
	if f == nil || err != nil {
		return nil, err
	}
	defer f.Close()
	return check(f, digest)
}

func check(f *os.File, digest v1.Hash) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return nil, errors.Wrapf(err, "read a blob")
	}
	if sum, _, err := v1.SHA256(bytes.NewReader(text)); err != nil || sum != digest {
		return nil, errors.Wrapf(err, "sum a blob")
	}
	return text, nil
}

// image returns the manifest of that digest and its configuration, which must be for that platform.
func (s *Source) image(ctx context.Context, r *remote, digest v1.Hash,
	want platforms.Platform) (*v1.Manifest, *dockerspec.DockerOCIImage, error) {
	text, _, err := s.manifest(ctx, r, digest.String())
	if err != nil {
		return nil, nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return nil, nil, errors.Explainf(err, errors.Invalid, "the manifest of %s cannot be read", r.ref.Name())
	}
	if !m.Config.MediaType.IsConfig() || len(m.Layers) > maxLayers || m.Config.Size > maxManifest {
		err := errors.Newf(errors.Unsupported, "%s is not an image of a file system (%.100s)", r.ref.Name(),
			m.Config.MediaType)
		return nil, nil, errors.Remedy(err, "name an image: registries store other objects too")
	}
	if err := checkDescriptor(m.Config); err != nil {
		return nil, nil, err
	}
	if text, err := r.small(m.Config.Digest); err != nil {
		return nil, nil, err
	} else if text == nil {
		if err := r.blobs.discard(m.Config.Digest); err != nil { // it is damaged
			return nil, nil, err
		}
	}
	f, err := r.blobs.fetch(ctx, r, m.Config, func(int64) {})
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	config := &dockerspec.DockerOCIImage{}
	err = json.NewDecoder(f).Decode(config)
	for _, diffID := range config.RootFS.DiffIDs {
		err = errors.Join(err, diffID.Validate())
	}
	if err != nil {
		return nil, nil, errors.Explainf(err, errors.Invalid, "the configuration of %s cannot be read", r.ref.Name())
	}
	if len(config.RootFS.DiffIDs) != len(m.Layers) {
		return nil, nil, errors.Newf(errors.Invalid, "the configuration of %s does not fit its layers", r.ref.Name())
	}
	has := &v1.Platform{OS: cmp.Or(config.OS, want.OS), Architecture: cmp.Or(config.Architecture, want.Architecture),
		Variant: config.Variant}
	if !fits(want, has) {
		return nil, nil, wrongPlatform(r.ref.Name(), want, []string{has.String()})
	}
	return m, config, nil
}

// pull is an image being pulled.
type pull struct {
	source   *Source
	remote   *remote
	progress func(image.Progress)

	digest   v1.Hash
	manifest *v1.Manifest
	config   *dockerspec.DockerOCIImage

	mu                      sync.Mutex
	total, fetched, written int64 // guarded by mu; compressed bytes
	last                    time.Time
}

// describe reads the manifest and the configuration of the image.
func (p *pull) describe(ctx context.Context, want platforms.Platform) error {
	d, ok := p.remote.ref.(name.Digest)
	if !ok {
		return errors.Errorf("%s is not resolved", p.remote.ref.Name())
	}
	digest, err := v1.NewHash(d.DigestStr())
	if err != nil {
		return errors.Wrapf(err, "parse a digest")
	}
	p.digest = digest
	p.manifest, p.config, err = p.source.image(ctx, p.remote, digest, want)
	if err != nil {
		return err
	}
	for _, l := range p.manifest.Layers {
		if l.Size < 0 || l.Size > p.source.opts.MaxBytes-p.total {
			return p.source.limits(errors.Newf(errors.Exhausted, "the layers of %s have more than %s",
				p.remote.ref.Name(), units.BytesSize(float64(p.source.opts.MaxBytes))))
		}
		p.total += l.Size
	}
	return nil
}

// run downloads several layers at once, and writes finished ones in their order.
func (p *pull) run(ctx context.Context, w *rootfs.Writer) error {
	group, ctx := errgroup.WithContext(ctx)
	layers := make([]chan *os.File, len(p.manifest.Layers))
	for i := range layers {
		layers[i] = make(chan *os.File, 1)
	}
	group.Go(func() error { return p.write(ctx, w, layers) })
	slots := make(chan struct{}, parallel)
	for i, l := range p.manifest.Layers {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			defer func() { <-slots }()
			f, err := p.remote.blobs.fetch(ctx, p.remote, l, func(n int64) { p.report(n, 0) })
			if err != nil {
				return errors.Stage(err, "image: download")
			}
			layers[i] <- f
			return nil
		})
	}
	err := group.Wait()
	for _, l := range layers {
		select {
		case f := <-l: // not used
			f.Close()
		default:
		}
	}
	return err
}

// write writes the layers, each over the previous ones.
func (p *pull) write(ctx context.Context, w *rootfs.Writer, layers []chan *os.File) error {
	for i, l := range layers {
		select {
		case f := <-l:
			err := p.layer(ctx, w, f, p.config.RootFS.DiffIDs[i])
			if errors.KindOf(err) == errors.Invalid {
				err = p.remote.blobs.blame(f, p.manifest.Layers[i].Digest, err)
			}
			f.Close()
			if err != nil {
				return errors.Stage(errors.Wrapf(err, "layer %d of %s", i+1, p.remote.ref.Name()), "image: unpack")
			}
			p.report(0, p.manifest.Layers[i].Size)
		case <-ctx.Done():
			return errors.Wrapf(context.Cause(ctx), "wait for a layer")
		}
	}
	return nil
}

func (p *pull) layer(ctx context.Context, w *rootfs.Writer, f *os.File, diffID digest.Digest) error {
	want, err := v1.NewHash(diffID.String())
	if err != nil {
		return errors.Wrapf(err, "parse a digest")
	}
	content, err := openLayer(ctx, f, want)
	if err != nil {
		return err
	}
	err = w.AddLayer(content, nil)
	return errors.Join(err, content.finish(err == nil))
}

// every is the interval of progress reports.
const every = 100 * time.Millisecond

// report counts bytes and reports the progress. Downloading is most of the work.
func (p *pull) report(fetched, written int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetched, p.written = p.fetched+fetched, p.written+written
	if now := time.Now(); p.fetched == p.total || now.Sub(p.last) >= every {
		p.last = now
	} else {
		return
	}
	total := float64(max(p.total, 1))
	told := image.Progress{Step: "download", Done: 0.7*float64(p.fetched)/total + 0.25*float64(p.written)/total}
	told.Message = fmt.Sprintf("%s of %s", units.HumanSize(float64(p.fetched)), units.HumanSize(float64(p.total)))
	if p.fetched == p.total {
		told.Step = "unpack"
	}
	p.progress(told)
}
