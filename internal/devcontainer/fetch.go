package devcontainer

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/image"
)

// The default limits of one feature.
const (
	DefaultMaxBytes = 64 << 20
	DefaultMaxFiles = 10_000
)

const (
	maxManifest = 4 << 20 // bytes
	maxFetched  = 1 << 30 // bytes of all features of an environment; the last one may exceed it
)

// Fetcher fetches features into a directory, each reference once. Its method Feature is a Source.
type Fetcher struct {
	// Dir is the directory for the features. It must exist.
	Dir string
	// Repository has the local features, and Config is the path of the devcontainer.json in it. A nil Repository has
	// none. It must not follow symbolic links that leave it, as os.Root.FS does not.
	Repository fs.FS
	Config     string

	Transport http.RoundTripper // for registries and archives
	// Credentials returns the credentials for a registry; nil means none.
	Credentials func(ctx context.Context, registry string) (image.Credential, error)
	Insecure    []string // registries without TLS; those of this machine always may be
	Lock        Lock     // digests that features must have; others may have any

	MaxBytes, MaxFiles int64 // limits of one feature; 0 means the defaults

	mu      sync.Mutex
	known   map[string]*Feature // guarded by mu; by Reference.Text
	fetched int64               // guarded by mu; bytes of all features
}

// Feature returns the feature of a reference. Its Dir is relative to that of the Fetcher. Errors name the reference.
// Kinds: Invalid for something else than a feature, Exhausted for one that is too large, and those of registries:
// Unauthenticated, Denied, NotFound, Unavailable.
func (f *Fetcher) Feature(ctx context.Context, r Reference) (*Feature, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.known[r.Text]; known != nil {
		return known, nil
	}
	if len(f.known) >= maxFeatures || f.fetched > maxFetched {
		err := errors.Newf(errors.Exhausted, "the environment has more than %d features, or more than %d MiB of them",
			maxFeatures, maxFetched>>20)
		return nil, errors.Remedy(err, "use fewer features")
	}
	if f.Transport == nil && r.Local == "" {
		return nil, errors.Newf(errors.Unsupported, "feature %s: only features of the repository can be had here",
			r.Text)
	}
	dir := fmt.Sprint(len(f.known))
	into := filepath.Join(f.Dir, dir)
	var digest string
	var err error
	switch {
	case r.Local != "":
		err = f.local(r, into)
	case r.URL != "":
		digest, err = f.archive(ctx, r, into)
	default:
		digest, err = f.pull(ctx, r, into)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(into))
	}
	feature, err := readFeature(r, into)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(into))
	}
	f.fetched += sizeOf(into)
	feature.Reference, feature.Digest, feature.Dir = r, digest, dir
	if f.known == nil {
		f.known = map[string]*Feature{}
	}
	f.known[r.Text] = feature
	return feature, nil
}

// sizeOf returns the bytes of all files in a directory, as far as it can be read.
func sizeOf(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}

// readFeature reads the description of a feature.
func readFeature(r Reference, dir string) (*Feature, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errors.Wrapf(err, "open a feature")
	}
	defer root.Close()
	for _, needed := range []string{FeatureFile, "install.sh"} {
		if info, err := root.Stat(needed); err != nil || !info.Mode().IsRegular() {
			err := errors.Newf(errors.Invalid, "feature %s: has no file %s", r.Text, needed)
			return nil, errors.Remedy(err, "check the reference, or ask its author")
		}
	}
	file, err := root.Open(FeatureFile)
	if err != nil {
		return nil, errors.Wrapf(err, "open the description of a feature")
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, MaxBytes+1))
	if err != nil {
		return nil, errors.Wrapf(err, "read the description of a feature")
	}
	return ParseFeature(r.Text+"/"+FeatureFile, text)
}

func (f *Fetcher) maxBytes() int64 {
	if f.MaxBytes > 0 {
		return f.MaxBytes
	}
	return DefaultMaxBytes
}

func (f *Fetcher) maxFiles() int64 {
	if f.MaxFiles > 0 {
		return f.MaxFiles
	}
	return DefaultMaxFiles
}

