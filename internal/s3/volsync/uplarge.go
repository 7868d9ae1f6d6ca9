package volsync

import (
	"context"
	"os"

	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// uploadLarge uploads a file in parts. If it is interrupted, the parts stay and the next sync sends
// the rest. After any other failure it aborts the upload.
func (r *run) uploadLarge(ctx context.Context, f *os.File, e *tree.Entry, a *plan.Action) (*tree.Entry, error) {
	remote := a.Remote
	if mayAdopt(a) && has(remote, &tree.Entry{Kind: tree.File, Size: e.Size, Extents: e.Extents, CRC: remoteCRC(remote),
		HasCRC: true}, nil) {
		crc, err := r.checksum(ctx, f, e)
		if err != nil {
			return nil, err
		}
		if e.CRC, e.HasCRC = crc, true; crc == remote.CRC {
			return adopt(e, remote), r.unchanged(f, e)
		}
	}
	key := e.KeyUnder(r.b.Prefix())
	e.Key = ""
	if key != e.Order() {
		e.Key = key
	}
	h, c := object.MetaHeader(e), r.seen(key, remote)
	if err := r.b.KeepHeaders(ctx, key, h, e, c); err != nil {
		return nil, err // before spending time on the upload
	}
	id, other := "", ""
	if id, other = r.uploads.Find(r.b.Prefix()+key, e); a.Avoid != "" {
		id, other = "", id // its parts may be those of the object to avoid
	}
	if other != "" {
		r.b.AbortUpload(ctx, key, other)
	}
	up, err := r.b.BeginUpload(ctx, key, e, h, id)
	if err != nil {
		return nil, err
	}
	up.Unlike(a.Avoid)
	if up.ID != id {
		r.uploads.Note(r.b.Prefix()+key, e, up.ID)
	}
	r.progress.part(e.Path, -1)
	err = r.sendParts(ctx, f, e, up)
	if err == nil {
		err = r.unchanged(f, e)
	}
	if err == nil {
		e.CRC, e.HasCRC = 0, true
		for _, p := range up.Parts {
			e.CRC = object.CombineCRC(e.CRC, p.Crc, p.Length)
		}
		if err = r.noteSending(a, e); err == nil {
			e.ETag, err = r.b.CompleteUpload(ctx, up, e.CRC, c)
		}
	}
	resumable := err != nil && (ctx.Err() != nil || object.Fatal(err))
	if err != nil && !resumable {
		r.b.AbortUpload(context.WithoutCancel(ctx), key, up.ID)
	}
	if !resumable {
		r.uploads.Forget(r.b.Prefix() + key)
	}
	return e, err
}

func remoteCRC(e *tree.Entry) uint64 {
	if e == nil {
		return 0
	}
	return e.CRC
}

// checksum reads a file's content once and returns its CRC.
func (r *run) checksum(ctx context.Context, f *os.File, e *tree.Entry) (uint64, error) {
	const step = 4 << 20
	buf, release, err := r.buffer(ctx, step)
	if err != nil {
		return 0, err
	}
	defer release()
	crc := uint64(0)
	for at := int64(0); at < e.BodySize(); at += step {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		n := min(step, e.BodySize()-at)
		if err := tree.ReadContent(f, e, buf[:n], at); err != nil {
			return 0, err
		}
		crc = crc64nvme.Update(crc, buf[:n])
	}
	return crc, nil
}

// sendParts sends the parts that the bucket does not have yet.
func (r *run) sendParts(ctx context.Context, f *os.File, e *tree.Entry, up *object.Multipart) error {
	g, sending := errgroup.WithContext(ctx)
	g.SetLimit(object.PartsAtOnce)
	for i := range up.Parts {
		p := &up.Parts[i]
		buf, release, err := r.buffer(sending, p.Length)
		if err != nil {
			break // the group has the reason, or the caller's context
		}
		g.Go(func() error {
			defer release()
			if err := tree.ReadContent(f, e, buf, p.At); err != nil {
				return err
			}
			p.Crc = crc64nvme.Checksum(buf)
			if old, ok := up.There[p.Number]; ok && old.Matches(p, buf) {
				p.ETag = old.ETag
				r.progress.part(e.Path, p.Length)
				return nil
			}
			if err := r.b.SendPart(sending, up, p, buf); err != nil {
				return err
			}
			r.progress.part(e.Path, p.Length)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}
