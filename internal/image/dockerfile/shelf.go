package dockerfile

import (
	"context"

	"github.com/RelevanceAI/harvest/internal/image"
)

// Shelf is an image library in which engines also find the root file systems that a Cache has
// prepared for builds.
type Shelf struct {
	*image.Library
	Cache *Cache
}

// Find implements image.Builder.
func (s Shelf) Find(ctx context.Context, ref string) (image.Image, error) {
	if !s.Cache.Owns(ref) {
		return s.Library.Find(ctx, ref)
	}
	_, err := s.Cache.Prepared(ref)
	return image.Image{ID: ref}, err
}

// Root returns the path of the EROFS file.
func (s Shelf) Root(img image.Image) string {
	if !s.Cache.Owns(img.ID) {
		return s.Library.Root(img)
	}
	p, _ := s.Cache.Prepared(img.ID)
	return p.Root
}

// Layer returns the path of the layer over it, or "".
func (s Shelf) Layer(img image.Image) string {
	if !s.Cache.Owns(img.ID) {
		return s.Library.Layer(img)
	}
	p, _ := s.Cache.Prepared(img.ID)
	return p.Layer
}

// Use protects an image from deletion until release is called. Root file systems of the cache need
// no protection: they stay while a machine starts from them.
func (s Shelf) Use(id, who string) (release func(), err error) {
	if s.Cache.Owns(id) {
		return func() {}, nil
	}
	return s.Library.Use(id, who)
}
