package object

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// PartsAtOnce is the number of parts of one file in transfer.
const PartsAtOnce = 4

// Stale is the age at which an unfinished upload counts as abandoned.
const Stale = 7 * 24 * time.Hour

// part is a part of a large object.
type part struct {
	Number     int32 // from 1
	At, Length int64
	ETag       string
	Crc        uint64
}

// split divides n bytes to upload into parts of equal size, within S3's limit on their number. The
// part size doubles as needed. A part that exceeds the room beside others is in memory alone: those
// of a file beyond 625 GiB take more than MaxInFlight, up to 1 GiB at 5 TiB.
func split(n int64) []part {
	size := int64(buffer.PartSize)
	for n > size*maxParts {
		size *= 2
	}
	return CutUp(n, size)
}

// CutUp divides n bytes into parts of size; the last one has the rest.
func CutUp(n, size int64) []part {
	parts := make([]part, 0, (n+size-1)/size)
	for at := int64(0); at < n; at += size {
		parts = append(parts, part{Number: int32(len(parts) + 1), At: at, Length: min(size, n-at)})
	}
	return parts
}

// InParts reports whether an object with this ETag was uploaded in parts: its ETag is then made of those of the parts
// and ends with their number
// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html).
func InParts(etag string) bool { return strings.Contains(etag, "-") }

// Unlike divides the upload into other parts if those at present would make an object with this ETag. It must be
// called before a part is sent.
func (up *Multipart) Unlike(etag string) {
	if n := len(up.Parts); n > 1 && strings.HasSuffix(etag, "-"+strconv.Itoa(n)) {
		whole, size := up.Parts[n-1].At+up.Parts[n-1].Length, up.Parts[0].Length/2
		if whole > size*maxParts {
			size *= 4
		}
		up.Parts = CutUp(whole, size)
	}
}

// PutInParts is PutAs with an upload of one part, which gives the object another ETag than a request alone would.
func (b *Bucket) PutInParts(ctx context.Context, key string, body []byte, e *tree.Entry, h http.Header,
	c Condition) (string, error) {
	up, err := b.BeginUpload(ctx, key, e, h, "")
	if err != nil {
		return "", err
	}
	up.Parts = []part{{Number: 1, Length: int64(len(body)), Crc: e.CRC}}
	etag, err := "", b.SendPart(ctx, up, &up.Parts[0], body)
	if err == nil {
		etag, err = b.CompleteUpload(ctx, up, e.CRC, c)
	}
	if err != nil {
		b.AbortUpload(context.WithoutCancel(ctx), key, up.ID)
	}
	return etag, err
}

// SendPart uploads a part, whose checksum is known, and notes its ETag.
func (b *Bucket) SendPart(ctx context.Context, up *Multipart, p *part, body []byte) error {
	q := url.Values{"partNumber": {strconv.Itoa(int(p.Number))}, "uploadId": {up.ID}}
	res, err := b.Send(ctx, Request{Method: http.MethodPut, Key: up.Key, Query: q, Body: body, Crc: &p.Crc})
	if err != nil {
		return err
	}
	p.ETag, err = b.Tagged(res.Header.Get("ETag"))
	return err
}

// Multipart is an upload in parts.
type Multipart struct {
	Key   string
	ID    string
	Parts []part
	There map[int32]stored // parts that the bucket already has

	mtime string // of the object's metadata
}

// stored is a part that the bucket has.
type stored struct {
	size   int64
	ETag   string
	crc    uint64
	hasCRC bool
}

func (s stored) Matches(p *part, body []byte) bool {
	if s.size != p.Length {
		return false
	}
	if s.hasCRC {
		return s.crc == p.Crc
	}
	sum := md5.Sum(body)
	return s.ETag == hex.EncodeToString(sum[:])
}

// BeginUpload continues the upload id if it still exists, or begins a new one to key. The checksums
// of the parts show whether they match.
func (b *Bucket) BeginUpload(ctx context.Context, key string, e *tree.Entry, h http.Header,
	id string) (*Multipart, error) {
	up := &Multipart{Key: key, Parts: split(e.BodySize()), There: map[int32]stored{}, mtime: h.Get(metaMtime)}
	full := b.prefix + key
	call, cancel := b.within(ctx, 0)
	defer cancel()
	if id != "" && b.storedParts(call, full, id, up.There) == nil {
		up.ID = id
		return up, nil
	}
	clear(up.There)
	in := &sdk.CreateMultipartUploadInput{Bucket: &b.loc.Bucket, Key: &full, Metadata: userMeta(h),
		ContentType:  field1(h, "Content-Type"),
		CacheControl: field1(h, "Cache-Control"), ContentDisposition: field1(h, "Content-Disposition"),
		ContentEncoding: field1(h, "Content-Encoding"), ContentLanguage: field1(h, "Content-Language"),
		Expires: expiry(h), Tagging: field1(h, taggingHeader)}
	if !b.md5.Load() {
		in.ChecksumAlgorithm, in.ChecksumType = types.ChecksumAlgorithmCrc64nvme, types.ChecksumTypeFullObject
	}
	out, err := b.s3.CreateMultipartUpload(call, in, b.patiently)
	if in.ChecksumAlgorithm != "" && unknownSum(err) {
		in.ChecksumAlgorithm, in.ChecksumType = "", ""
		if out, err = b.s3.CreateMultipartUpload(call, in, b.patiently); err == nil {
			b.md5.Store(true)
		}
	}
	if err != nil {
		return nil, b.failed(ctx, err)
	}
	up.ID = aws.ToString(out.UploadId)
	return up, nil
}

