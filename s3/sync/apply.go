package sync

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// atOnce does the work that needs no request or must happen in order. A job with work left for a
// worker gets a channel.
func (r *run) atOnce(ctx context.Context, j *job) {
	r.asRestored(j)
	if j.merge && j.Kind == tree.Dir {
		j.local, j.merge = r.p.merged(j.local, j.base, j.remote), false
		r.dirs = append(r.dirs, j.local)
	}
	r.remember(j)
	switch {
	case j.unsure:
		j.done = make(chan struct{})
		return
	case j.aside:
		j.out = j.remote
		return
	}
	switch j.Op {
	case Skip:
		j.err = j.Err
		if r.elsewhere(j) {
			j.done = make(chan struct{})
		}
	case Keep:
		j.out = kept(j.local, j.remote)
		if r.o.from != nil && j.out != nil && j.out.ETag != "" {
			j.done = make(chan struct{})
		}
	case Download:
		if j.remote.Kind == tree.Dir {
			j.out, j.err = r.makeDir(j)
			return
		}
		if j.remote.Link != "" && j.copyTo == "" {
			// Its other name exists once all files are in place.
			r.later = append(r.later, j)
			j.out = j.remote
			return
		}
		j.done = make(chan struct{})
	case UpdateLocal:
		if j.remote.Kind == tree.Dir {
			r.dirs = append(r.dirs, j.remote)
			j.out = kept(j.local, j.remote)
			return
		}
		j.done = make(chan struct{})
	case DeleteLocal:
		if j.local.Kind == tree.Dir {
			r.gone = append(r.gone, j.local)
			return
		}
		r.deleteLocal(j)
	case DeleteRemote:
		if r.o.from != nil {
			return // the previous version stays unchanged
		}
		if j.first {
			r.deleteFirst(ctx, j)
		} else if j.remote.ETag != "" {
			j.done = make(chan struct{})
		}
	default:
		j.done = make(chan struct{})
	}
}

// remember notes the directories above j. Their times change when an entry in them does, and are
// restored at the end.
func (r *run) remember(j *job) {
	if r.o.Direction == Up {
		return
	}
	for len(r.above) > 0 && !strings.HasPrefix(j.Path, r.above[len(r.above)-1].Path+"/") {
		r.above = r.above[:len(r.above)-1]
	}
	if n := len(r.above); n > 0 && r.above[n-1].Path == tree.Parent(j.Path) &&
		(j.Op == Download || j.Op == UpdateLocal || j.Op == DeleteLocal) {
		if k := len(r.dirs); k == 0 || r.dirs[k-1] != r.above[n-1] {
			r.dirs = append(r.dirs, r.above[n-1])
		}
	}
	switch {
	case j.remote != nil && j.remote.Kind == tree.Dir && j.Op == Keep && !j.remote.Unmarked():
		r.above = append(r.above, j.remote)
	case j.local != nil && j.local.Kind == tree.Dir && (j.Op == UpdateRemote || j.Op == Upload):
		r.above = append(r.above, j.local) // as it is uploaded
	}
}

// kept returns the bucket's entry for a path that stays unchanged on both sides, with the volume's
// inode.
func kept(local, remote *tree.Entry) *tree.Entry {
	if remote == nil || local == nil || remote.Inode == local.Inode && remote.Change == local.Change {
		return remote
	}
	e := *remote
	e.Inode, e.Change = local.Inode, local.Change
	return &e
}

// deleteFirst deletes an object at once, since another one takes its place. If others changed it,
// it is kept as a copy.
func (r *run) deleteFirst(ctx context.Context, j *job) {
	if j.copyTo != "" {
		if j.err = r.saveCopy(ctx, j); j.err != nil {
			return
		}
	}
	key := j.remote.KeyUnder(r.b.prefix)
	var refused error
	if j.err = r.b.deleteKnown(ctx, []doomed{{key, j.remote.ETag}},
		func(_ string, err error) { refused = err }); j.err == nil {
		j.err = refused
	}
}

// makeDir makes a directory. Its metadata is set once its entries are in place.
func (r *run) makeDir(j *job) (*tree.Entry, error) {
	if r.o.Direction != Up && (r.o.Mirror || r.o.Direction == Both) {
		if now, err := r.t.Lstat(j.Path); err == nil && now != nil && now.Kind != tree.Dir {
			if err := r.outOfTheWay(j.Path, now); err != nil {
				return nil, err
			}
		}
	}
	if _, err := r.t.Mkdir(j.Path); err != nil {
		if r.o.Direction != Both {
			return nil, err
		}
		if err := r.makeWay(j.Path); err != nil {
			return nil, err
		}
	}
	r.dirs = append(r.dirs, j.remote)
	now, err := r.t.Lstat(j.Path)
	return kept(now, j.remote), err
}

