package sync

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"strconv"

	"github.com/RelevanceAI/harvest/s3/tree"
	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"
)

// uploadLarge uploads a file in parts. If it is interrupted, the parts stay and the next sync sends
// the rest. After any other failure it aborts the upload.
func (r *run) uploadLarge(ctx context.Context, f *os.File, e, remote *tree.Entry) (*tree.Entry, error) {
	if has(remote, &tree.Entry{Kind: tree.File, Size: e.Size, Extents: e.Extents, CRC: remoteCRC(remote),
		HasCRC: true}, nil) {
		crc, err := r.checksum(ctx, f, e)
		if err != nil {
			return nil, err
		}
		if e.CRC, e.HasCRC = crc, true; crc == remote.CRC {
			return adopt(e, remote), unchanged(f, e)
		}
	}
	key := e.KeyUnder(r.b.Prefix())
	e.Key = ""
	if key != e.Order() {
		e.Key = key
	}
	h, c := metaHeader(e), r.seen(key, remote)
	if err := r.b.keep(ctx, key, h, e, c); err != nil {
		return nil, err // before spending time on the upload
	}
	id, other := r.uploads.find(r.b.Prefix()+key, e)
	if other != "" {
		r.b.abortUpload(ctx, key, other)
	}
	up, err := r.b.beginUpload(ctx, key, e, h, id)
	if err != nil {
		return nil, err
	}
	if up.id != id {
		r.uploads.note(r.b.Prefix()+key, e, up.id)
	}
	r.progress.part(e.Path, -1)
	err = r.sendParts(ctx, f, e, up)
	if err == nil {
		err = unchanged(f, e)
	}
	if err == nil {
		e.CRC, e.HasCRC = 0, true
		for _, p := range up.parts {
			e.CRC = combineCRC(e.CRC, p.crc, p.length)
		}
		if err = r.noteSending(e); err == nil {
			e.ETag, err = r.b.completeUpload(ctx, up, e.CRC, c)
		}
	}
	resumable := err != nil && (ctx.Err() != nil || fatal(err))
	if err != nil && !resumable {
		r.b.abortUpload(context.WithoutCancel(ctx), key, up.id)
	}
	if !resumable {
		r.uploads.forget(r.b.Prefix() + key)
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
func (r *run) sendParts(ctx context.Context, f *os.File, e *tree.Entry, up *multipart) error {
	g, sending := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for i := range up.parts {
		p := &up.parts[i]
		buf, release, err := r.buffer(sending, p.length)
		if err != nil {
			break // the group has the reason, or the caller's context
		}
		g.Go(func() error {
			defer release()
			if err := tree.ReadContent(f, e, buf, p.at); err != nil {
				return err
			}
			p.crc = crc64nvme.Checksum(buf)
			if old, ok := up.there[p.number]; ok && old.matches(p, buf) {
				p.etag = old.etag
				r.progress.part(e.Path, p.length)
				return nil
			}
			q := url.Values{"partNumber": {strconv.Itoa(int(p.number))}, "uploadId": {up.id}}
			res, err := r.b.send(sending, request{method: http.MethodPut, key: up.key, query: q,
				body: buf, crc: &p.crc})
			if err != nil {
				return err
			}
			p.etag = unquote(res.header.Get("ETag"))
			r.progress.part(e.Path, p.length)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}
