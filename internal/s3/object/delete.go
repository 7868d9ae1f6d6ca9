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

	"github.com/RelevanceAI/harvest/client/errors"
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
// with ErrChangedObject. A server that heeds the condition of a deletion gets one request for each
// object. Elsewhere, each object is checked right before the deletion.
func (b *Bucket) DeleteKnown(ctx context.Context, all []Doomed, failed func(string, error)) error {
	if len(all) > 0 && !b.heed.deletions.Load() {
		done, err := b.tryDeletion(ctx, all[0], failed)
		if err != nil {
			return err
		}
		if done {
			all = all[1:]
		}
	}
	if b.heed.deletions.Load() {
		// Some servers honour the condition of a single deletion and ignore the ETags of DeleteObjects, as versitygw
		// does.
		return each(ctx, all, failed, b.deleteIfSame)
	}
	var mu sync.Mutex
	var same []Doomed
	if err := each(ctx, all, failed, func(ctx context.Context, d Doomed) error {
		there, err := b.isSame(ctx, d)
		if there {
			mu.Lock()
			defer mu.Unlock()
			same = append(same, d)
		}
		return err
	}); err != nil {
		return err
	}
	if _, err := b.conditions(ctx); err != nil { // Unconditional names a server that has none at all
		return err
	}
	return b.deleteAll(ctx, same, failed)
}

// tryDeletion finds out whether the server heeds the condition of a deletion, with a condition that
// cannot hold. A server that does not deletes the object, as it was to be. That proves nothing for
// later deletions, since somebody else may have deleted the object just before. tryDeletion reports
// whether it has dealt with the object.
func (b *Bucket) tryDeletion(ctx context.Context, d Doomed, failed func(string, error)) (bool, error) {
	there, err := b.isSame(ctx, d)
	if there {
		err = b.deleteIf(ctx, d.Key, noETag)
	}
	switch {
	case !there && !Fatal(err), notImplemented(err):
		return false, nil
	case there && errors.Is(err, ErrChangedObject):
		b.heed.deletions.Store(true)
		return false, nil
	case err == nil:
		return true, nil
	case Fatal(err) || ctx.Err() != nil:
		return false, err
	}
	failed(d.Key, err)
	return true, nil
}

// isSame reports whether an object has its ETag. If another object has its place, isSame returns
// ErrChangedObject.
func (b *Bucket) isSame(ctx context.Context, d Doomed) (bool, error) {
	res, err := b.Head(ctx, d.Key)
	switch {
	case errors.KindOf(err) == errors.NotFound:
		return false, nil
	case err != nil:
		return false, err
	}
	etag, err := b.Tagged(res.Header.Get("ETag"))
	if err == nil && etag != d.ETag {
		err = ErrChangedObject
	}
	return err == nil, err
}

// each calls do for the objects, several at a time. Errors of single objects go to failed.
func each(ctx context.Context, all []Doomed, failed func(string, error),
	do func(context.Context, Doomed) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(Workers)
	var mu sync.Mutex
	for _, d := range all {
		g.Go(func() error {
			err := do(ctx, d)
			if err == nil || Fatal(err) || ctx.Err() != nil {
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

// deleteSingly is deleteAll for servers that delete one object a request.
func (b *Bucket) deleteSingly(ctx context.Context, all []Doomed, failed func(string, error)) error {
	return each(ctx, all, failed, func(ctx context.Context, d Doomed) error {
		if d.ETag != "" {
			if err := b.deleteIfSame(ctx, d); !notImplemented(err) {
				return err
			}
		}
		return b.deleteIf(ctx, d.Key, "") // the check before the deletion has to suffice
	})
}

// deleteIfSame deletes an object on a server that heeds the condition of a deletion. Some servers
// refuse the condition if there is no object.
func (b *Bucket) deleteIfSame(ctx context.Context, d Doomed) error {
	if d.ETag != "" {
		if err := b.deleteIf(ctx, d.Key, d.ETag); !errors.Is(err, ErrChangedObject) {
			return err
		}
	}
	return b.Holds(ctx, d.Key, Condition{Absent: true})
}

// deleteIf deletes the object at key if it has the ETag, or in any case if etag is "". It is not an
// error if there is none.
func (b *Bucket) deleteIf(ctx context.Context, key, etag string) error {
	h := http.Header{}
	Condition{ETag: etag}.set(h)
	_, err := b.do(ctx, Request{Method: http.MethodDelete, Key: key, header: h}, nil)
	if errors.KindOf(err) == errors.NotFound {
		return nil
	}
	return err
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
	return b.Tagged(aws.ToString(out.ETag))
}

// Doomed is an object that a sync will delete. The list is recorded before the manifest without
// these objects is stored, and the objects are deleted after it. A sync that is interrupted in
// between leaves objects that no manifest has, and a list would bring their files back. The next
// sync finishes the deletion.
type Doomed struct {
	Key  string `json:"key"` // relative to the prefix
	ETag string `json:"etag"`
	// Stored is when the object was stored: the seconds of its Last-Modified. An object of another second is another
	// object, even if its content and so its ETag are the same. 0 means unknown.
	Stored int64 `json:"stored,omitempty"`
}

// Doom returns the object at key as one to delete. If it does not exist or has another ETag, Doom returns
// ErrChangedObject; if it does not exist, the error is also NotFound.
func (b *Bucket) Doom(ctx context.Context, key, etag string) (Doomed, error) {
	now, err := b.Head(ctx, key)
	if err != nil {
		return Doomed{}, Condition{ETag: etag}.unmet(err)
	}
	d := Identify(key, now.Header)
	if _, err := b.Tagged(d.ETag); err != nil {
		return Doomed{}, err
	}
	if d.ETag != etag {
		return Doomed{}, ErrChangedObject
	}
	return d, nil
}

// Identify returns the object at key by the header of an answer to HEAD.
func Identify(key string, h http.Header) Doomed {
	d := Doomed{Key: key, ETag: Unquote(h.Get("ETag"))}
	if at, err := http.ParseTime(h.Get("Last-Modified")); err == nil {
		d.Stored = at.Unix()
	}
	return d
}

// match returns the condition under which the object is deleted.
func (d Doomed) match() *string {
	if d.ETag == "" {
		return nil
	}
	etag := `"` + d.ETag + `"`
	return &etag
}