// outOfTheWay removes a file where a directory belongs, if the sync goes down only or was to delete
// the file. Otherwise both sides keep it.
func (r *run) outOfTheWay(path string, now *tree.Entry) error {
	r.way.Lock()
	defer r.way.Unlock()
	r.mu.Lock()
	i := slices.IndexFunc(r.goneFiles, func(a Action) bool { return a.Path == path })
	var gone Action
	if i >= 0 {
		gone = r.goneFiles[i]
		r.goneFiles = slices.Delete(r.goneFiles, i, i+1)
	}
	r.mu.Unlock()
	if r.o.Direction == Down || i >= 0 && r.stillIs(&gone, now) == nil {
		return r.t.Remove(path, now.Kind)
	}
	return r.setAside(path)
}

// elsewhere reports whether the object of a path is in the previous version, and not in the new
// one.
func (r *run) elsewhere(j *job) bool {
	return r.o.from != nil && j.remote != nil && j.remote.ETag != ""
}

// transfer does a worker's part of a job. If a file cannot be stored in a new version, the version
// gets the file of the previous one.
func (r *run) transfer(ctx context.Context, j *job) {
	if j.Op != Skip {
		r.attempt(ctx, j)
	}
	if j.err == nil || !r.elsewhere(j) {
		return
	}
	var err error
	if j.was, err = r.b.copy(ctx, r.o.from, j.remote); err != nil {
		if j.was = nil; fatal(err) {
			j.err = err
		}
	}
}

// carryOut carries out the action of a job.
func (r *run) carryOut(ctx context.Context, j *job) {
	if j.copyTo != "" {
		// Both changed: save the bucket's file beside the volume's before it is replaced.
		if j.err = r.saveCopy(ctx, j); j.err != nil {
			return
		}
	}
	if j.merge && j.Op != Download {
		if j.err = r.mergeHere(j); j.err != nil {
			return
		}
	}
	switch j.Op {
	case Upload:
		j.out, j.err = r.upload(ctx, &j.Action)
		if j.err == nil && j.remote != nil && j.out.ETag == j.remote.ETag && j.Kind != tree.Dir {
			j.settle(UpdateRemote)
		}
	case UpdateRemote:
		j.out, j.err = r.updateRemote(ctx, &j.Action)
		if j.err == nil {
			if j.out.ETag != j.remote.ETag && j.Kind != tree.Dir {
				j.Op = Upload
			} else {
				j.settle(UpdateRemote)
			}
		}
	case Keep:
		if j.out = kept(j.local, j.remote); r.o.from != nil {
			r.carry(ctx, j)
		}
		return
	case Download:
		r.bring(ctx, j)
	case UpdateLocal:
		j.out, j.err = r.updateLocal(ctx, j)
	case DeleteLocal:
		r.deleteLocal(j)
	case DeleteRemote:
		if j.err = r.b.holds(ctx, j.remote.KeyUnder(r.b.prefix), condition{etag: j.remote.ETag}); j.err == nil {
			r.deleteThere(j)
		}
	}
	if j.out == nil || j.out.ETag == "" || j.err != nil {
		return
	}
	j.Size = j.out.BodySize()
	if from := r.o.from; from != nil && j.remote != nil && j.out.ETag == j.remote.ETag &&
		(j.Op == Keep || j.Op == UpdateRemote) {
		r.carry(ctx, j)
	}
}

// bring downloads a file.
func (r *run) bring(ctx context.Context, j *job) {
	j.out, j.err = r.download(ctx, &j.Action, j.Path)
	if j.err != nil && r.o.Direction == Both && r.t.Shadowed(j.Path) {
		r.way.Lock()
		err := r.makeWay(tree.Parent(j.Path))
		r.way.Unlock()
		if err == nil {
			j.out, j.err = r.download(ctx, &j.Action, j.Path)
		}
	}
	if j.local == nil && passing(j.Path) && errors.Is(j.err, errors.NotFound) {
		j.Op, j.out, j.err = Keep, nil, nil
	}
}

// deleteLocal notes that a file of the volume is to be deleted, once all deletions are known.
func (r *run) deleteLocal(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.goneFiles = append(r.goneFiles, j.Action)
}

// deleteThere notes that an object is to be deleted once the new manifest is stored.
func (r *run) deleteThere(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed = append(r.removed, doomed{j.remote.KeyUnder(r.b.prefix), j.remote.ETag})
}

