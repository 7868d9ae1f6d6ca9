package object

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// This file has operations on single objects, for programs that serve them one by one. Paths are
// slash-separated and relative to the prefix; "" is its root. Nothing here reads or writes a
// manifest.

// slowest is the minimum rate of a transfer in bytes per second. Below it, the server counts as
// unavailable.
const slowest = 256 << 10

// bounded limits the duration of a request that carries n bytes.
func (b *Bucket) bounded(ctx context.Context, n int64) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, b.loc.Patience+time.Duration(n/slowest)*time.Second, errSilent)
}

// objectKey returns the key of an entry, or an error if it is too long.
func (b *Bucket) objectKey(path string, kind tree.Kind) (string, error) {
	key := tree.EncodePath(path)
	if kind == tree.Dir {
		key += "/"
	}
	if !tree.ValidPath(path) || len(b.prefix)+len(key) > tree.MaxKey {
		return "", errors.Newf(errors.Invalid, "%.200q cannot be the key of an object", path)
	}
	return key, nil
}

// Fits reports whether a file or directory can exist at a path.
func (b *Bucket) Fits(path string) bool {
	_, err := b.objectKey(path, tree.Dir)
	return err == nil
}

// Describe returns the entry at a path: a file or link from the headers of its object, or a
// directory if there is an object for it or below it. A directory with ETag "" has no object.
// Describe returns NotFound if there is nothing.
func (b *Bucket) Describe(ctx context.Context, path string) (*tree.Entry, error) {
	key, err := b.objectKey(path, tree.File)
	if err != nil {
		return nil, errors.Newf(errors.NotFound, "invalid key of an object: %.200q", path)
	}
	ctx, cancel := b.bounded(ctx, 0)
	defer cancel()
	e, err := b.stat(ctx, key)
	if errors.Is(err, errors.NotFound) {
		return b.describeDir(ctx, path)
	}
	if err != nil {
		return nil, err
	}
	e.Path = path
	if e.Kind == tree.Symlink {
		if err := b.ReadTarget(ctx, key, e); err != nil {
			return nil, err
		}
		e.Size = int64(len(e.Target))
	}
	return e, nil
}

// ReadTarget reads the target of a link.
func (b *Bucket) ReadTarget(ctx context.Context, key string, e *tree.Entry) error {
	res, err := b.do(ctx, Request{Method: http.MethodGet, Key: key}, make([]byte, maxTarget))
	if err != nil {
		return err
	}
	if e.Target = string(res.Body); e.Target == "" || strings.IndexByte(e.Target, 0) >= 0 {
		return errors.Newf(errors.Invalid, "the object %.200q is marked as a link, but has no target", e.Path)
	}
	e.Foreign = false // the entry is complete
	return nil
}

// maxTarget is Linux's limit for the target of a link.
const maxTarget = 4095

func (b *Bucket) describeDir(ctx context.Context, path string) (*tree.Entry, error) {
	key, err := b.objectKey(path, tree.Dir)
	if err != nil {
		return nil, err
	}
	page, err := b.page(ctx, &sdk.ListObjectsV2Input{Bucket: &b.loc.Bucket, Prefix: aws.String(b.prefix + key),
		MaxKeys: aws.Int32(1)})
	if err != nil {
		return nil, err
	}
	if len(page.Contents) == 0 {
		return nil, errors.Newf(errors.NotFound, "no object at %.200q", path)
	}
	e := &tree.Entry{Path: path, Kind: tree.Dir, Mode: 0o755, Foreign: true}
	if aws.ToString(page.Contents[0].Key) != b.prefix+key { // keys below the directory sort after its own
		return e, nil
	}
	return e, b.DescribeMarker(ctx, e)
}

// DescribeMarker sets the metadata of a directory from its object.
func (b *Bucket) DescribeMarker(ctx context.Context, e *tree.Entry) error {
	marker, err := b.stat(ctx, e.KeyUnder(b.prefix))
	if err != nil {
		return err
	}
	e.ETag, e.ModTime, e.UID, e.GID = marker.ETag, marker.ModTime, marker.UID, marker.GID
	if marker.Mode != 0o644 { // the mode of objects without metadata
		e.Mode = marker.Mode
	}
	e.Unknown = 0
	return nil
}

