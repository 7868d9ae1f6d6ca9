package preparation

import (
	"context"

	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// Repos provides images of repositories, in which the repository is cloned, installed and built.
type Repos interface {
	// Image returns the image for a repository's branch ("" for its default), or false.
	Image(ctx context.Context, account, url, branch string) (records.RepoImage, bool)
	// Lookup returns an image that the account may use.
	Lookup(ctx context.Context, account, ref string) (image.Image, error)
	// Saw records how many commits an image was behind its repository when a session started from it.
	Saw(ctx context.Context, img records.RepoImage, behind int)
}

// RepoImage returns the repository image that replaces the image of req, nil if none is suitable.
func (p Preparer) RepoImage(ctx context.Context, s Session, req spec.Request) *records.RepoImage {
	first := s.Repos[0]
	if p.Images == nil || first.URL == "" || req.Image != s.Image || len(req.Commands) > 0 || req.User != "" {
		return nil
	}
	img, ok := p.Images.Image(ctx, s.Account, first.URL, first.Branch)
	if !ok || img.Dir != first.Dir || img.Base == "base" && s.Image != "base" { // the base image has no agents
		return nil
	}
	return &img
}