// passingName matches the names under which versitygw briefly stores an object while it replaces
// another one (backend/posix, linkatOTmpfile).
var passingName = pattern.New(`^\.(.+)\.sgwtmp\.[0-9]{19}$`)

// passing reports whether a path may be a transient entry of a list. It is one only if the object
// is gone when it is fetched.
func passing(path string) bool {
	return passingName().MatchString(path[strings.LastIndexByte(path, '/')+1:])
}

// carry copies an object from the previous version. If that fails, the file is uploaded again.
func (r *run) carry(ctx context.Context, j *job) {
	out, err := r.b.copy(ctx, r.o.from, j.out)
	if err != nil && ctx.Err() == nil && !fatal(err) && j.local != nil {
		again := Action{Op: Upload, Path: j.Path, Kind: j.Kind, local: j.local, empty: true}
		out, err = r.upload(ctx, &again)
	}
	j.out, j.err = out, err
}

// settle notes that at most the metadata changed.
func (j *job) settle(op Op) {
	j.Op = op
	if j.out.Same(j.remote) && (j.out.Extents == nil) == (j.remote.Extents == nil) {
		j.Op = Keep
		j.out = kept(j.out, j.remote)
	}
}

// updateLocal gives a file or link the bucket's metadata, after checking that the content is the
// same.
func (r *run) updateLocal(ctx context.Context, j *job) (*tree.Entry, error) {
	want := j.remote
	if want.Foreign {
		now, err := r.b.stat(ctx, want.KeyUnder(r.b.prefix))
		if err != nil {
			return nil, err
		}
		now.Path, now.Key = want.Path, want.Key
		if !now.SameContent(j.local) {
			j.Op = Download
			return r.download(ctx, &j.Action, j.Path)
		}
		want = now
	}
	if j.local.Kind == tree.File {
		have := *j.local
		f, err := r.opened(&have)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if r.o.Contents || known(j.base) && !j.local.Untouched(j.base) {
			// If the inode changed, size and time prove nothing.
			if have.CRC, err = r.checksum(ctx, f, &have); err != nil {
				return nil, err
			}
			if !has(want, &have, func() string { return md5sum(f) }) {
				j.Op = Download
				return r.download(ctx, &j.Action, j.Path)
			}
		}
		if have.Link = want.Link; have.Same(r.restored(want, &have)) {
			j.Op = Keep
			return kept(j.local, want), nil
		}
	}
	at, err := r.t.SetMeta(want, r.restoring())
	e := *want
	return arrived(&e, at, err)
}

// restored returns the entry that the volume has after e is restored over now.
func (r *run) restored(e, now *tree.Entry) *tree.Entry { return r.p.restored(e, now) }

// asRestored handles effects of restores, which no plan knows. A directory or link that only lacks
// attributes which a restore does not set is up to date. A file that an earlier restore left
// without its setuid and setgid bits gets them if they are restored now.
func (r *run) asRestored(j *job) {
	l, rem := j.local, j.remote
	if r.o.Direction == Up || l == nil || rem == nil || l.Kind != rem.Kind || rem.Foreign || !r.concerns(l, rem) {
		return
	}
	switch {
	case j.Op == Keep && r.o.SetID && l.Mode != rem.Mode && l.Mode == rem.Mode&^tree.SetID:
		j.Op = UpdateLocal
	case j.Op == UpdateLocal && l.Kind != tree.File && l.Same(r.restored(rem, l)):
		j.Op = Keep
	}
}

