package object

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Condition is the required state of a key for a write. The zero value requires nothing.
type Condition struct {
	ETag   string // the object with this ETag
	Absent bool   // no object at all
}

// Expecting returns the condition that the bucket still has e, as the plan saw it. nil means no
// object.
func Expecting(e *tree.Entry) Condition {
	if e == nil || e.ETag == "" {
		return Condition{Absent: true}
	}
	return Condition{ETag: e.ETag}
}

// set adds the condition to the header of a request.
func (c Condition) set(h http.Header) {
	switch {
	case c.ETag != "":
		h["If-Match"] = []string{`"` + c.ETag + `"`}
	case c.Absent:
		h["If-None-Match"] = []string{"*"}
	}
}

// heeding records whether a server supports conditional writes, once that is known.
type heeding struct {
	mu        sync.Mutex
	known     bool        // guarded by mu
	heeds     bool        // guarded by mu
	deletions atomic.Bool // the server is known to heed the condition of a deletion
}

// ProbeKey is an object that never exists on servers that heed conditions.
const ProbeKey = tree.Reserved + "/probe"

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
	h := MetaHeader(&tree.Entry{Kind: tree.File, Mode: 0o644})
	Condition{ETag: noETag}.set(h)
	_, err := b.Put(ctx, ProbeKey, []byte{}, crc64nvme.Checksum(nil), h)
	var refused *serverError
	switch {
	case err == nil, errors.Is(err, errNoETags):
		b.heed.known = true
		_ = b.Delete(ctx, []string{ProbeKey}, func(string, error) {}) // if it stays, it is empty and in no list
	case notImplemented(err):
		b.heed.known = true
	case errors.Is(err, ErrChangedObject), errors.KindOf(err) == errors.NotFound && errors.As(err, &refused):
		b.heed.known, b.heed.heeds = true, true
	case Fatal(err) || ctx.Err() != nil:
		return false, err
	default:
		return true, nil
	}
	return b.heed.heeds, nil
}

// Unconditional reports whether the server is known not to support conditional writes.
func (b *Bucket) Unconditional() bool {
	b.heed.mu.Lock()
	defer b.heed.mu.Unlock()
	return b.heed.known && !b.heed.heeds
}

// expect returns the condition to send with a write to key. If the server does not support
// conditions, expect checks the object now, and returns ErrChangedObject if it does not meet c.
func (b *Bucket) expect(ctx context.Context, key string, c Condition) (Condition, error) {
	if c == (Condition{}) {
		return c, nil
	}
	if heeds, err := b.conditions(ctx); heeds || err != nil {
		return c, err
	}
	return Condition{}, b.Holds(ctx, key, c)
}

// Holds returns ErrChangedObject if the bucket's object at key does not meet c at the moment.
func (b *Bucket) Holds(ctx context.Context, key string, c Condition) error {
	now, err := b.Head(ctx, key)
	etag := ""
	switch {
	case errors.KindOf(err) == errors.NotFound:
	case err != nil:
		return err
	default:
		if c.Absent {
			return ErrChangedObject
		}
		if etag, err = b.Tagged(now.Header.Get("ETag")); err != nil {
			return err
		}
	}
	if etag != c.ETag {
		return ErrChangedObject
	}
	return nil
}

// unmet turns the refusal of a write into ErrChangedObject if the condition did not hold. An object
// that was deleted meanwhile has no ETag, which is NotFound.
func (c Condition) unmet(err error) error {
	if c.ETag != "" && errors.KindOf(err) == errors.NotFound {
		return errors.Join(ErrChangedObject, err)
	}
	return err
}

// unmetUpload is unmet for the completion of an upload in parts. If the answer to a first attempt
// was lost, the upload no longer exists, and the object at the key shows the result.
func (c Condition) unmetUpload(err error) error {
	if c != (Condition{}) && errors.KindOf(err) == errors.NotFound {
		return errors.Join(ErrChangedObject, err)
	}
	return err
}

// PutAs is put under the condition c. It returns ErrChangedObject if c does not hold.
func (b *Bucket) PutAs(ctx context.Context, key string, body []byte, crc uint64, header http.Header,
	c Condition) (string, error) {
	c, err := b.expect(ctx, key, c)
	if err != nil {
		return "", err
	}
	c.set(header)
	etag, err := b.Put(ctx, key, body, crc, header)
	return etag, c.unmet(err)
}
