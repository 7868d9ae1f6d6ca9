package sync

import (
	"context"
	"net/http"
	"sync"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// condition is the required state of a key for a write. The zero value requires nothing.
type condition struct {
	etag   string // the object with this ETag
	absent bool   // no object at all
}

// expecting returns the condition that the bucket still has e, as the plan saw it. nil means no
// object.
func expecting(e *tree.Entry) condition {
	if e == nil || e.ETag == "" {
		return condition{absent: true}
	}
	return condition{etag: e.ETag}
}

// set adds the condition to the header of a request.
func (c condition) set(h http.Header) {
	switch {
	case c.etag != "":
		h["If-Match"] = []string{`"` + c.etag + `"`}
	case c.absent:
		h["If-None-Match"] = []string{"*"}
	}
}

// heeding records whether a server supports conditional writes, once that is known.
type heeding struct {
	mu    sync.Mutex
	known bool // guarded by mu
	heeds bool // guarded by mu
}

// probeKey is an object that never exists on servers that heed conditions.
const probeKey = tree.Reserved + "/probe"

// noETag is an ETag that no object has.
const noETag = "ffffffffffffffffffffffffffffffff"

// conditions reports whether the server supports conditional writes. It tests this once, with a
// write whose condition cannot hold. Without a clear answer it assumes that they work, and the next
// write returns the problem.
func (b *Bucket) conditions(ctx context.Context) (bool, error) {
	b.heed.mu.Lock()
	defer b.heed.mu.Unlock()
	if b.heed.known {
		return b.heed.heeds, nil
	}
	h := metaHeader(&tree.Entry{Kind: tree.File, Mode: 0o644})
	condition{etag: noETag}.set(h)
	_, err := b.put(ctx, probeKey, []byte{}, crc64nvme.Checksum(nil), h)
	var refused *serverError
	switch {
	case err == nil:
		b.heed.known = true
		_ = b.delete(ctx, []string{probeKey}, func(string, error) {}) // if it stays, it is empty and in no list
	case notImplemented(err):
		b.heed.known = true
	case errors.Is(err, errChangedObject), errors.KindOf(err) == errors.NotFound && errors.As(err, &refused):
		b.heed.known, b.heed.heeds = true, true
	case fatal(err) || ctx.Err() != nil:
		return false, err
	default:
		return true, nil
	}
	return b.heed.heeds, nil
}

// unconditional reports whether the server is known not to support conditional writes.
func (b *Bucket) unconditional() bool {
	b.heed.mu.Lock()
	defer b.heed.mu.Unlock()
	return b.heed.known && !b.heed.heeds
}

// expect returns the condition to send with a write to key. If the server does not support
// conditions, expect checks the object now, and returns errChangedObject if it does not meet c.
func (b *Bucket) expect(ctx context.Context, key string, c condition) (condition, error) {
	if c == (condition{}) {
		return c, nil
	}
	if heeds, err := b.conditions(ctx); heeds || err != nil {
		return c, err
	}
	return condition{}, b.holds(ctx, key, c)
}

// holds returns errChangedObject if the bucket's object at key does not meet c at the moment.
func (b *Bucket) holds(ctx context.Context, key string, c condition) error {
	now, err := b.head(ctx, key)
	etag := ""
	switch {
	case errors.KindOf(err) == errors.NotFound:
	case err != nil:
		return err
	default:
		if etag = unquote(now.header.Get("ETag")); c.absent {
			return errChangedObject
		}
	}
	if etag != c.etag {
		return errChangedObject
	}
	return nil
}

// unmet turns the refusal of a write into errChangedObject if the condition did not hold. An object
// that was deleted meanwhile has no ETag, which is NotFound.
func (c condition) unmet(err error) error {
	if c.etag != "" && errors.KindOf(err) == errors.NotFound {
		return errors.Join(errChangedObject, err)
	}
	return err
}

// unmetUpload is unmet for the completion of an upload in parts. If the answer to a first attempt
// was lost, the upload no longer exists, and the object at the key shows the result.
func (c condition) unmetUpload(err error) error {
	if c != (condition{}) && errors.KindOf(err) == errors.NotFound {
		return errors.Join(errChangedObject, err)
	}
	return err
}

// putAs is put under the condition c. It returns errChangedObject if c does not hold.
func (b *Bucket) putAs(ctx context.Context, key string, body []byte, crc uint64, header http.Header,
	c condition) (string, error) {
	c, err := b.expect(ctx, key, c)
	if err != nil {
		return "", err
	}
	c.set(header)
	etag, err := b.put(ctx, key, body, crc, header)
	return etag, c.unmet(err)
}