// failed explains an error of the SDK, unless the caller's context ended.
func (b *Bucket) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return b.Explain(err)
}

func (b *Bucket) storedParts(ctx context.Context, key, id string, there map[int32]stored) error {
	pages := sdk.NewListPartsPaginator(b.s3, &sdk.ListPartsInput{Bucket: &b.loc.Bucket, Key: &key, UploadId: &id})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx, b.patiently)
		if err != nil {
			return err
		}
		for _, p := range page.Parts {
			s := stored{size: aws.ToInt64(p.Size), ETag: Unquote(aws.ToString(p.ETag))}
			s.crc, s.hasCRC = decodeCRC(aws.ToString(p.ChecksumCRC64NVME))
			there[aws.ToInt32(p.PartNumber)] = s
		}
	}
	return nil
}

// CompleteUpload combines the parts into an object. The server checks the CRC of the whole, if it
// supports that.
func (b *Bucket) CompleteUpload(ctx context.Context, up *Multipart, crc uint64, c Condition) (string, error) {
	// Some servers heed the conditions of single writes only. The object may have changed while the parts were sent.
	if c != (Condition{}) {
		if err := b.Holds(ctx, up.Key, c); err != nil {
			return "", err
		}
	}
	c, err := b.expect(ctx, up.Key, c)
	if err != nil {
		return "", err
	}
	in := &sdk.CompleteMultipartUploadInput{Bucket: &b.loc.Bucket, Key: aws.String(b.prefix + up.Key), UploadId: &up.ID,
		MultipartUpload: &types.CompletedMultipartUpload{}}
	for _, p := range up.Parts {
		done := types.CompletedPart{PartNumber: aws.Int32(p.Number), ETag: aws.String(`"` + p.ETag + `"`)}
		if !b.md5.Load() {
			done.ChecksumCRC64NVME = aws.String(encodeCRC(p.Crc))
		}
		in.MultipartUpload.Parts = append(in.MultipartUpload.Parts, done)
	}
	if !b.md5.Load() {
		in.ChecksumCRC64NVME, in.ChecksumType = aws.String(encodeCRC(crc)), types.ChecksumTypeFullObject
	}
	switch {
	case c.ETag != "":
		in.IfMatch = aws.String(`"` + c.ETag + `"`)
	case c.Absent:
		in.IfNoneMatch = aws.String("*")
	}
	// Servers need time to combine large objects.
	call, cancel := b.within(ctx, 30*time.Minute)
	defer cancel()
	out, err := b.s3.CompleteMultipartUpload(call, in, b.patiently)
	if err != nil {
		return "", c.unmetUpload(b.failed(ctx, err))
	}
	etag, err := b.Tagged(aws.ToString(out.ETag))
	if err != nil || b.truthful.Load() {
		return etag, err
	}
	return objectETag(ctx, b, up, etag), nil
}

// objectETag returns the ETag of the object that an upload has made. Some servers give it another one than their answer
// has. It asks until an answer was right.
func objectETag(ctx context.Context, b *Bucket, up *Multipart, answered string) string {
	now, err := b.Head(ctx, up.Key)
	if err != nil {
		return answered // if it is wrong, the next sync compares the object
	}
	etag, size := Unquote(now.Header.Get("ETag")), int64(0)
	for _, p := range up.Parts {
		size += p.Length
	}
	switch {
	case etag == answered:
		b.truthful.Store(true)
	case etag != "" && ContentLength(now.Header) == size && now.Header.Get(metaMtime) == up.mtime:
		return etag // and not that of an object that another program wrote since
	}
	return answered
}

// AbortUpload discards the parts. It does not report a failure: Sweep finds the remains.
func (b *Bucket) AbortUpload(ctx context.Context, key, id string) {
	ctx, cancel := b.within(ctx, 0)
	defer cancel()
	for range abortTries {
		if _, err := b.s3.AbortMultipartUpload(ctx, &sdk.AbortMultipartUploadInput{Bucket: &b.loc.Bucket,
			Key: aws.String(b.prefix + key), UploadId: &id}, b.patiently); err != nil {
			return // it is gone, or Sweep tries again later
		}
	}
}

// abortTries is the number of times an upload is aborted. A part in transfer may arrive after the
// first attempt, and the upload then still exists
// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_AbortMultipartUpload.html).
const abortTries = 3

// Sweep aborts uploads below the prefix that began longer than age ago, and returns their number.
// They cost money and appear in no list of objects. Uploads younger than Stale may still be
// continued.
func (b *Bucket) Sweep(ctx context.Context, age time.Duration) (int, error) {
	n := 0
	for u, err := range b.UploadsBegun(ctx) {
		if err != nil {
			return n, err
		}
		if time.Since(aws.ToTime(u.Initiated)) < age {
			continue
		}
		key, _ := strings.CutPrefix(aws.ToString(u.Key), b.prefix)
		b.AbortUpload(ctx, key, aws.ToString(u.UploadId))
		n++
	}
	return n, nil
}
