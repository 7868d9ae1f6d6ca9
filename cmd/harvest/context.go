//go:build linux && (amd64 || arm64) && !clientonly

package main

import (
	"context"
	"io"

	"github.com/RelevanceAI/harvest/image/dockerfile"
)

// contextOf returns the files of a build context as a tar stream, without those that its .dockerignore
// excludes.
func contextOf(ctx context.Context, directory, file string) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(dockerfile.Pack(ctx, directory, file, w)) }()
	return r
}