// ReadDir lists a directory. The entries passed to do have no metadata yet: files and links look
// alike, with the sizes and times of their objects. Keys that are not paths are omitted. A
// directory that does not exist is listed as empty.
func (b *Bucket) ReadDir(ctx context.Context, path string, do func(*tree.Entry) error) error {
	under := b.prefix
	if path != "" {
		key, err := b.objectKey(path, tree.Dir)
		if err != nil {
			return err
		}
		under += key
	}
	in := &sdk.ListObjectsV2Input{Bucket: &b.loc.Bucket, Prefix: &under, Delimiter: aws.String("/")}
	for {
		page, err := b.pageWithin(ctx, in)
		if err != nil {
			return err
		}
		for i := range page.Contents {
			o := &page.Contents[i]
			if child, ok := b.childPath(path, aws.ToString(o.Key)); ok {
				at := tree.At(aws.ToTime(o.LastModified))
				if err := do(&tree.Entry{Path: child, Kind: tree.File, Mode: 0o644, Size: aws.ToInt64(o.Size),
					ETag: Unquote(aws.ToString(o.ETag)), ModTime: at, Foreign: true}); err != nil {
					return err
				}
			}
		}
		for _, p := range page.CommonPrefixes {
			if child, ok := b.childPath(path, strings.TrimSuffix(aws.ToString(p.Prefix), "/")); ok {
				if err := do(&tree.Entry{Path: child, Kind: tree.Dir, Mode: 0o755, Foreign: true}); err != nil {
					return err
				}
			}
		}
		if !aws.ToBool(page.IsTruncated) || aws.ToString(page.NextContinuationToken) == "" {
			return nil
		}
		in.ContinuationToken = page.NextContinuationToken
	}
}

func (b *Bucket) pageWithin(ctx context.Context, in *sdk.ListObjectsV2Input) (*sdk.ListObjectsV2Output, error) {
	ctx, cancel := b.bounded(ctx, 0)
	defer cancel()
	return b.page(ctx, in)
}

// childPath returns the path of a key that is directly below the directory dir.
func (b *Bucket) childPath(dir, key string) (string, bool) {
	key, ok := strings.CutPrefix(key, b.prefix)
	if !ok || key == tree.Reserved || strings.HasSuffix(key, "/") {
		return "", false
	}
	path, ok := tree.DecodeKey(key)
	return path, ok && tree.Parent(path) == dir
}

// ReadObject reads part of a file into buf, which must not extend beyond the end of the file. It
// returns Conflict if the object was replaced.
func (b *Bucket) ReadObject(ctx context.Context, e *tree.Entry, buf []byte, at int64) error {
	key, err := b.objectKey(e.Path, e.Kind)
	if err != nil || len(buf) == 0 {
		return err
	}
	ctx, cancel := b.bounded(ctx, int64(len(buf)))
	defer cancel()
	_, err = b.Get(ctx, key, e.ETag, at, int64(len(buf)), e.Size, buf)
	return err
}

// WriteObject stores an entry with its metadata: a directory, a link, or a file of e.Size bytes
// from f. Readers see either the old or the new object. WriteObject sets the ETag of e.
func (b *Bucket) WriteObject(ctx context.Context, e *tree.Entry, f io.ReaderAt) error {
	key, err := b.objectKey(e.Path, e.Kind)
	if err != nil {
		return err
	}
	if e.Kind == tree.File && e.Size > buffer.PartSize {
		return b.writeParts(ctx, key, e, f)
	}
	body := []byte(e.Target)
	if e.Kind == tree.File {
		body = make([]byte, e.Size)
		if _, err := io.ReadFull(io.NewSectionReader(f, 0, e.Size), body); err != nil {
			return errors.Wrapf(err, "read a file to upload")
		}
	}
	ctx, cancel := b.bounded(ctx, int64(len(body)))
	defer cancel()
	h, err := b.keptHeader(ctx, key, e)
	if err == nil {
		e.ETag, err = b.Put(ctx, key, body, crc64nvme.Checksum(body), h)
	}
	return err
}

// keptHeader returns the header for a file's object, including the fields that other programs set
// on the current object of key.
func (b *Bucket) keptHeader(ctx context.Context, key string, e *tree.Entry) (http.Header, error) {
	h := MetaHeader(e)
	if e.Kind != tree.File || e.ETag == "" {
		return h, nil // without an ETag, the file is new
	}
	now, err := b.Head(ctx, key)
	if errors.KindOf(err) == errors.NotFound {
		return h, nil
	}
	if err != nil {
		return nil, err
	}
	return h, b.adoptHeaders(ctx, key, h, now.Header)
}

func (b *Bucket) writeParts(ctx context.Context, key string, e *tree.Entry, f io.ReaderAt) error {
	begin, cancel := b.bounded(ctx, 0)
	h, err := b.keptHeader(begin, key, e)
	var up *Multipart
	if err == nil {
		up, err = b.BeginUpload(begin, key, e, h, "")
	}
	cancel()
	if err != nil {
		return err
	}
	g, sending := errgroup.WithContext(ctx)
	g.SetLimit(PartsAtOnce)
	for i := range up.Parts {
		g.Go(func() error { return b.writePart(sending, up, &up.Parts[i], f) })
	}
	if err = g.Wait(); err == nil {
		crc := uint64(0)
		for _, p := range up.Parts {
			crc = CombineCRC(crc, p.Crc, p.Length)
		}
		e.ETag, err = b.CompleteUpload(ctx, up, crc, Condition{})
	}
	if err != nil {
		b.AbortUpload(context.WithoutCancel(ctx), key, up.ID)
	}
	return err
}

