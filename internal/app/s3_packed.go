//go:build keeper || race

package app

import "context"

// servesS3 reports whether this program contains the embedded S3. Here it is an embedded program. Like
// gVisor, it is not in programs with the race detector that were built without that package.
const servesS3 = false

func s3Main(context.Context) {}
