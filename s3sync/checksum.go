package s3sync

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
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithy "github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/errors"
)

// sums are the checksums that objects of others may have, by the header that carries them in base64.
var sums = []struct {
	header string
	hash   func() hash.Hash
}{
	{checksumHeader, func() hash.Hash { return crc64nvme.New() }},
	{"X-Amz-Checksum-Crc32c", func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }},
	{"X-Amz-Checksum-Crc32", func() hash.Hash { return crc32.NewIEEE() }},
	{"X-Amz-Checksum-Sha256", sha256.New},
	{"X-Amz-Checksum-Sha1", sha1.New},
}

// sound fails with errDamaged if an object is not what the checksum in an answer's headers says. Where there is none, or one of parts that
// were summed up one by one, nothing can be said.
func sound(h http.Header, body io.Reader) error {
	if h.Get("X-Amz-Checksum-Type") == "COMPOSITE" {
		return nil
	}
	for _, s := range sums {
		want := h.Get(s.header)
		if want == "" || strings.Contains(want, "-") { // with the number of parts at its end
			continue
		}
		got := s.hash()
		if _, err := io.Copy(got, body); err != nil {
			return explainFile(err)
		}
		if base64.StdEncoding.EncodeToString(got.Sum(nil)) != want {
			return errDamaged
		}
		return nil
	}
	return nil
}

// send stores an object or a part of one with its checksum. Servers that do not know CRC-64/NVME get an MD5, with which they compare what
// arrives, too.
func (b *Bucket) send(ctx context.Context, r request) (*response, error) {
	if !b.md5.Load() {
		res, err := b.do(ctx, r, nil)
		if !unknownSum(err) {
			return res, err
		}
	}
	r.crc, r.header = nil, r.header.Clone()
	if r.header == nil {
		r.header = http.Header{}
	}
	sum := md5.Sum(r.body)
	r.header.Set("Content-Md5", base64.StdEncoding.EncodeToString(sum[:]))
	res, err := b.do(ctx, r, nil)
	if err == nil {
		b.md5.Store(true) // what was refused was the checksum, and it is everywhere
	}
	return res, err
}

// withMD5 has a call through the SDK carry an MD5 of its body, and no other checksum.
func withMD5(o *s3.Options) {
	o.APIOptions = append(o.APIOptions, smithyhttp.AddContentChecksumMiddleware, func(stack *middleware.Stack) error {
		_, err := stack.Finalize.Remove("AWSChecksum:ComputeInputPayloadChecksum")
		return err
	})
}

// wantsMD5 reports whether a server refused a request since it has no MD5 of its body. Deletions of several objects were made with one before
// there were other checksums.
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

// unknownSum reports whether a server may have refused a request for the sake of its checksum.
func unknownSum(err error) bool {
	status, code := 0, ""
	var ours *serverError
	var api smithy.APIError
	var res *smithyhttp.ResponseError
	switch {
	case errors.As(err, &ours):
		status, code = ours.status, ours.code
	case errors.As(err, &api) && errors.As(err, &res):
		status, code = res.HTTPStatusCode(), api.ErrorCode()
	}
	if status == http.StatusNotImplemented {
		return true
	}
	return status == http.StatusBadRequest && (code == "InvalidArgument" || code == "InvalidRequest" || code == "NotImplemented")
}