func (b *Bucket) writePart(ctx context.Context, up *Multipart, p *part, f io.ReaderAt) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	body := make([]byte, p.Length)
	if _, err := io.ReadFull(io.NewSectionReader(f, p.At, p.Length), body); err != nil {
		return errors.Wrapf(err, "read a file to upload")
	}
	p.Crc = crc64nvme.Checksum(body)
	if old, ok := up.There[p.Number]; ok && old.Matches(p, body) {
		p.ETag = old.ETag
		return nil
	}
	ctx, cancel := b.bounded(ctx, p.Length)
	defer cancel()
	q := url.Values{"partNumber": {strconv.Itoa(int(p.Number))}, "uploadId": {up.ID}}
	res, err := b.Send(ctx, Request{Method: http.MethodPut, Key: up.Key, Query: q, Body: body, Crc: &p.Crc})
	if err == nil {
		p.ETag, err = b.Tagged(res.Header.Get("ETag"))
	}
	return err
}

// CopyObject makes the server copy a file or link to another path, or to the same path with the
// metadata of to. It sets the ETag of to. It returns Unsupported for objects over 5 GiB, the limit
// of one copy request.
func (b *Bucket) CopyObject(ctx context.Context, from, to *tree.Entry) error {
	source, err := b.objectKey(from.Path, from.Kind)
	if err != nil {
		return err
	}
	key, err := b.objectKey(to.Path, to.Kind)
	if err != nil {
		return err
	}
	if from.Size > MaxCopy {
		return errors.Newf(errors.Unsupported, "S3 copies at most 5 GiB in one step")
	}
	// Servers that store plain files copy about as fast as their disk.
	call, cancel := b.bounded(ctx, from.Size/64)
	defer cancel()
	h, err := b.keptHeader(call, source, &tree.Entry{Path: to.Path, Kind: to.Kind, Mode: to.Mode, UID: to.UID,
		GID: to.GID, ModTime: to.ModTime, ETag: from.ETag})
	if err != nil {
		return err
	}
	res, err := b.s3.CopyObject(call, &sdk.CopyObjectInput{Bucket: &b.loc.Bucket, Key: aws.String(b.prefix + key),
		CopySourceIfMatch: aws.String(`"` + from.ETag + `"`),
		CopySource:        aws.String(url.PathEscape(b.loc.Bucket) + "/" + escapeKey(b.prefix+source)),
		MetadataDirective: types.MetadataDirectiveReplace,
		Metadata:          userMeta(h), ContentType: field1(h, "Content-Type"),
		CacheControl:       field1(h, "Cache-Control"),
		ContentDisposition: field1(h, "Content-Disposition"), ContentEncoding: field1(h, "Content-Encoding"),
		ContentLanguage: field1(h, "Content-Language"), Expires: expiry(h)}, b.patiently)
	if err != nil {
		return b.failed(ctx, err)
	}
	if res.CopyObjectResult != nil {
		to.ETag = Unquote(aws.ToString(res.CopyObjectResult.ETag))
	}
	return nil
}

// DeleteObject deletes the object of an entry. It is not an error if there is none.
func (b *Bucket) DeleteObject(ctx context.Context, path string, kind tree.Kind) error {
	key, err := b.objectKey(path, kind)
	if err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, 0)
	defer cancel()
	var refused error
	err = b.Delete(ctx, []string{key}, func(_ string, err error) { refused = err })
	return errors.Join(err, refused)
}

// Stat returns the entry of an object, from its headers. It returns Unsupported if the server returns no ETag.
func (b *Bucket) Stat(ctx context.Context, key string) (*tree.Entry, error) {
	e, err := b.stat(ctx, key)
	if err == nil && e.ETag == "" {
		return nil, noETags(b.base.Host)
	}
	return e, err
}

// stat is Stat, but the ETag may be missing: versitygw has none of files that were stored in its directory.
func (b *Bucket) stat(ctx context.Context, key string) (*tree.Entry, error) {
	res, err := b.Head(ctx, key)
	if err != nil {
		return nil, err
	}
	e := &tree.Entry{Kind: tree.File, Mode: 0o644, Size: ContentLength(res.Header),
		ETag: Unquote(res.Header.Get("ETag")), Foreign: true, Unknown: tree.AllFacts}
	if e.Size < 0 {
		return nil, errors.Newf(errors.Invalid, "S3 does not report its size")
	}
	e.CRC, e.HasCRC = FullCRC(res.Header)
	Describe(e, res.Header)
	return e, nil
}
