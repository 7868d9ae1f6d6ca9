//go:build keeper

package main

import "context"

// servesS3 says whether this program has the embedded S3 in it; package inner has it.
const servesS3 = false

func s3Main(context.Context) {}
