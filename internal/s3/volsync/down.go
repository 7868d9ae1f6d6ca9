package volsync

import (
	"context"
	"net/http"
	"strings"

	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// download puts an entry of the bucket at path, and returns it with its inode there. The content is
// compared with the checksum of the manifest or the server (3.5) before the file gets its name.
func (r *run) download(ctx context.Context, a *plan.Action, path string) (*tree.Entry, error) {
	e, key := *a.Remote, a.Remote.KeyUnder(r.b.Prefix())
	e.Path = path
	if e.Kind == tree.Symlink {
		return r.place(&e, a)
	}
	out, err := r.downloadFile(ctx, &e, key, a)
	if r.o.Direction == plan.Both { // a changed object is planned anew
		if object.NoSuchKey(err) { // the manifest has it, and another program deleted it
			err = errors.Join(object.ErrChangedObject, err)
		}
		return out, err
	}
	if !errors.Is(err, object.ErrChangedObject) {
		return out, err
	}
	// Another writer replaced the object after the manifest was stored: download the current one.
	now, err := r.b.Stat(ctx, key)
	if err != nil {
		return nil, err
	}
	now.Path, now.Key = path, a.Remote.Key
	return r.downloadFile(ctx, now.Learn(a.Remote), key, a)
}

// place makes a symbolic link.
func (r *run) place(e *tree.Entry, a *plan.Action) (*tree.Entry, error) {
	if a.CopyTo == "" {
		if err := r.still(a); err != nil {
			return nil, err
		}
	}
	if a.Merge {
		r.p.KeepMeta(e, a.Local, a.Base)
	}
	at, err := r.t.Symlink(e, r.restoring(), a.CopyTo != "" || a.Local == nil)
	return arrived(e, at, err)
}

func (r *run) restoring() tree.Restoring { return tree.Restoring{Owners: r.o.Owners, SetID: r.o.SetID} }

// arrived records the inode of an entry on this machine.
func arrived(e, at *tree.Entry, err error) (*tree.Entry, error) {
	if err != nil {
		return nil, err
	}
	e.Inode, e.Change = at.Inode, at.Change
	return e, nil
}

// still fails if the volume no longer has the entry that the plan saw. Another process works there,
// and its changes are not overwritten.
func (r *run) still(a *plan.Action) error {
	now, err := r.t.Lstat(a.Path)
	if err != nil {
		return err
	}
	return r.stillIs(a, now)
}

// stillIs is still for a caller that knows the volume's current entry.
func (r *run) stillIs(a *plan.Action, now *tree.Entry) error {
	switch {
	case now == nil:
		return nil
	case a.Local == nil:
		return tree.InTheWay(now.TypeBits())
	case now.Kind != a.Local.Kind || now.Kind != tree.Dir && !r.isStill(a.Local, now):
		return tree.ErrChanged
	}
	if now.Nlink > 1 {
		r.relink(now, nil)
	}
	return nil
}

// relink notes that the sync is about to change the ctime of an inode with several names: it replaces or removes one of
// them, adds one, or, if meta is not nil, gives the inode the metadata of meta.
func (r *run) relink(now, meta *tree.Entry) {
	if meta == nil {
		r.relinked.LoadOrStore(now.Inode, meta)
		return
	}
	r.relinked.Store(now.Inode, meta)
}

// isStill reports whether a file or link is as it was. If the sync itself changed the inode through another name, its
// ctime proves nothing: then size, mtime and other metadata decide, which may be those that the sync has set.
func (r *run) isStill(was, now *tree.Entry) bool {
	if now.Inode != was.Inode || now.Change == was.Change {
		return now.Inode == was.Inode
	}
	if _, relinked := r.relinked.Load(now.Inode); !relinked || now.Size != was.Size {
		return false
	}
	set := r.set(now)
	return r.sameStat(now, was) || set != nil && r.sameStat(now, set)
}

// set returns an entry with the metadata that the sync itself gave an inode with several names, or nil.
func (r *run) set(now *tree.Entry) *tree.Entry {
	meta, _ := r.relinked.Load(now.Inode)
	set, _ := meta.(*tree.Entry)
	return set
}

// sameStat reports whether a file of the volume has the metadata of e, as far as stat returns it.
func (r *run) sameStat(now, e *tree.Entry) bool {
	return now.Mode == e.Mode && now.UID == e.UID && now.GID == e.GID && now.ModTime == r.t.StoredTime(e.ModTime)
}

// setMeta gives a file, link or directory of the volume, whose current entry is now, the metadata of e.
func (r *run) setMeta(e, now *tree.Entry) (*tree.Entry, error) {
	if now.Kind == tree.File && now.Nlink > 1 {
		r.relink(now, r.restored(e, now))
	}
	return r.t.SetMeta(e, r.restoring())
}

func (r *run) downloadFile(ctx context.Context, e *tree.Entry, key string, a *plan.Action) (*tree.Entry, error) {
	if err := r.writing(ctx); err != nil {
		return nil, err
	}
	if e.BodySize() <= buffer.PartSize {
		return r.downloadSmall(ctx, e, key, a)
	}
	w, err := r.t.Create(e.Path)
	if err != nil {
		return nil, err
	}
	defer w.Discard()
	if err := r.fetchLarge(ctx, w, e, key); err != nil {
		return nil, err
	}
	// The file has its full size from the start. After a power failure, the next sync would take it
	// for complete.
	if err := unix.Fdatasync(int(w.Fd())); err != nil {
		return nil, tree.ExplainFile(err)
	}
	return r.settled(w, e, a)
}

// downloadSmall reads a whole file into memory and checks it before it creates anything in the
// volume.
func (r *run) downloadSmall(ctx context.Context, e *tree.Entry, key string, a *plan.Action) (*tree.Entry, error) {
	if a.Packed != nil {
		body, ok, err := a.Packed(ctx, e)
		if err != nil {
			return nil, err
		}
		if ok {
			return r.makeSmall(ctx, e, body, a)
		}
	}
	buf, release, err := r.buffer(ctx, e.BodySize())
	if err != nil {
		return nil, err
	}
	defer release()
	body, err := r.fetchSmall(ctx, e, key, buf)
	if err != nil {
		return nil, err
	}
	if e.Kind == tree.Symlink { // the object's metadata says so
		return r.place(e, a)
	}
	return r.makeSmall(ctx, e, body, a)
}

// makeSmall makes a file from content in memory.
func (r *run) makeSmall(ctx context.Context, e *tree.Entry, body []byte, a *plan.Action) (*tree.Entry, error) {
	if err := r.disk.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	defer r.disk.Release(1)
	w, err := r.t.Create(e.Path)
	if err != nil {
		return nil, err
	}
	defer w.Discard()
	if err := tree.WriteContent(w, e, body, 0); err != nil {
		return nil, err
	}
	return r.settled(w, e, a)
}

// settled moves a written file into place.
func (r *run) settled(w *tree.Writer, e *tree.Entry, a *plan.Action) (*tree.Entry, error) {
	if e.Extents != nil {
		if err := w.Truncate(e.Size); err != nil {
			return nil, tree.ExplainFile(err)
		}
	}
	check := func(now *tree.Entry) error { return r.stillIs(a, now) }
	if a.CopyTo != "" {
		check = func(now *tree.Entry) error {
			if now != nil {
				return tree.InTheWay(now.TypeBits())
			}
			return nil
		}
	} else if a.Merge {
		r.p.KeepMeta(e, a.Local, a.Base)
	}
	own := r.journal
	if a.CopyTo != "" || a.Merge {
		own = nil // it differs from the bucket's object at the path
	}
	if err := own.NoteFetching(w, e); err != nil {
		return nil, err
	}
	at, err := w.Commit(e, r.restoring(), a.CopyTo != "" || a.Local == nil, check)
	if e, err = arrived(e, at, err); err != nil {
		return nil, err
	}
	return e, own.NoteArrived(e)
}

// fetchSmall reads an object into buf, and takes the metadata that no manifest has from its
// headers.
func (r *run) fetchSmall(ctx context.Context, e *tree.Entry, key string, buf []byte) ([]byte, error) {
	var known *uint64
	if e.HasCRC {
		known = &e.CRC
	}
	n := int64(len(buf))
	res, err := r.b.GetKnown(ctx, key, e.ETag, 0, n, n, buf, known)
	if err != nil {
		return nil, err
	}
	if e.Foreign {
		object.Describe(e, res.Header)
		if e.Kind == tree.Symlink {
			if e.Target = string(res.Body); e.Target == "" || len(e.Target) > 4095 ||
				strings.IndexByte(e.Target, 0) >= 0 {
				return nil, errors.Newf(errors.Invalid, "it is marked as a symbolic link, but has no target")
			}
		}
	}
	return res.Body, nil
}

func (r *run) fetchLarge(ctx context.Context, w *tree.Writer, e *tree.Entry, key string) error {
	n := e.BodySize()
	if err := unix.Fallocate(int(w.Fd()), 0, 0, n); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return tree.ExplainFile(err) // before spending time on the download
	}
	var header http.Header // with the checksum, if another program wrote the object
	if e.Foreign {
		res, err := r.b.Head(ctx, key)
		if err != nil {
			return err
		}
		if object.Describe(e, res.Header); e.Kind == tree.Symlink {
			return errors.Newf(errors.Invalid, "it is marked as a symbolic link, but has %d bytes", n)
		}
		if !e.HasCRC && e.ETag == object.Unquote(res.Header.Get("ETag")) {
			header = res.Header
			e.CRC, e.HasCRC = object.FullCRC(header)
		}
	}
	for attempt := 1; ; attempt++ {
		crc, err := r.fetchParts(ctx, w, e, key)
		if err != nil || e.HasCRC && crc == e.CRC {
			return err
		}
		if !e.HasCRC {
			if err := r.b.Sound(ctx, key, n, header, w); !errors.Is(err, object.ErrDamaged) {
				return err
			}
		}
		if attempt == 3 {
			return object.ErrDamaged
		}
	}
}

