package dockerfile

import (
	"context"

	"github.com/RelevanceAI/harvest/image"
)

// Shelf is an image library in which engines find also what a Cache has prepared for the machines of builds.
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

// Layer returns the path of the layer over it, "" for none.
func (s Shelf) Layer(img image.Image) string {
	if !s.Cache.Owns(img.ID) {
		return s.Library.Layer(img)
	}
	p, _ := s.Cache.Prepared(img.ID)
	return p.Layer
}

// Use keeps an image from being deleted until release. What the cache has prepared stays as long as a machine is started from it.
func (s Shelf) Use(id, who string) (release func(), err error) {
	if s.Cache.Owns(id) {
		return func() {}, nil
	}
	return s.Library.Use(id, who)
}
