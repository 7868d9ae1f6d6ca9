package object

import (
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	smithy "github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// ChecksumHeader carries a CRC-64/NVME, big-endian in base64 (AWS's "full object" checksum).
const ChecksumHeader = "X-Amz-Checksum-Crc64nvme"

// sums lists the checksums that other programs' objects may have, by the header that carries them
// in base64.
var sums = []struct {
	header string
	hash   func() hash.Hash
}{
	{ChecksumHeader, func() hash.Hash { return crc64nvme.New() }},
	{"X-Amz-Checksum-Crc32c", func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }},
	{"X-Amz-Checksum-Crc32", func() hash.Hash { return crc32.NewIEEE() }},
	{"X-Amz-Checksum-Sha256", sha256.New},
	{"X-Amz-Checksum-Sha1", sha1.New},
}

// Sound returns ErrDamaged if an object of size bytes does not match the checksum in the headers of
// an answer. Without a checksum it returns nil.
func (b *Bucket) Sound(ctx context.Context, key string, size int64, h http.Header, body io.ReaderAt) error {
	for _, s := range sums {
		want := h.Get(s.header)
		if want == "" {
			continue
		}
		want, count, ofParts := strings.Cut(want, "-")
		if ofParts || h.Get("X-Amz-Checksum-Type") == "COMPOSITE" {
			n, err := strconv.ParseInt(count, 10, 32)
			if err != nil || n < 1 || n > maxParts {
				return nil
			}
			return b.soundParts(ctx, key, size, h.Get("ETag"), composite{s.hash, want, n}, body)
		}
		got := s.hash()
		if _, err := io.Copy(got, io.NewSectionReader(body, 0, size)); err != nil {
			return tree.ExplainFile(err)
		}
		if base64.StdEncoding.EncodeToString(got.Sum(nil)) != want {
			return ErrDamaged
		}
		return nil
	}
	return nil
}

// composite is a checksum of the checksums of an object's parts.
type composite struct {
	hash  func() hash.Hash
	want  string // in base64
	parts int64
}

// soundParts is sound for an object that was uploaded in parts. Only the server knows the sizes of
// the parts; if it does not return them, the object is not checked. Nearly all tools make all parts
// but the last of one size, so that one request is enough.
func (b *Bucket) soundParts(ctx context.Context, key string, size int64, etag string, c composite,
	body io.ReaderAt) error {
	first, err := b.partLength(ctx, key, etag, 1)
	if err != nil || first < 1 || first > size {
		return err
	}
	lengths := make([]int64, 0, c.parts)
	if (size+first-1)/first == c.parts {
		for at := int64(0); at < size; at += first {
			lengths = append(lengths, min(first, size-at))
		}
		if ok, err := c.matches(body, lengths); ok || err != nil {
			return err
		}
	}
	lengths, total := append(lengths[:0], first), first
	for i := int64(2); i <= c.parts; i++ {
		n, err := b.partLength(ctx, key, etag, i)
		if err != nil || n < 0 {
			return err
		}
		lengths, total = append(lengths, n), total+n
	}
	if total != size {
		return nil
	}
	if ok, err := c.matches(body, lengths); ok || err != nil {
		return err
	}
	return ErrDamaged
}

// matches reports whether a body with parts of these lengths has the checksum.
func (c composite) matches(body io.ReaderAt, lengths []int64) (bool, error) {
	all, at := c.hash(), int64(0)
	for _, n := range lengths {
		one := c.hash()
		if _, err := io.Copy(one, io.NewSectionReader(body, at, n)); err != nil {
			return false, tree.ExplainFile(err)
		}
		at += n
		all.Write(one.Sum(nil))
	}
	return base64.StdEncoding.EncodeToString(all.Sum(nil)) == c.want, nil
}

// partLength asks the server for the size of a part of an object. It returns -1 if the server does
// not say.
func (b *Bucket) partLength(ctx context.Context, key, etag string, number int64) (int64, error) {
	r := Request{Method: http.MethodHead, Key: key, Query: url.Values{"partNumber": {strconv.FormatInt(number, 10)}},
		header: http.Header{}}
	if etag != "" {
		r.header.Set("If-Match", etag)
	}
	res, err := b.do(ctx, r, nil)
	var refused *serverError
	if k := errors.KindOf(err); k == errors.Invalid || k == errors.NotFound || k == errors.Denied ||
		errors.As(err, &refused) && refused.status == http.StatusNotImplemented {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	if res.status != http.StatusPartialContent {
		return -1, nil
	}
	return ContentLength(res.Header), nil
}

// Send stores an object or a part with its checksum. Servers without CRC-64/NVME get an MD5
// instead, against which they also check the body.
func (b *Bucket) Send(ctx context.Context, r Request) (*response, error) {
	if !b.md5.Load() {
		res, err := b.do(ctx, r, nil)
		if !unknownSum(err) {
			return res, err
		}
	}
	r.Crc, r.header = nil, r.header.Clone()
	if r.header == nil {
		r.header = http.Header{}
	}
	sum := md5.Sum(r.Body)
	r.header.Set("Content-Md5", base64.StdEncoding.EncodeToString(sum[:]))
	res, err := b.do(ctx, r, nil)
	if err == nil {
		b.md5.Store(true) // the checksum was the reason, and this holds for all requests
	}
	return res, err
}

// withMD5 makes a call through the SDK carry an MD5 of its body and no other checksum.
func withMD5(o *sdk.Options) {
	o.APIOptions = append(o.APIOptions, smithyhttp.AddContentChecksumMiddleware, func(stack *middleware.Stack) error {
		_, err := stack.Finalize.Remove("AWSChecksum:ComputeInputPayloadChecksum")
		return err
	})
}

// wantsMD5 reports whether a server refused a request because it lacks an MD5 of its body.
// Deletions of several objects required one before there were other checksums.
func wantsMD5(err error) bool {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode() {
	case "InvalidDigest", "MissingContentMD5", "MissingDigest", "BadDigest":
		return true
	}
	return false
}

// answered returns the status and S3's error code of an answer, or 0 and "" if there was none.
func answered(err error) (status int, code string) {
	var ours *serverError
	var api smithy.APIError
	var res *smithyhttp.ResponseError
	switch {
	case errors.As(err, &ours):
		return ours.status, ours.code
	case errors.As(err, &api) && errors.As(err, &res):
		return res.HTTPStatusCode(), api.ErrorCode()
	}
	return 0, ""
}

// notImplemented reports whether a server does not support the request.
func notImplemented(err error) bool {
	status, code := answered(err)
	return status == http.StatusNotImplemented || status == http.StatusMethodNotAllowed || code == "NotImplemented"
}

// unknownSum reports whether a server may have refused a request because of its checksum.
func unknownSum(err error) bool {
	status, code := answered(err)
	if status == http.StatusNotImplemented {
		return true
	}
	return status == http.StatusBadRequest && (code == "InvalidArgument" || code == "InvalidRequest" ||
		code == "NotImplemented")
}

// FullCRC returns the checksum of a whole object from the headers of an answer. Objects with a
// composite checksum of their parts have none.
func FullCRC(h http.Header) (uint64, bool) {
	if h.Get("X-Amz-Checksum-Type") == "COMPOSITE" {
		return 0, false
	}
	return decodeCRC(h.Get(ChecksumHeader))
}