// local copies a feature of the repository.
func (f *Fetcher) local(r Reference, into string) error {
	at := path.Join(path.Dir(f.Config), r.Local)
	if f.Repository == nil || !strings.HasPrefix(at, folder+"/") {
		err := errors.Newf(errors.Invalid, "feature %s: not in the directory %s of the repository", r.Text, folder)
		return errors.Remedy(err, "move it there; paths are relative to the devcontainer.json")
	}
	if info, err := fs.Lstat(f.Repository, at); err != nil || !info.IsDir() {
		err := errors.Newf(errors.NotFound, "feature %s: the repository has no directory %s", r.Text, at)
		return errors.Remedy(err, "correct the path; it is relative to the devcontainer.json")
	}
	var bytes, files int64
	err := fs.WalkDir(f.Repository, at, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(into, filepath.FromSlash(strings.TrimPrefix(strings.TrimPrefix(p, at), "/")))
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			err := errors.Newf(errors.Invalid, "feature %s: %.200q is not a regular file", r.Text, p)
			return errors.Remedy(err, "replace it by a file")
		}
		if files++; files > f.maxFiles() {
			return f.tooLarge(r)
		}
		n, err := copyFile(f.Repository, p, target, f.maxBytes()-bytes)
		if bytes += n; bytes > f.maxBytes() {
			return f.tooLarge(r)
		}
		return err
	})
	return errors.Wrapf(err, "copy the feature %s", r.Text)
}

// copyFile copies at most one byte more than limit.
func copyFile(from fs.FS, name, to string, limit int64) (int64, error) {
	in, err := from.Open(name)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, io.LimitReader(in, limit+1))
	return n, errors.Join(err, out.Close())
}

func (f *Fetcher) tooLarge(r Reference) error {
	err := errors.Newf(errors.Exhausted, "feature %s: has more than %d bytes or %d files", r.Text, f.maxBytes(),
		f.maxFiles())
	return errors.Remedy(err, "download large files in install.sh instead")
}

