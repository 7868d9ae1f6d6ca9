package object

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/errors"
)

// DeleteAtOnce is the number of objects that one request can delete.
// Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html
const DeleteAtOnce = 1000

// Delete deletes at most DeleteAtOnce objects. Missing ones count as deleted.
func (b *Bucket) Delete(ctx context.Context, keys []string, failed func(string, error)) error {
	all := make([]Doomed, len(keys))
	for i, key := range keys {
		all[i].Key = key
	}
	return b.deleteAll(ctx, all, failed)
}

// DeleteKnown deletes at most DeleteAtOnce objects that still have their ETags. The others fail
// with ErrChangedObject.
func (b *Bucket) DeleteKnown(ctx context.Context, all []Doomed, failed func(string, error)) error {
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(Workers)
	var mu sync.Mutex
	var same []Doomed
	for _, d := range all {
		g.Go(func() error {
			res, err := b.Head(asking, d.Key)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.KindOf(err) == errors.NotFound:
			case Fatal(err) || asking.Err() != nil:
				return err
			case err != nil:
				failed(d.Key, err)
			case Unquote(res.Header.Get("ETag")) != d.ETag:
				failed(d.Key, ErrChangedObject)
			default:
				same = append(same, d)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// Some servers honour the condition of a single deletion and ignore the ETags of DeleteObjects, as versitygw does.
	heeds, err := b.conditions(ctx)
	if err != nil {
		return err
	}
	if heeds {
		return b.deleteSingly(ctx, same, failed)
	}
	return b.deleteAll(ctx, same, failed)
}

// deleteAll is delete for objects with optional ETags, which are sent as conditions to servers that
// support them.
func (b *Bucket) deleteAll(ctx context.Context, all []Doomed, failed func(string, error)) error {
	if len(all) == 0 {
		return nil
	}
	if b.single.Load() {
		return b.deleteSingly(ctx, all, failed)
	}
	in := &sdk.DeleteObjectsInput{Bucket: &b.loc.Bucket, Delete: &types.Delete{Quiet: aws.Bool(true)},
		ChecksumAlgorithm: types.ChecksumAlgorithmCrc32}
	for _, d := range all {
		in.Delete.Objects = append(in.Delete.Objects, types.ObjectIdentifier{Key: aws.String(b.prefix + d.Key),
			ETag: d.match()})
	}
	call, cancel := b.within(ctx, 0)
	defer cancel()
	how := []func(*sdk.Options){b.patiently}
	if b.md5.Load() {
		in.ChecksumAlgorithm, how = "", append(how, withMD5)
	}
	out, err := b.s3.DeleteObjects(call, in, how...)
	if in.ChecksumAlgorithm != "" && (unknownSum(err) || wantsMD5(err)) {
		in.ChecksumAlgorithm = ""
		out, err = b.s3.DeleteObjects(call, in, b.patiently, withMD5)
	}
	if notImplemented(err) {
		b.single.Store(true)
		return b.deleteSingly(ctx, all, failed)
	}
	if err != nil {
		if err = b.failed(ctx, err); errors.KindOf(err) != errors.Denied {
			return err
		}
		for _, d := range all {
			failed(d.Key, err)
		}
		return nil
	}
	for _, e := range out.Errors {
		key, code := aws.ToString(e.Key), aws.ToString(e.Code)
		err := b.refused(errors.Newf(errors.Denied, "%s", code), http.StatusForbidden, code, "")
		if errors.KindOf(err) != errors.NotFound {
			failed(key[min(len(b.prefix), len(key)):], err)
		}
	}
	return nil
}

// deleteSingly is delete for servers that delete one object a request. It sends several requests at
// once.
func (b *Bucket) deleteSingly(ctx context.Context, all []Doomed, failed func(string, error)) error {
	g, deleting := errgroup.WithContext(ctx)
	g.SetLimit(Workers)
	var mu sync.Mutex
	for _, d := range all {
		g.Go(func() error {
			call, cancel := b.within(deleting, 0)
			defer cancel()
			in := &sdk.DeleteObjectInput{Bucket: &b.loc.Bucket, Key: aws.String(b.prefix + d.Key), IfMatch: d.match()}
			_, err := b.s3.DeleteObject(call, in, b.patiently)
			if in.IfMatch != nil && notImplemented(err) { // the check before the deletion has to suffice
				in.IfMatch = nil
				_, err = b.s3.DeleteObject(call, in, b.patiently)
			}
			if err == nil {
				return nil
			}
			if err = b.failed(deleting, err); errors.KindOf(err) == errors.NotFound {
				return nil
			}
			if errors.KindOf(err) != errors.Denied && !errors.Is(err, ErrChangedObject) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			failed(d.Key, err)
			return nil
		})
	}
	return g.Wait()
}

// PutIf stores an object of Harvest's own if the current one still has the ETag, or does not exist
// if etag is "". Otherwise it fails with ErrOvertaken.
func (b *Bucket) PutIf(ctx context.Context, key string, body io.ReaderAt, size int64, contentType,
	etag string) (string, error) {
	in := &sdk.PutObjectInput{Bucket: &b.loc.Bucket, Key: aws.String(b.prefix + key), ContentLength: &size,
		ContentType: &contentType,
		Body:        io.NewSectionReader(body, 0, size)}
	if etag != "" {
		in.IfMatch = aws.String(`"` + etag + `"`)
	} else {
		in.IfNoneMatch = aws.String("*")
	}
	sum, plain := crc64nvme.New(), md5.New()
	if _, err := io.Copy(io.MultiWriter(sum, plain), io.NewSectionReader(body, 0, size)); err != nil {
		return "", errors.Wrapf(err, "read %s", key)
	}
	call, cancel := b.within(ctx, time.Minute)
	defer cancel()
	in.ChecksumCRC64NVME = aws.String(encodeCRC(sum.Sum64()))
	withMD5 := func() {
		in.ChecksumCRC64NVME, in.ContentMD5, in.Body = nil,
			aws.String(base64.StdEncoding.EncodeToString(plain.Sum(nil))), io.NewSectionReader(body, 0, size)
	}
	if b.md5.Load() {
		withMD5()
	}
	out, err := b.s3.PutObject(call, in, b.patiently)
	if in.ContentMD5 == nil && unknownSum(err) {
		withMD5()
		out, err = b.s3.PutObject(call, in, b.patiently)
	}
	if notImplemented(err) {
		// The server has no conditional writes: two syncs that end at the same moment do not notice
		// each other.
		in.IfMatch, in.IfNoneMatch, in.Body = nil, nil, io.NewSectionReader(body, 0, size)
		out, err = b.s3.PutObject(call, in, b.patiently)
	}
	if err != nil {
		if err = b.failed(ctx, err); errors.Is(err, ErrChangedObject) {
			return "", ErrOvertaken
		}
		return "", err
	}
	return Unquote(aws.ToString(out.ETag)), nil
}

// Doomed is an object that a sync will delete. The list is recorded before the manifest without
// these objects is stored, and the objects are deleted after it. A sync that is interrupted in
// between leaves objects that no manifest has, and a list would bring their files back. The next
// sync finishes the deletion.
type Doomed struct {
	Key  string `json:"key"` // relative to the prefix
	ETag string `json:"etag"`
}

// match returns the condition under which the object is deleted.
func (d Doomed) match() *string {
	if d.ETag == "" {
		return nil
	}
	etag := `"` + d.ETag + `"`
	return &etag
}
