package volsync

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"io"
	"maps"
	"math"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// reconcile checks whether a path that changed on both sides, judging by its metadata, has the same
// content. Then there is no conflict. That is so for a tree that both sides have when this machine
// first syncs it. Content that cannot be read counts as different; the operation that follows
// reports why.
func (r *run) reconcile(ctx context.Context, a *plan.Action) error {
	l, rem := a.Local, a.Remote
	if l == nil || rem == nil || l.Kind == tree.Dir || rem.Kind == tree.Dir || l.Kind != rem.Kind && !rem.Foreign {
		return nil
	}
	if rem.Foreign { // a list shows sizes only, of links too
		if max(l.Size, int64(len(l.Target))) != rem.Size {
			return nil
		}
		now, err := r.b.Stat(ctx, rem.KeyUnder(r.b.Prefix()))
		if err != nil && (object.Fatal(err) || ctx.Err() != nil) {
			return err
		}
		if err != nil || now.ETag != rem.ETag || now.Kind != l.Kind {
			return nil
		}
		now.Path, now.Key = rem.Path, rem.Key
		rem = now
	}
	same := r.sameBytes(ctx, l, rem)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if same {
		a.Settled()
		a.Op, a.Remote = plan.UpdateRemote, rem
	}
	return nil
}

// sameBytes reports whether the bucket has the content of a file or link of the volume.
func (r *run) sameBytes(ctx context.Context, l, rem *tree.Entry) bool {
	if l.Kind == tree.Symlink {
		if !rem.Foreign {
			return rem.Target == l.Target
		}
		target := []byte(l.Target)
		if rem.HasCRC {
			return rem.CRC == crc64nvme.Checksum(target)
		}
		return rem.ETag == md5sum(bytes.NewReader(target))
	}
	e := *l
	f, err := r.opened(&e)
	if err != nil {
		return false
	}
	defer f.Close()
	if e.BodySize() != rem.BodySize() {
		return false
	}
	if e.CRC, err = r.checksum(ctx, f, &e); err != nil {
		return false
	}
	return has(rem, &e, func() string { return md5sum(f) }) && r.unchanged(f, &e) == nil
}

// md5sum returns the ETag that most servers give an object uploaded in one piece, or "" if the
// content cannot be read.
func md5sum(content io.ReaderAt) string {
	sum := md5.New()
	if _, err := io.Copy(sum, io.NewSectionReader(content, 0, math.MaxInt64)); err != nil {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// unclear reports whether the file must be read to find its change: its inode differs from this
// machine's record, its size does not, and the bucket's side changed too.
func (r *run) unclear(local, base, remote *tree.Entry) bool {
	return r.o.Direction == plan.Both && local != nil && plan.Known(base) && local.Kind == tree.File &&
		base.Kind == tree.File &&
		local.Size == base.Size &&
		!local.Untouched(base) && (remote == nil || !plan.SameObject(base, remote))
}

// look reads a file if that is necessary and returns its change since base. A file that cannot be
// read counts as changed.
func (r *run) look(ctx context.Context, local, base, remote *tree.Entry) (*plan.Change, error) {
	if !r.unclear(local, base, remote) {
		return nil, nil
	}
	all := &plan.Change{Content: true, Meta: true}
	e := *local
	f, err := r.opened(&e)
	if err != nil {
		return all, nil
	}
	defer f.Close()
	if e.CRC, err = r.checksum(ctx, f, &e); ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil || r.unchanged(f, &e) != nil || !has(base, &e, func() string { return md5sum(f) }) {
		return all, nil
	}
	local.Xattrs = e.Xattrs
	for _, want := range []*tree.Entry{r.p.Restored(base, &e), r.set(&e)} {
		if want != nil && plan.SameMeta(&e, want) && maps.Equal(e.Xattrs, want.Xattrs) {
			return &plan.Change{}, nil
		}
	}
	return &plan.Change{Meta: true}, nil
}
