package volsync

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"os"
	"strings"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// upload uploads an entry, and returns the bucket's entry.
func (r *run) upload(ctx context.Context, a *plan.Action) (*tree.Entry, error) {
	e := *a.Local
	switch e.Kind {
	case tree.Dir:
		return r.uploadDir(ctx, a, &e)
	case tree.Symlink:
		return r.store(ctx, &e, []byte(e.Target), a)
	}
	for attempt := 1; ; attempt++ {
		out, err := r.uploadFile(ctx, e, a)
		if !errors.Is(err, tree.ErrChanged) || attempt == 3 {
			return out, err
		}
	}
}

// uploadDir stores the object that shows an empty directory, or one with an unusual mode, to tools
// that cannot read the manifest.
func (r *run) uploadDir(ctx context.Context, a *plan.Action, e *tree.Entry) (*tree.Entry, error) {
	if a.Remote != nil {
		e.Key, e.ETag, e.CRC, e.HasCRC = a.Remote.Key, a.Remote.ETag, a.Remote.CRC, a.Remote.HasCRC
	}
	if a.Remote != nil && a.Remote.Blocked || !e.NeedsObject(a.Empty) || e.ETag != "" && a.Remote.Mode == e.Mode &&
		!a.Remote.Foreign {
		return e, nil
	}
	return r.store(ctx, e, nil, a)
}

// seen returns the condition under which an object replaces remote. A new version needs none, since
// no other sync writes to it, nor do keys in the reserved directory, which only Harvest uses.
func (r *run) seen(key string, remote *tree.Entry) object.Condition {
	if r.versions() || strings.HasPrefix(key, tree.Reserved+"/") || remote != nil &&
		remote.KeyUnder(r.b.Prefix()) != key {
		return object.Condition{}
	}
	return object.Expecting(remote)
}

// store uploads a body if the bucket still has the action's object. Otherwise it returns ErrChangedObject.
func (r *run) store(ctx context.Context, e *tree.Entry, body []byte, a *plan.Action) (*tree.Entry, error) {
	key := e.KeyUnder(r.b.Prefix())
	e.Key = ""
	if key != e.Order() {
		e.Key = key
	}
	e.CRC, e.HasCRC = crc64nvme.Checksum(body), true
	if body == nil {
		body = []byte{}
	}
	var err error
	h, c := object.MetaHeader(e), r.seen(key, a.Remote)
	if err := r.b.KeepHeaders(ctx, key, h, e, c); err != nil {
		return nil, err
	}
	if err := r.noteSending(a, e); err != nil {
		return nil, err
	}
	if a.Avoid != "" && !object.InParts(a.Avoid) && e.Kind != tree.Dir { // servers refuse parts of a directory
		e.ETag, err = r.b.PutInParts(ctx, key, body, e, h, c)
	} else {
		e.ETag, err = r.b.PutAs(ctx, key, body, e.CRC, h, c)
	}
	return e, err
}

// opened opens a file for upload and updates e to its current state.
func (r *run) opened(e *tree.Entry) (*os.File, error) {
	f, st, err := r.t.Open(e.Path)
	if err != nil {
		return nil, err
	}
	now := tree.FromStat(e.Path, st)
	now.Link, now.Unknown = e.Link, e.Unknown
	if r.t.StoredTime(e.ModTime) == now.ModTime {
		now.ModTime = e.ModTime
	}
	*e = *now
	if err := tree.Details(f, e); err != nil {
		f.Close()
		return nil, err
	}
	if len(e.Xattrs) > 0 {
		e.Unknown &^= tree.FactXattrs
	}
	return f, nil
}

// unchanged returns an error if f no longer matches e.
func (r *run) unchanged(f *os.File, e *tree.Entry) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return tree.ExplainFile(err)
	}
	if now := tree.FromStat(e.Path, &st); now.Size != e.Size || !r.isStill(e, now) {
		return tree.ErrChanged
	}
	return nil
}

// uploadFile uploads a file, unless the bucket already has its content.
func (r *run) uploadFile(ctx context.Context, e tree.Entry, a *plan.Action) (*tree.Entry, error) {
	f, err := r.opened(&e)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if e.BodySize() > buffer.PartSize {
		return r.uploadLarge(ctx, f, &e, a)
	}
	n := e.BodySize()
	buf, release, err := r.buffer(ctx, n)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := tree.ReadContent(f, &e, buf, 0); err != nil {
		return nil, err
	}
	if err := r.unchanged(f, &e); err != nil {
		return nil, err
	}
	e.CRC, e.HasCRC = crc64nvme.Checksum(buf), true
	if mayAdopt(a) && has(a.Remote, &e, func() string {
		sum := md5.Sum(buf)
		return hex.EncodeToString(sum[:])
	}) {
		return adopt(&e, a.Remote), nil
	}
	return r.store(ctx, &e, buf, a)
}

// buffer waits for memory for n bytes and returns it. The caller must call release.
func (r *run) buffer(ctx context.Context, n int64) (buf []byte, release func(), err error) {
	w := min(buffer.Weight(n), r.room)
	if err := r.sem.Acquire(ctx, w); err != nil {
		return nil, nil, context.Cause(ctx)
	}
	b := r.buffers.Get(n)
	return b.B[:n], func() {
		r.buffers.Put(b)
		r.sem.Release(w)
	}, nil
}

// has reports whether the bucket's object has the content of e, whose checksum is known.
func has(remote, e *tree.Entry, md5sum func() string) bool {
	if remote == nil || remote.Kind != tree.File || remote.ETag == "" || remote.BodySize() != e.BodySize() ||
		(remote.Extents == nil) != (e.Extents == nil) {
		return false
	}
	if remote.HasCRC {
		return remote.CRC == e.CRC
	}
	// A 32-digit ETag often is the MD5 of the content. If it is not, the file is uploaded.
	return len(remote.ETag) == 32 && md5sum != nil && md5sum() == remote.ETag
}

// mayAdopt reports whether an action may use the object that is there.
func mayAdopt(a *plan.Action) bool {
	return a.Remote != nil && (a.Avoid == "" || a.Remote.ETag != a.Avoid)
}

// adopt makes e refer to an object that already has the content.
func adopt(e, remote *tree.Entry) *tree.Entry {
	e.Key, e.ETag, e.Unsent = remote.Key, remote.ETag, true
	return e
}

// updateRemote records new metadata for a path whose content is in the bucket. It changes only the
// manifest: objects keep their headers.
func (r *run) updateRemote(ctx context.Context, a *plan.Action) (*tree.Entry, error) {
	e := *a.Local
	if e.Kind != tree.File {
		return r.upload(ctx, a)
	}
	if plan.Known(a.Base) && !a.Local.Untouched(a.Base) || a.Remote.Foreign || r.o.Contents {
		// The inode is different or changed, but size and mtime are not: the content must be
		// compared.
		return r.upload(ctx, a)
	}
	f, err := r.opened(&e)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !e.SameContent(a.Remote) || (e.Extents == nil) != (a.Remote.Extents == nil) {
		return r.upload(ctx, a)
	}
	e.CRC, e.HasCRC = a.Remote.CRC, a.Remote.HasCRC
	return adopt(&e, a.Remote), nil
}
