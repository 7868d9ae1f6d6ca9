//go:build keeper

package app

import "context"

// servesS3 reports whether this program contains the embedded S3. Here it is a program of package inner.
const servesS3 = false

func s3Main(context.Context) {}