// fetchParts fetches an object in parts, and returns the checksum of the whole. S3 does not say
// which part is damaged.
func (r *run) fetchParts(ctx context.Context, w *tree.Writer, e *tree.Entry, key string) (uint64, error) {
	n := e.BodySize()
	r.progress.part(e.Path, -1)
	parts := object.CutUp(n, buffer.PartSize) // downloads have no limit on the number of parts
	g, part := errgroup.WithContext(ctx)
	g.SetLimit(object.PartsAtOnce)
	for i := range parts {
		p := &parts[i]
		buf, release, err := r.buffer(part, p.Length)
		if err != nil {
			break
		}
		g.Go(func() error {
			defer release()
			res, err := r.b.Get(part, key, e.ETag, p.At, p.Length, n, buf)
			if err != nil {
				return err
			}
			p.Crc = crc64nvme.Checksum(res.Body)
			r.progress.part(e.Path, p.Length)
			return tree.WriteContent(w, e, res.Body, p.At)
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	crc := uint64(0)
	for _, p := range parts {
		crc = object.CombineCRC(crc, p.Crc, p.Length)
	}
	return crc, nil
}

// timeLost reports whether a job gave an entry of the volume a time that the file system cannot
// hold.
func (r *run) timeLost(j *job) bool {
	return (j.Op == plan.Download || j.Op == plan.UpdateLocal) && j.out != nil &&
		r.t.StoredTime(j.out.ModTime) != j.out.ModTime
}
