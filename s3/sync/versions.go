package sync

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// Version is a copy of a volume's files at one time, below {prefix}/{unix time}/ (mission D4).
type Version struct {
	Time time.Time // to the second; its Unix time is the version's name
	// Whole is false for a version whose manifest is missing: it was never finished, or is being deleted.
	Whole bool
}

// Name returns the version's name, as used in keys and by users.
func (v Version) Name() string { return strconv.FormatInt(v.Time.Unix(), 10) }

// ParseVersion parses a version's name; "" is the zero Version, which stands for the latest.
func ParseVersion(name string) (Version, error) {
	if name == "" || name == "latest" {
		return Version{}, nil
	}
	at, err := strconv.ParseInt(name, 10, 64)
	if err != nil || at <= 0 || strconv.FormatInt(at, 10) != name {
		return Version{}, errors.Newf(errors.Invalid, "%.100q is no version: versions are Unix times, in seconds", name)
	}
	return Version{Time: time.Unix(at, 0)}, nil
}

// Versions lists the versions below b's prefix, latest first.
func (b *Bucket) Versions(ctx context.Context) ([]Version, error) {
	var all []Version
	in := &s3.ListObjectsV2Input{Bucket: &b.loc.Bucket, Prefix: aws.String(b.prefix), Delimiter: aws.String("/")}
	for page, err := range b.pages(ctx, in) {
		if err != nil {
			return nil, err
		}
		for _, p := range page.CommonPrefixes {
			name := strings.TrimSuffix(strings.TrimPrefix(aws.ToString(p.Prefix), b.prefix), "/")
			v, err := ParseVersion(name)
			if err != nil || v.Time.IsZero() {
				continue // not a version of Harvest
			}
			_, err = b.head(ctx, name+"/"+ManifestKey)
			if err != nil && errors.KindOf(err) != errors.NotFound {
				return nil, err
			}
			v.Whole = err == nil
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b Version) int { return b.Time.Compare(a.Time) })
	return all, nil
}

// Latest returns the latest complete version, or NotFound if there is none.
func (b *Bucket) Latest(ctx context.Context) (Version, error) {
	all, err := b.Versions(ctx)
	if err != nil {
		return Version{}, err
	}
	if i := slices.IndexFunc(all, func(v Version) bool { return v.Whole }); i >= 0 {
		return all[i], nil
	}
	return Version{}, errors.Newf(errors.NotFound, "%s has no version", b)
}

// Version returns the prefix of a version.
func (b *Bucket) Version(v Version) (*Bucket, error) { return b.At(b.prefix + v.Name()) }

// Save uploads the tree as a new version below b's prefix. The server copies unchanged files from
// the previous version. If nothing has changed, Save makes no new version and returns the previous
// one. It sets the direction to Up, and implies Mirror: a version has exactly the files of the
// tree.
func Save(ctx context.Context, t *tree.Tree, b *Bucket, o Options) (Version, Stats, error) {
	o.Direction, o.Mirror, o.version = Up, true, true
	last, err := b.Latest(ctx)
	if errors.KindOf(err) == errors.NotFound {
		err = nil
	}
	if err != nil {
		return Version{}, Stats{}, err
	}
	if last.Whole {
		if o.from, err = b.Version(last); err != nil {
			return Version{}, Stats{}, err
		}
		changed := false
		look := o
		look.DryRun, look.Progress, look.Plan = true, nil, func(a Action) { changed = changed || a.Op != Skip }
		if stats, err := Sync(ctx, t, o.from, look); err != nil || !changed {
			return last, stats, err
		}
	}
	next := Version{Time: time.Unix(max(time.Now().Unix(), last.Time.Unix()+1), 0), Whole: true}
	to, err := b.Version(next)
	if err != nil {
		return Version{}, Stats{}, err
	}
	stats, err := Sync(ctx, t, to, o)
	return next, stats, err
}

// Restore makes the tree like a version, the latest if v is zero. It sets the direction to Down.
func Restore(ctx context.Context, t *tree.Tree, b *Bucket, v Version, o Options) (Version, Stats, error) {
	if v.Time.IsZero() {
		var err error
		if v, err = b.Latest(ctx); err != nil {
			return Version{}, Stats{}, err
		}
	}
	from, err := b.Version(v)
	if err != nil {
		return Version{}, Stats{}, err
	}
	if _, err := from.head(ctx, ManifestKey); errors.KindOf(err) == errors.NotFound {
		return Version{}, Stats{}, errors.Newf(errors.NotFound, "%s has no version %s", b, v.Name())
	} else if err != nil {
		return Version{}, Stats{}, err
	}
	o.Direction, o.version = Down, true
	stats, err := Sync(ctx, t, from, o)
	return v, stats, err
}

