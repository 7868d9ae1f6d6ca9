// Package oci pulls images from registries, in the formats of OCI and Docker, and writes images as
// OCI archives.
//
// The blobs of all images of an account are stored once in a directory, under the digest by which
// they were requested and checked. Layers go from there into one EROFS image in a single pass,
// without unpacking.
package oci

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"runtime"
	"time"

	"github.com/containerd/platforms"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

// recipe is the version of the image format. Changing it makes new images of the same manifests.
const recipe = 1

// Options configures a Source.
type Options struct {
	Dir string // directory of blobs; created if missing
	// CertificateDir holds this machine's certificate authorities (*.crt) that images trust too. ""
	// means none.
	CertificateDir string
	// Mirrors are tried before the registry itself, by its host: "docker.io":
	// {"mirror.example.org", "10.0.0.1:5000/prefix"}.
	Mirrors  map[string][]string
	Insecure []string // hosts to reach without TLS; this machine and private addresses always may
	// MaxBytes and MaxFiles limit the unpacked size of an image; 0 means DefaultMaxBytes and
	// DefaultMaxFiles.
	MaxBytes, MaxFiles int64
	// Transport makes the connections for images of an owner. nil means that all owners can reach
	// only the internet. Owners who may reach different addresses must not share connections.
	Transport func(owner string) http.RoundTripper
}

// The default limits for the unpacked size of an image.
const (
	DefaultMaxBytes = 32 << 30
	DefaultMaxFiles = 4_000_000
)

// Source pulls images from registries. It implements image.Source.
type Source struct {
	opts  Options
	blobs *blobs
	pause time.Duration // before the first retry of a request
	stall time.Duration // maximum time without data from a registry
}

// Open returns a Source. An error is about the directory.
func Open(opts Options) (*Source, error) {
	if opts.MaxBytes == 0 {
		opts.MaxBytes = DefaultMaxBytes
	}
	if opts.MaxFiles == 0 {
		opts.MaxFiles = DefaultMaxFiles
	}
	if opts.Transport == nil {
		t := NewTransport(netguard.Rules{})
		opts.Transport = func(string) http.RoundTripper { return t }
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, errors.Wrapf(err, "find the directory of blobs")
	}
	b, err := openBlobs(dir)
	if err != nil {
		return nil, tarfs.Explain(err, opts.Dir)
	}
	return &Source{opts: opts, blobs: b, pause: time.Second, stall: time.Minute}, nil
}

// Resolve implements image.Source. It asks the registry for a tag. It asks for a digest only if its
// owner has never fetched the manifest.
func (s *Source) Resolve(ctx context.Context, spec image.Spec, opts image.BuildOptions) (image.Spec, []byte, error) {
	certs, err := trust.Read(s.opts.CertificateDir)
	if err != nil {
		return image.Spec{}, nil, err
	}
	want, err := parsePlatform(spec.Platform, opts.Foreign)
	if err != nil {
		return image.Spec{}, nil, err
	}
	ref, err := s.parse(spec.Base)
	if err != nil {
		return image.Spec{}, nil, err
	}
	r, err := s.remote(ref, spec.Owner, opts)
	if err != nil {
		return image.Spec{}, nil, err
	}
	digest, err := s.resolve(ctx, r, want)
	if err != nil {
		return image.Spec{}, nil, err
	}
	spec.Base, spec.Platform = ref.Context().Name()+"@"+digest.String(), platforms.Format(want)
	text, err := json.Marshal(struct {
		Recipe       int
		Certificates []trust.Certificate
		Variables    map[string]string `json:",omitempty"`
	}{recipe, certs, trust.Variables(certs)})
	return spec, text, errors.Wrapf(err, "encode the fingerprint")
}

