//go:build !keeper && !race

package app

import (
	"context"

	s3serve "github.com/RelevanceAI/harvest/internal/s3/embedded/serve"
)

// servesS3 reports whether this program contains the embedded S3. It does if it was built without package
// inner's programs.
const servesS3 = true

func s3Main(ctx context.Context) { s3serve.Main(ctx) }
