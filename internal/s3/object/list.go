package object

import (
	"context"
	"iter"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Object is an object in a list.
type Object struct {
	Key  string // relative to the prefix
	Size int64
	ETag string
	Time time.Time
}

// Check checks that the bucket exists and can be listed.
func (b *Bucket) Check(ctx context.Context) error {
	_, err := b.page(ctx, &sdk.ListObjectsV2Input{Bucket: &b.loc.Bucket, Prefix: aws.String(b.prefix),
		MaxKeys: aws.Int32(1)})
	return err
}

// Empty reports whether there is no object below the prefix, apart from reserved ones.
func (b *Bucket) Empty(ctx context.Context) (bool, error) {
	for _, err := range b.Objects(ctx) {
		return false, err
	}
	return true, nil
}

// Objects lists the objects below the prefix, without reserved ones, in the byte order of their
// keys.
func (b *Bucket) Objects(ctx context.Context) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		last := ""
		for o, err := range b.All(ctx, func(page []types.Object) error { return inOrder(&last, page) }) {
			if err == nil && strings.HasPrefix(o.Key, tree.Reserved+"/") {
				continue
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

// inOrder checks a page before it is used, and records the last key. Two lists are compared by a
// merge: in another order, existing objects would seem to be missing.
func inOrder(last *string, page []types.Object) error {
	for i := range page {
		key := aws.ToString(page[i].Key)
		if key <= *last {
			return errors.Remedy(errors.Newf(errors.Unsupported,
				"the server lists %.200q after %.200q, not in the order of their bytes", key, *last),
				"use a bucket that lists keys in order: directory buckets (S3 Express) do not")
		}
		*last = key
	}
	return nil
}

// All lists all objects below the prefix except that of the prefix itself. check sees each page
// before its objects are yielded.
func (b *Bucket) All(ctx context.Context, check func([]types.Object) error) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		in := &sdk.ListObjectsV2Input{Bucket: &b.loc.Bucket, Prefix: aws.String(b.prefix)}
		for page, err := range b.pages(ctx, in) {
			if err == nil {
				err = check(page.Contents)
			}
			if err != nil {
				yield(Object{}, err)
				return
			}
			for i := range page.Contents {
				o := &page.Contents[i]
				key, ok := strings.CutPrefix(aws.ToString(o.Key), b.prefix)
				if !ok || key == "" {
					continue
				}
				if !yield(Object{key, aws.ToInt64(o.Size), Unquote(aws.ToString(o.ETag)), aws.ToTime(o.LastModified)},
					nil) {
					return
				}
			}
		}
	}
}

// AnyOrder is a check for callers that need no order.
func AnyOrder([]types.Object) error { return nil }

// pages yields the pages of a list, up to the last or the first error.
func (b *Bucket) pages(ctx context.Context, in *sdk.ListObjectsV2Input) iter.Seq2[*sdk.ListObjectsV2Output, error] {
	return func(yield func(*sdk.ListObjectsV2Output, error) bool) {
		for {
			page, err := b.page(ctx, in)
			if !yield(page, err) || err != nil {
				return
			}
			if !aws.ToBool(page.IsTruncated) || aws.ToString(page.NextContinuationToken) == "" {
				return
			}
			in.ContinuationToken = page.NextContinuationToken
		}
	}
}

// page requests one page of a list. XML cannot hold all characters of keys, so it requests URL
// encoding, and decodes the keys if the server says that they are encoded. AWS and MinIO do this;
// other servers ignore the request.
func (b *Bucket) page(ctx context.Context, in *sdk.ListObjectsV2Input) (*sdk.ListObjectsV2Output, error) {
	call, cancel := b.within(ctx, 0)
	defer cancel()
	in.EncodingType = types.EncodingTypeUrl
	page, err := b.s3.ListObjectsV2(call, in, b.patiently)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, b.Explain(err)
	}
	if page.EncodingType != types.EncodingTypeUrl {
		return page, nil
	}
	for i := range page.Contents {
		if err := decodeListed(page.Contents[i].Key); err != nil {
			return nil, err
		}
	}
	for i := range page.CommonPrefixes {
		if err := decodeListed(page.CommonPrefixes[i].Prefix); err != nil {
			return nil, err
		}
	}
	return page, nil
}

// decodeListed decodes a key in a list. A plus is a space, as in a form.
// Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html, encoding-type
func decodeListed(text *string) error {
	if text == nil || !strings.ContainsAny(*text, "%+") {
		return nil
	}
	key, err := url.QueryUnescape(*text)
	if err != nil {
		return errors.Remedy(errors.Newf(errors.Unavailable,
			"the server lists the key %.200q with an invalid encoding", *text),
			"check that the endpoint is an S3 server")
	}
	*text = key
	return nil
}

// UploadsBegun lists uploads in parts below the prefix that are neither complete nor aborted.
func (b *Bucket) UploadsBegun(ctx context.Context) iter.Seq2[types.MultipartUpload, error] {
	return func(yield func(types.MultipartUpload, error) bool) {
		in := &sdk.ListMultipartUploadsInput{Bucket: &b.loc.Bucket, Prefix: aws.String(b.prefix),
			EncodingType: types.EncodingTypeUrl}
		for {
			call, cancel := b.within(ctx, 0)
			page, err := b.s3.ListMultipartUploads(call, in, b.patiently)
			cancel()
			if err != nil {
				yield(types.MultipartUpload{}, b.failed(ctx, err))
				return
			}
			encoded := page.EncodingType == types.EncodingTypeUrl
			for _, u := range page.Uploads {
				if encoded {
					err = decodeListed(u.Key)
				}
				if !yield(u, err) || err != nil {
					return
				}
			}
			if !aws.ToBool(page.IsTruncated) || aws.ToString(page.NextKeyMarker) == "" {
				return
			}
			if encoded {
				if err := decodeListed(page.NextKeyMarker); err != nil {
					yield(types.MultipartUpload{}, err)
					return
				}
			}
			in.KeyMarker, in.UploadIdMarker = page.NextKeyMarker, page.NextUploadIdMarker
		}
	}
}