// Prune deletes all complete versions but the latest keep ones, and returns the deleted versions.
// It also deletes incomplete versions after a day.
func (b *Bucket) Prune(ctx context.Context, keep int) ([]Version, error) {
	if keep < 1 {
		return nil, errors.Newf(errors.Invalid, "at least one version is kept, not %d", keep)
	}
	all, err := b.Versions(ctx)
	if err != nil {
		return nil, err
	}
	var deleted []Version
	for _, v := range all {
		if v.Whole {
			if keep--; keep >= 0 {
				continue
			}
		} else if time.Since(v.Time) < 24*time.Hour {
			continue
		}
		if err := b.deleteVersion(ctx, v); err != nil {
			return deleted, err
		}
		deleted = append(deleted, v)
	}
	return deleted, nil
}

// deleteVersion deletes the manifest first. From then on the version does not exist, even if the
// rest fails.
func (b *Bucket) deleteVersion(ctx context.Context, v Version) error {
	at, err := b.Version(v)
	if err != nil {
		return err
	}
	var failed error
	fail := func(_ string, err error) { failed = err }
	if err := at.delete(ctx, []string{ManifestKey}, fail); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	var keys []string
	for o, err := range at.all(ctx, anyOrder) {
		if err != nil {
			return err
		}
		if keys = append(keys, o.key); len(keys) < deleteAtOnce {
			continue
		}
		if err := at.delete(ctx, keys, fail); err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		keys = keys[:0]
	}
	err = at.delete(ctx, keys, fail)
	return errors.Join(err, failed)
}

// Limits for copies, in bytes: the largest object to copy in one request (S3's limit is 5 GiB), and
// the size of the parts of a larger one.
const (
	maxCopy  = 5 << 30
	copyPart = 1 << 30
)

// copy makes the server copy an entry's object from another prefix.
func (b *Bucket) copy(ctx context.Context, from *Bucket, e *tree.Entry) (*tree.Entry, error) {
	out := *e
	key := e.KeyUnder(from.prefix)
	out.Key = ""
	if to := out.KeyUnder(b.prefix); to != out.Order() {
		out.Key = to
	}
	target := out.KeyUnder(b.prefix)
	if e.BodySize() > maxCopy {
		call, cancel := b.within(ctx, 10*time.Minute)
		defer cancel()
		etag, err := b.copyParts(call, copySource(from, key), b.prefix+target, e, copyPart)
		out.ETag = etag
		return &out, err
	}
	etag, err := b.copyObject(ctx, from, key, target, e.ETag)
	if err != nil {
		return nil, err
	}
	out.ETag = cmp.Or(etag, out.ETag)
	return &out, nil
}

// copySource returns the source of a copy in the form of the request header.
func copySource(from *Bucket, key string) string {
	return url.PathEscape(from.loc.Bucket) + "/" + escapeKey(from.prefix+key)
}

// copyObject copies an object of at most maxCopy bytes that still has its ETag. It returns the ETag
// of the copy, or "" if the server does not return it.
func (b *Bucket) copyObject(ctx context.Context, from *Bucket, key, target, etag string) (string, error) {
	call, cancel := b.within(ctx, 10*time.Minute)
	defer cancel()
	source := copySource(from, key)
	res, err := b.s3.CopyObject(call, &s3.CopyObjectInput{Bucket: &b.loc.Bucket, Key: aws.String(b.prefix + target),
		CopySource:        &source,
		CopySourceIfMatch: aws.String(`"` + etag + `"`)}, b.patiently)
	if err != nil {
		return "", b.failed(ctx, err)
	}
	if res.CopyObjectResult == nil {
		return "", nil
	}
	return unquote(aws.ToString(res.CopyObjectResult.ETag)), nil
}

// copyParts copies an object in parts, if it is too large for one request.
func (b *Bucket) copyParts(ctx context.Context, source, target string, e *tree.Entry, size int64) (string, error) {
	begun, err := b.s3.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &b.loc.Bucket,
		Key: &target}, b.patiently)
	if err != nil {
		return "", b.failed(ctx, err)
	}
	failed := func(err error) (string, error) {
		b.abortUpload(context.WithoutCancel(ctx), strings.TrimPrefix(target, b.prefix), aws.ToString(begun.UploadId))
		return "", b.failed(ctx, err)
	}
	var done []types.CompletedPart
	for at := int64(0); at < e.BodySize(); at += size {
		part := aws.Int32(int32(len(done) + 1))
		reach := "bytes=" + strconv.FormatInt(at, 10) + "-" + strconv.FormatInt(min(at+size, e.BodySize())-1, 10)
		res, err := b.s3.UploadPartCopy(ctx, &s3.UploadPartCopyInput{Bucket: &b.loc.Bucket, Key: &target,
			CopySource: &source, CopySourceRange: &reach,
			CopySourceIfMatch: aws.String(`"` + e.ETag + `"`), PartNumber: part, UploadId: begun.UploadId}, b.patiently)
		if err == nil && res.CopyPartResult == nil {
			err = errDamaged
		}
		if err != nil {
			return failed(err)
		}
		done = append(done, types.CompletedPart{ETag: res.CopyPartResult.ETag, PartNumber: part})
	}
	res, err := b.s3.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: &b.loc.Bucket, Key: &target,
		UploadId:        begun.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: done}}, b.patiently)
	if err != nil {
		return failed(err)
	}
	return unquote(aws.ToString(res.ETag)), nil
}
