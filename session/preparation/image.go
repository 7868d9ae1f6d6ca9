package preparation

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/sandbox"
)

// Repos provides images of repositories, in which the repository is cloned, installed and built.
type Repos interface {
	// Image returns the image for a repository's branch ("" for its default), or false.
	Image(ctx context.Context, account, url, branch string) (RepoImage, bool)
	// Saw records how many commits an image was behind its repository when a session started from it.
	Saw(ctx context.Context, img RepoImage, behind int)
}

// RepoImage is the image of a repository.
type RepoImage struct {
	Repo   string    `json:"-"` // id
	Image  string    `json:"image_id"`
	Base   string    `json:"-"` // name of the image that it was built from
	Dir    string    `json:"-"`
	Branch string    `json:"branch"`
	Commit string    `json:"image_commit"`
	Built  time.Time `json:"image_built_at"`
}

// Synced is the result of updating a session that started from an image of its repository.
type Synced struct {
	RepoImage
	Behind int    `json:"commits_behind"`  // commits behind the newest one when the session began; -1 if unknown
	Commit string `json:"commit"`          // the starting commit after the update
	Error  string `json:"error,omitempty"` // why the update failed
}

// RepoImage returns the repository image that replaces the image of req, nil if none is suitable.
func (p Preparer) RepoImage(ctx context.Context, s Session, req sandbox.Request) *RepoImage {
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