// archive fetches a feature from an address.
func (f *Fetcher) archive(ctx context.Context, r Reference, into string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
	if err != nil {
		return "", errors.Wrapf(err, "make a request")
	}
	resp, err := (&http.Client{Transport: confined{f.Transport, false}}).Do(req)
	if err != nil {
		return "", explain(r, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", refused(r, resp.StatusCode, errors.Errorf("%s", resp.Status))
	}
	digest, err := f.unpack(r, resp.Body, into)
	if want := f.Lock[r.Text]; err == nil && want != "" && digest != want {
		err := errors.Newf(errors.Invalid, "feature %s: the archive has the digest %s, not %s of the lock file", r.Text,
			digest, want)
		return "", errors.Remedy(err, "check the archive, and remove its entry from the lock file if it is right")
	}
	return digest, err
}

// unpack unpacks an archive, which may be compressed, and returns its digest.
func (f *Fetcher) unpack(r Reference, from io.Reader, into string) (string, error) {
	sum := sha256.New()
	limited := &io.LimitedReader{R: io.TeeReader(from, sum), N: f.maxBytes() + 1}
	buffered := bufio.NewReader(limited)
	content := io.Reader(buffered)
	if magic, _ := buffered.Peek(2); string(magic) == "\x1f\x8b" {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return "", notAnArchive(r, err)
		}
		content = unzipped
	}
	err := tarfs.UnpackAt(into, content, tarfs.Options{MaxBytes: f.maxBytes(), MaxEntries: f.maxFiles()})
	if err == nil {
		_, err = io.Copy(io.Discard, buffered)
	}
	switch {
	case limited.N <= 0 || errors.Is(err, errors.Exhausted):
		return "", f.tooLarge(r)
	case errors.Is(err, errors.Invalid) || errors.Is(err, gzip.ErrChecksum):
		return "", notAnArchive(r, err)
	case err != nil:
		return "", explain(r, err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

func notAnArchive(r Reference, err error) error {
	err = errors.Explainf(err, errors.Invalid, "feature %s: its archive is damaged or unsafe", r.Text)
	return errors.Remedy(err, "ask its author to publish it again")
}

// pull fetches a feature from a registry.
func (f *Fetcher) pull(ctx context.Context, r Reference, into string) (string, error) {
	var opts []name.Option
	if slices.Contains(f.Insecure, r.Registry) {
		opts = append(opts, name.Insecure)
	}
	repo, err := name.NewRepository(r.Registry+"/"+r.Repository, opts...)
	if err != nil {
		return "", badReference(errors.Explainf(err, errors.Invalid, "feature %s: not a reference", r.Text))
	}
	var ref name.Reference = repo.Tag(r.Tag)
	if digest := cmp.Or(r.Digest, f.Lock[r.Text]); digest != "" {
		ref = repo.Digest(digest)
	}
	auth, err := f.authenticator(ctx, r.Registry)
	if err != nil {
		return "", err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuth(auth),
		remote.WithTransport(confined{f.Transport, repo.Scheme() == "http"})}
	got, err := remote.Get(ref, options...)
	if err != nil {
		return "", explain(r, err)
	}
	layer, err := layerOf(r, got.Manifest)
	if err != nil {
		return "", err
	}
	if layer.Size > f.maxBytes() {
		return "", f.tooLarge(r)
	}
	blob, err := remote.Layer(repo.Digest(layer.Digest.String()), options...)
	if err != nil {
		return "", explain(r, err)
	}
	content, err := blob.Compressed() // which checks the digest
	if err != nil {
		return "", explain(r, err)
	}
	defer content.Close()
	if _, err := f.unpack(r, content, into); err != nil {
		return "", err
	}
	return got.Digest.String(), nil
}

// layerOf returns the layer of a feature's manifest.
func layerOf(r Reference, text []byte) (v1.Descriptor, error) {
	var m *v1.Manifest
	var err error
	if len(text) <= maxManifest {
		m, err = v1.ParseManifest(strings.NewReader(string(text)))
	}
	if err != nil || m == nil || m.Config.MediaType != "application/vnd.devcontainers" || len(m.Layers) == 0 {
		err := errors.Explainf(errors.Join(err, errors.Invalid), errors.Invalid, "%s: not a feature", r.Text)
		return v1.Descriptor{}, errors.Remedy(err, "check the reference: registries have images and other objects, too")
	}
	return m.Layers[0], nil
}

func (f *Fetcher) authenticator(ctx context.Context, registry string) (authn.Authenticator, error) {
	if f.Credentials == nil {
		return authn.Anonymous, nil
	}
	c, err := f.Credentials(ctx, registry)
	if err != nil || c.Anonymous || c == (image.Credential{}) {
		return authn.Anonymous, errors.Wrapf(err, "find the credentials for %s", registry)
	}
	return authn.FromConfig(authn.AuthConfig{Username: c.User, Password: c.Password, RegistryToken: c.Token}), nil
}

// confined refuses addresses without TLS, unless the registry itself has no TLS.
type confined struct {
	next  http.RoundTripper
	plain bool
}

// RoundTrip implements http.RoundTripper.
func (c confined) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "https" || c.plain && req.URL.Scheme == "http" {
		return c.next.RoundTrip(req)
	}
	if req.Body != nil {
		req.Body.Close()
	}
	return nil, netguard.Deny("the server leads to %.200q, an address without TLS", req.URL.Host)
}

// explain adds kind and text to the error of a connection.
func explain(r Reference, err error) error {
	var status *transport.Error
	if denied := netguard.Refusal(err); denied != nil {
		return errors.Explainf(denied, errors.Denied, "feature %s: %s", r.Text, errors.Message(denied))
	}
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return errors.Wrapf(err, "fetch the feature %s", r.Text)
	case errors.As(err, &status):
		return refused(r, status.StatusCode, err)
	}
	err = errors.Explainf(err, errors.Unavailable, "feature %s: cannot be fetched", r.Text)
	return errors.Remedy(err, "check the reference and the network, and try again")
}

// refused returns the error for an HTTP status.
func refused(r Reference, status int, cause error) error {
	kind, text, remedy := errors.Unavailable, fmt.Sprintf("the server answered with the status %d", status),
		"try again later"
	switch {
	case status == http.StatusUnauthorized:
		kind, text = errors.Unauthenticated, "does not exist, or needs credentials"
		remedy = "check the reference; for a private feature add credentials for " + r.Registry
	case status == http.StatusForbidden:
		kind, text, remedy = errors.Denied, "the server denies access", "use credentials that may read it"
	case status == http.StatusNotFound:
		kind, text, remedy = errors.NotFound, "does not exist", "check the name and the version"
	case status == http.StatusTooManyRequests:
		text = "the server got too many requests from this machine"
	}
	return errors.Remedy(errors.Explainf(cause, kind, "feature %s: %s", r.Text, text), "%s", remedy)
}
