package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
)

// images is a builder with one image, which exists from the start.
type images struct {
	uses func(id string) bool

	mu   sync.Mutex
	base *image.Image // guarded by mu; nil after Delete
}

func newImages(uses func(id string) bool) *images {
	base := newBase()
	return &images{uses: uses, base: &base}
}

// newBase returns an image that describes the host.
func newBase() image.Image {
	sum := sha256.Sum256([]byte("the host"))
	digest := hex.EncodeToString(sum[:])
	path := os.Getenv("PATH")
	if path == "" {
		path = "/usr/local/bin:/usr/bin:/bin"
	}
	return image.Image{
		ID: "img_" + digest[:16], Digest: "sha256:" + digest, Names: []string{"base"}, Spec: image.Spec{Base: "base"},
		Config: image.Config{Env: map[string]string{"PATH": path, "LANG": "C.UTF-8"}, Dir: "/"},
		Built:  time.Now(), Parts: []image.Part{}, Missing: []image.Part{},
	}
}

func (i *images) Build(ctx context.Context, spec image.Spec, opts image.BuildOptions) (image.Image, error) {
	if err := ctx.Err(); err != nil {
		return image.Image{}, errors.Wrapf(err, "build an image")
	}
	if spec.Base != "base" {
		return image.Image{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no image %.100q",
			spec.Base), `use "base"`)
	}
	if opts.Progress != nil {
		opts.Progress(image.Progress{Step: "pack", Done: 1})
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.base == nil || opts.Force {
		base := newBase()
		i.base = &base
	}
	return *i.base, nil
}

func (i *images) Find(_ context.Context, ref string) (image.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.base != nil && ref != "" && (ref == "base" || ref == i.base.Digest || strings.HasPrefix(i.base.ID, ref)) {
		return *i.base, nil
	}
	return image.Image{}, errors.Newf(errors.NotFound, "there is no image %.100q", ref)
}

func (i *images) List(context.Context) ([]image.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.base == nil {
		return []image.Image{}, nil
	}
	return []image.Image{*i.base}, nil
}

func (i *images) Delete(ctx context.Context, id string) error {
	found, err := i.Find(ctx, id)
	if err != nil {
		return err
	}
	if i.uses(found.ID) {
		return errors.Newf(errors.Conflict, "image %s is in use", found.ID)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.base = nil
	return nil
}
