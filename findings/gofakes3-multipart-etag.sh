#!/bin/sh
# Version: github.com/johannesboyne/gofakes3 v1.2.0, an S3 server for tests, with its backend in memory;
# aws-sdk-go-v2/service/s3 v1.114.7 as the client.
#
# Guess: the ETag in the answer to CompleteMultipartUpload is that of the object, as HeadObject reports it. Conditional
# writes work, as the server refuses a PutObject with If-None-Match: *, or with an ETag that is not the object's. So a
# client may upload in parts, keep the ETag, and replace the object only if nobody else has.
#
# Behaviour: CompleteMultipartUpload answers with an ETag of S3's form, with "-" and the number of parts. The object has
# another one, the MD5 of its content. So a PutObject with the ETag of the answer is refused, although nobody has
# changed the object. CompleteMultipartUpload itself ignores If-None-Match and replaces an object that exists, without
# an error.
#
# Output seen:
#   ETag of the answer has "-1": true, of the object: false
#   PutObject, If-Match with the ETag of the answer: PreconditionFailed
#   PutObject, If-None-Match: PreconditionFailed, content "one"
#   CompleteMultipartUpload, If-None-Match: no error, content "two"
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.26

require (
	github.com/aws/aws-sdk-go-v2 v1.47.6
	github.com/aws/aws-sdk-go-v2/credentials v1.20.14
	github.com/aws/aws-sdk-go-v2/service/s3 v1.114.7
	github.com/aws/smithy-go v1.28.8
	github.com/johannesboyne/gofakes3 v1.2.0
)
MOD
cat >main.go <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

var (
	ctx         = context.Background()
	bucket, key = aws.String("bucket"), aws.String("key")
)

func main() {
	server := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
	defer server.Close()
	c := s3.New(s3.Options{Region: "us-east-1", BaseEndpoint: &server.URL, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("id", "key", "")})
	_, err := c.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: bucket})
	must(err)

	etag, err := upload(c, "one", nil)
	must(err)
	head, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: bucket, Key: key})
	must(err)
	fmt.Printf("ETag of the answer has \"-1\": %t, of the object: %t\n", strings.Contains(*etag, "-1"),
		strings.Contains(*head.ETag, "-1"))

	_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader("two"), IfMatch: etag})
	fmt.Printf("PutObject, If-Match with the ETag of the answer: %s\n", code(err))
	_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader("two"),
		IfNoneMatch: aws.String("*")})
	fmt.Printf("PutObject, If-None-Match: %s, content %q\n", code(err), content(c))
	_, err = upload(c, "two", aws.String("*"))
	fmt.Printf("CompleteMultipartUpload, If-None-Match: %s, content %q\n", code(err), content(c))
}

// upload writes an object of one part, and returns the ETag of the answer.
func upload(c *s3.Client, text string, ifNoneMatch *string) (*string, error) {
	u, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: bucket, Key: key})
	must(err)
	part, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: bucket, Key: key, UploadId: u.UploadId,
		PartNumber: aws.Int32(1), Body: strings.NewReader(text)})
	must(err)
	done, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: bucket, Key: key,
		UploadId: u.UploadId, IfNoneMatch: ifNoneMatch, MultipartUpload: &types.CompletedMultipartUpload{
			Parts: []types.CompletedPart{{ETag: part.ETag, PartNumber: aws.Int32(1)}}}})
	if err != nil {
		return nil, err
	}
	return done.ETag, nil
}

func content(c *s3.Client) string {
	o, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: key})
	must(err)
	text, err := io.ReadAll(o.Body)
	must(err)
	return string(text)
}

func code(err error) string {
	var e smithy.APIError
	switch {
	case err == nil:
		return "no error"
	case errors.As(err, &e):
		return e.ErrorCode()
	}
	return err.Error()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
GO
GOFLAGS=-mod=mod go run . >seen 2>log || { cat log; exit 1; }
cat seen
cat >want <<'WANT'
ETag of the answer has "-1": true, of the object: false
PutObject, If-Match with the ETag of the answer: PreconditionFailed
PutObject, If-None-Match: PreconditionFailed, content "one"
CompleteMultipartUpload, If-None-Match: no error, content "two"
WANT
cmp seen want