// Build implements image.Source.
func (s *Source) Build(ctx context.Context, spec image.Spec, opts image.BuildOptions,
	out image.Output) (image.Contents, error) {
	ref, err := s.parse(spec.Base)
	if err != nil {
		return image.Contents{}, err
	}
	certs, err := trust.Read(s.opts.CertificateDir)
	if err != nil {
		return image.Contents{}, errors.Stage(err, "image: prepare")
	}
	r, err := s.remote(ref, spec.Owner, opts)
	if err != nil {
		return image.Contents{}, err
	}
	want, err := parsePlatform(spec.Platform, true) // which Resolve has checked
	if err != nil {
		return image.Contents{}, err
	}
	p := &pull{source: s, remote: r, progress: opts.Progress}
	if err := p.describe(ctx, want); err != nil {
		return image.Contents{}, errors.Stage(err, "image: download")
	}
	w := rootfs.NewWriter(out.Root, rootfs.Options{MaxBytes: s.opts.MaxBytes, MaxFiles: s.opts.MaxFiles})
	if err := p.run(ctx, w); err != nil {
		return image.Contents{}, s.limits(err)
	}
	env, err := trust.Add(w, certs)
	if err != nil {
		return image.Contents{}, errors.Stage(err, "image: configure")
	}
	parts := release(w)
	if _, err := w.Close(); err != nil {
		return image.Contents{}, errors.Stage(err, "image: pack")
	}
	config := image.ConfigOf(p.config)
	config.AddTrust(env)
	return image.Contents{Config: config,
		Parts: append(parts, image.Part{Name: ref.Context().Name(), Version: p.digest.String()})}, nil
}

// limits adds a remedy to the error of a reached limit.
func (s *Source) limits(err error) error {
	if errors.Is(err, errors.Exhausted) && errors.RemedyOf(err) == "" {
		err = errors.Remedy(err, "raise image_limits.bytes or image_limits.files if you trust the image")
	}
	return err
}

func platform() string { return "linux/" + runtime.GOARCH }

// parsePlatform parses a platform; "" is this machine's. It refuses those whose programs cannot run here, unless
// foreign is set.
func parsePlatform(text string, foreign bool) (platforms.Platform, error) {
	local := platforms.Normalize(platforms.DefaultSpec())
	if text == "" {
		return local, nil
	}
	p, err := platforms.Parse(text)
	if err != nil {
		err = errors.Explainf(err, errors.Invalid, "invalid platform %.100q", text)
		return p, errors.Remedy(err, "write it as linux/amd64 or linux/arm64/v8")
	}
	p = platforms.Normalize(p)
	if !foreign && (p.OS != local.OS || p.Architecture != local.Architecture) {
		err := errors.Newf(errors.Unsupported, "images for %.100q cannot run here: this machine is %s", text,
			platform())
		return p, errors.Remedy(err, "leave the platform out, or build on a machine of that platform")
	}
	return p, nil
}

// fits reports whether an image for p is one for want. Processors run programs for more general variants.
func fits(want platforms.Platform, p *v1.Platform) bool {
	has := platforms.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, OSVersion: p.OSVersion}
	return platforms.Only(want).Match(platforms.Normalize(has))
}

// choose returns the manifests of an index that may be for a platform, the best ones first, and the platforms of the
// others. A manifest may also have no platform in the index; its configuration decides.
func choose(index *v1.IndexManifest, want platforms.Platform) (all []v1.Descriptor, others []string) {
	var loose []v1.Descriptor
	for _, m := range index.Manifests {
		p := m.Platform
		switch {
		case m.Annotations["vnd.docker.reference.type"] != "" || p != nil && p.OS == "unknown": // attestations
		case p == nil:
			loose = append(loose, m)
		case fits(want, p):
			// Lists begin with the most general variant, which newer processors run too.
			all = append(all, m)
		default:
			others = append(others, p.String())
		}
	}
	return append(all, loose...), others
}

func wrongPlatform(name string, want platforms.Platform, has []string) error {
	err := errors.Newf(errors.Unsupported, "%s is not for %s but for %s", name, platforms.Format(want), join(has))
	return errors.Remedy(err, "choose another tag, or an image that has this platform too")
}