// finishLocal does the work that must wait until all files are in place: hard links, removal of
// directories, and metadata of those that stay.
func (r *run) finishLocal(ctx context.Context) error {
	for _, j := range r.later {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := r.still(&j.Action)
		if err == nil {
			_, err = r.t.Link(j.remote.Link, j.Path)
		}
		if err != nil {
			// If its other name could not be restored, the file has its own object.
			_, err = r.download(ctx, &j.Action, j.Path)
		}
		if err != nil {
			r.fail(j.Path, err)
		}
	}
	for _, a := range r.goneFiles {
		err := r.still(&a)
		if err == nil {
			err = r.t.Remove(a.Path, a.local.Kind)
		}
		if err != nil {
			r.count(func(s *Stats) { s.Deleted-- })
			r.fail(a.Path, err)
		}
	}
	for i := len(r.gone) - 1; i >= 0; i-- {
		err := r.t.Remove(r.gone[i].Path, tree.Dir)
		if errors.Is(err, unix.ENOTEMPTY) && r.o.Direction == Both {
			r.count(func(s *Stats) { s.Deleted-- })
			r.oncemore.Store(true) // it still holds files: it is uploaded again
			continue
		}
		if err != nil {
			r.fail(r.gone[i].Path, err)
		}
	}
	if err := r.describeDirs(ctx); err != nil {
		return err
	}
	for i := len(r.dirs) - 1; i >= 0; i-- {
		if _, err := r.t.SetMeta(r.dirs[i], r.restoring()); err != nil {
			r.fail(r.dirs[i].Path, err)
		}
	}
	if r.o.Direction == Up {
		return nil
	}
	r.count(func(s *Stats) { s.There = time.Since(r.start) })
	if err := r.durable(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsettled.settled(r.stats.Failed == 0 && r.o.Only == "")
}

// describeDirs requests the metadata of directories that others stored as objects. Without
// metadata, the entry stays as listed.
func (r *run) describeDirs(ctx context.Context) error {
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	asked := map[*tree.Entry]bool{}
	for _, e := range r.dirs {
		if !e.Foreign || e.Unmarked() || asked[e] {
			continue
		}
		asked[e] = true
		g.Go(func() error {
			err := r.b.describeMarker(asking, e)
			if fatal(err) || asking.Err() != nil {
				return err
			}
			if err != nil {
				r.fail(e.Path, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// deleteAtOnce is the number of objects that one request can delete.
// Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html
const deleteAtOnce = 1000

// delete deletes at most deleteAtOnce objects. Missing ones count as deleted.
func (b *Bucket) delete(ctx context.Context, keys []string, failed func(string, error)) error {
	all := make([]doomed, len(keys))
	for i, key := range keys {
		all[i].Key = key
	}
	return b.deleteAll(ctx, all, failed)
}

// deleteKnown deletes at most deleteAtOnce objects that still have their ETags. The others fail
// with errChangedObject.
func (b *Bucket) deleteKnown(ctx context.Context, all []doomed, failed func(string, error)) error {
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	var mu sync.Mutex
	var same []doomed
	for _, d := range all {
		g.Go(func() error {
			res, err := b.head(asking, d.Key)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.KindOf(err) == errors.NotFound:
			case fatal(err) || asking.Err() != nil:
				return err
			case err != nil:
				failed(d.Key, err)
			case unquote(res.header.Get("ETag")) != d.ETag:
				failed(d.Key, errChangedObject)
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
func (b *Bucket) deleteAll(ctx context.Context, all []doomed, failed func(string, error)) error {
	if len(all) == 0 {
		return nil
	}
	if b.single.Load() {
		return b.deleteSingly(ctx, all, failed)
	}
	in := &s3.DeleteObjectsInput{Bucket: &b.loc.Bucket, Delete: &types.Delete{Quiet: aws.Bool(true)},
		ChecksumAlgorithm: types.ChecksumAlgorithmCrc32}
	for _, d := range all {
		in.Delete.Objects = append(in.Delete.Objects, types.ObjectIdentifier{Key: aws.String(b.prefix + d.Key),
			ETag: d.match()})
	}
	call, cancel := b.within(ctx, 0)
	defer cancel()
	how := []func(*s3.Options){b.patiently}
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
func (b *Bucket) deleteSingly(ctx context.Context, all []doomed, failed func(string, error)) error {
	g, deleting := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	var mu sync.Mutex
	for _, d := range all {
		g.Go(func() error {
			call, cancel := b.within(deleting, 0)
			defer cancel()
			in := &s3.DeleteObjectInput{Bucket: &b.loc.Bucket, Key: aws.String(b.prefix + d.Key), IfMatch: d.match()}
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
			if errors.KindOf(err) != errors.Denied && !errors.Is(err, errChangedObject) {
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

// putManifest writes the manifest, unless another sync has replaced the one that this sync read.
func (b *Bucket) putManifest(ctx context.Context, f *os.File, old *contents) (string, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", errors.Wrapf(err, "read a manifest")
	}
	etag := old.etag
	if old.b != b {
		etag = ""
	}
	return b.putIf(ctx, ManifestKey, f, size, "application/zstd", etag)
}

// putIf stores an object of Harvest's own if the current one still has the ETag, or does not exist
// if etag is "". Otherwise it fails with errOvertaken.
func (b *Bucket) putIf(ctx context.Context, key string, body io.ReaderAt, size int64, contentType,
	etag string) (string, error) {
	in := &s3.PutObjectInput{Bucket: &b.loc.Bucket, Key: aws.String(b.prefix + key), ContentLength: &size,
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
		if err = b.failed(ctx, err); errors.Is(err, errChangedObject) {
			return "", errOvertaken
		}
		return "", err
	}
	return unquote(aws.ToString(out.ETag)), nil
}
