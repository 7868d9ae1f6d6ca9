package s3sync

import (
	"context"
	"net/http"
	"sync"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/errors"
)

// condition is the state that the bucket must have of a key for a write to happen. The zero value asks for nothing.
type condition struct {
	etag   string // the object with this ETag
	absent bool   // no object at all
}

// expecting returns the condition that the bucket still has e, as a plan saw it; nil is no object.
func expecting(e *Entry) condition {
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

// heeding is whether a server heeds conditions of writes, once that is known.
type heeding struct {
	mu    sync.Mutex
	known bool // guarded by mu
	heeds bool // guarded by mu
}

// probeKey is an object that never exists on servers that heed conditions.
const probeKey = Reserved + "/probe"

// noETag is an ETag that no object has.
const noETag = "ffffffffffffffffffffffffffffffff"

// conditions reports whether the server heeds conditions of writes. It asks once, by a write whose condition cannot hold. If there is no clear
// answer, the server is taken to heed them, and the next write says what is wrong.
func (b *Bucket) conditions(ctx context.Context) (bool, error) {
	b.heed.mu.Lock()
	defer b.heed.mu.Unlock()
	if b.heed.known {
		return b.heed.heeds, nil
	}
	h := (&Entry{Kind: File, Mode: 0o644}).header()
	condition{etag: noETag}.set(h)
	_, err := b.put(ctx, probeKey, []byte{}, crc64nvme.Checksum(nil), h)
	var refused *serverError
	switch {
	case err == nil:
		b.heed.known = true
		_ = b.delete(ctx, []string{probeKey}, func(string, error) {}) // what stays is empty, and no list shows it
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

// unconditional reports whether it is known by now that the server does not heed conditions.
func (b *Bucket) unconditional() bool {
	b.heed.mu.Lock()
	defer b.heed.mu.Unlock()
	return b.heed.known && !b.heed.heeds
}

// expect returns the condition to send with a write to key. Where the server heeds none, it looks at the object now: errChangedObject if it is not
// as c wants it.
func (b *Bucket) expect(ctx context.Context, key string, c condition) (condition, error) {
	if c == (condition{}) {
		return c, nil
	}
	if heeds, err := b.conditions(ctx); heeds || err != nil {
		return c, err
	}
	return condition{}, b.holds(ctx, key, c)
}

// holds fails with errChangedObject if the bucket does not have of a key what c says at the moment.
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

// unmet turns the refusal of a write into errChangedObject where it says that the condition does not hold: an object that is not there any more
// has no ETag.
func (c condition) unmet(err error) error {
	if c.etag != "" && errors.KindOf(err) == errors.NotFound {
		return errors.Join(errChangedObject, err)
	}
	return err
}

// unmetUpload is unmet for the end of an upload in parts. A first attempt whose answer was lost has ended it: what is there now tells.
func (c condition) unmetUpload(err error) error {
	if c != (condition{}) && errors.KindOf(err) == errors.NotFound {
		return errors.Join(errChangedObject, err)
	}
	return err
}

// putAs is put for a bucket that has of the key what c says. Otherwise errChangedObject.
func (b *Bucket) putAs(ctx context.Context, key string, body []byte, crc uint64, header http.Header, c condition) (string, error) {
	c, err := b.expect(ctx, key, c)
	if err != nil {
		return "", err
	}
	c.set(header)
	etag, err := b.put(ctx, key, body, crc, header)
	return etag, c.unmet(err)
}
