package app

import (
	"context"
	"io"

	build "github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
)

// Context returns the files of a build context as a tar stream, without those that its .dockerignore
// excludes.
func Context(ctx context.Context, directory, file string) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(build.Pack(ctx, directory, file, w)) }()
	return r
}
