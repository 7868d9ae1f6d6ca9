package object

import (
	"cmp"
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Limits for copies, in bytes: the largest object to copy in one request (S3's limit is 5 GiB), and
// the size of the parts of a larger one.
const (
	MaxCopy  = 5 << 30
	copyPart = 1 << 30
)

// CopyEntry makes the server copy an entry's object from another prefix.
func (b *Bucket) CopyEntry(ctx context.Context, from *Bucket, e *tree.Entry) (*tree.Entry, error) {
	out := *e
	key := e.KeyUnder(from.prefix)
	out.Key = ""
	if to := out.KeyUnder(b.prefix); to != out.Order() {
		out.Key = to
	}
	target := out.KeyUnder(b.prefix)
	if e.BodySize() > MaxCopy {
		call, cancel := b.within(ctx, 10*time.Minute)
		defer cancel()
		etag, err := b.CopyParts(call, copySource(from, key), b.prefix+target, e, copyPart)
		out.ETag = etag
		return &out, err
	}
	etag, err := b.CopyFrom(ctx, from, key, target, e.ETag)
	if err != nil {
		return nil, err
	}
	out.ETag = cmp.Or(etag, out.ETag)
	return &out, nil
}

// copySource returns the source of a copy in the form of the request header.
func copySource(from *Bucket, key string) string {
	return url.PathEscape(from.loc.Bucket) + "/" + escapeKey(from.prefix+key)
}

// CopyFrom copies an object of at most MaxCopy bytes that still has its ETag. It returns the ETag
// of the copy, or "" if the server does not return it.
func (b *Bucket) CopyFrom(ctx context.Context, from *Bucket, key, target, etag string) (string, error) {
	call, cancel := b.within(ctx, 10*time.Minute)
	defer cancel()
	source := copySource(from, key)
	res, err := b.s3.CopyObject(call, &sdk.CopyObjectInput{Bucket: &b.loc.Bucket, Key: aws.String(b.prefix + target),
		CopySource:        &source,
		CopySourceIfMatch: aws.String(`"` + etag + `"`)}, b.patiently)
	if err != nil {
		return "", b.failed(ctx, err)
	}
	if res.CopyObjectResult == nil {
		return "", nil
	}
	return Unquote(aws.ToString(res.CopyObjectResult.ETag)), nil
}

// CopyParts copies an object in parts, if it is too large for one request.
func (b *Bucket) CopyParts(ctx context.Context, source, target string, e *tree.Entry, size int64) (string, error) {
	begun, err := b.s3.CreateMultipartUpload(ctx, &sdk.CreateMultipartUploadInput{Bucket: &b.loc.Bucket,
		Key: &target}, b.patiently)
	if err != nil {
		return "", b.failed(ctx, err)
	}
	failed := func(err error) (string, error) {
		b.AbortUpload(context.WithoutCancel(ctx), strings.TrimPrefix(target, b.prefix), aws.ToString(begun.UploadId))
		return "", b.failed(ctx, err)
	}
	var done []types.CompletedPart
	for at := int64(0); at < e.BodySize(); at += size {
		part := aws.Int32(int32(len(done) + 1))
		reach := "bytes=" + strconv.FormatInt(at, 10) + "-" + strconv.FormatInt(min(at+size, e.BodySize())-1, 10)
		res, err := b.s3.UploadPartCopy(ctx, &sdk.UploadPartCopyInput{Bucket: &b.loc.Bucket, Key: &target,
			CopySource: &source, CopySourceRange: &reach,
			CopySourceIfMatch: aws.String(`"` + e.ETag + `"`), PartNumber: part, UploadId: begun.UploadId}, b.patiently)
		if err == nil && res.CopyPartResult == nil {
			err = ErrDamaged
		}
		if err != nil {
			return failed(err)
		}
		done = append(done, types.CompletedPart{ETag: res.CopyPartResult.ETag, PartNumber: part})
	}
	res, err := b.s3.CompleteMultipartUpload(ctx, &sdk.CompleteMultipartUploadInput{Bucket: &b.loc.Bucket, Key: &target,
		UploadId:        begun.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: done}}, b.patiently)
	if err != nil {
		return failed(err)
	}
	return Unquote(aws.ToString(res.ETag)), nil
}
