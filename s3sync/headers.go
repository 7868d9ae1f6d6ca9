package s3sync

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
)

const (
	metaPrefix    = "X-Amz-Meta-"
	taggingHeader = "X-Amz-Tagging"
)

// keptHeaders are headers of an object that other programs may have set, besides user metadata.
var keptHeaders = map[string]bool{"Content-Type": true, "Cache-Control": true, "Content-Disposition": true, "Content-Encoding": true,
	"Content-Language": true, "Expires": true}

// ownMeta are the names of the metadata that describe a file. They are not kept from other
// programs.
var ownMeta = map[string]bool{"Mode": true, "Uid": true, "Gid": true, "Mtime": true, "File-Permissions": true, "File-Owner": true,
	"File-Group": true, "File-Mtime": true}

// keep adds to h the headers, user metadata and tags that other programs set on the current object
// of key, so that a new object keeps them. It returns errChangedObject if that object is not the
// one of c.
func (b *Bucket) keep(ctx context.Context, key string, h http.Header, e *tree.Entry, c condition) error {
	if c.etag == "" || e.Kind != tree.File {
		return nil
	}
	res, err := b.head(ctx, key)
	if err != nil {
		return c.unmet(err)
	}
	if unquote(res.header.Get("ETag")) != c.etag {
		return errChangedObject
	}
	return b.adoptHeaders(ctx, key, h, res.header)
}

// adoptHeaders adds to h the headers that were set on the object of key. from is its answer to
// HEAD.
func (b *Bucket) adoptHeaders(ctx context.Context, key string, h, from http.Header) error {
	for name, value := range from {
		meta, user := strings.CutPrefix(name, metaPrefix)
		if user && !ownMeta[meta] || keptHeaders[name] {
			h[name] = value
		}
	}
	if n := from.Get("X-Amz-Tagging-Count"); n == "" || n == "0" {
		return nil
	}
	call, cancel := b.within(ctx, 0)
	defer cancel()
	tags, err := b.s3.GetObjectTagging(call, &s3.GetObjectTaggingInput{Bucket: &b.loc.Bucket, Key: aws.String(b.prefix + key)}, b.patiently)
	if err != nil {
		return errors.Wrapf(b.failed(ctx, err), "read the tags of an object")
	}
	all := url.Values{}
	for _, t := range tags.TagSet {
		all.Set(aws.ToString(t.Key), aws.ToString(t.Value))
	}
	h[taggingHeader] = []string{strings.ReplaceAll(all.Encode(), "+", "%20")}
	return nil
}

// userMeta returns the user metadata in h in the SDK's form.
func userMeta(h http.Header) map[string]string {
	meta := map[string]string{}
	for k, v := range h {
		if name, ok := strings.CutPrefix(k, metaPrefix); ok {
			meta[strings.ToLower(name)] = v[0]
		}
	}
	return meta
}

// field1 returns a header's value, or nil.
func field1(h http.Header, name string) *string {
	if v := h[name]; len(v) > 0 {
		return &v[0]
	}
	return nil
}
