package object

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
)

// Version is a copy of a volume's files at one time, below {prefix}/{unix time}/.
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
		return Version{}, errors.Newf(errors.Invalid, "invalid version %.100q: want a Unix time in seconds", name)
	}
	return Version{Time: time.Unix(at, 0)}, nil
}

// Versions lists the versions below b's prefix, latest first.
func (b *Bucket) Versions(ctx context.Context) ([]Version, error) {
	var all []Version
	in := &sdk.ListObjectsV2Input{Bucket: &b.loc.Bucket, Prefix: aws.String(b.prefix), Delimiter: aws.String("/")}
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
			_, err = b.Head(ctx, name+"/"+manifest.Key)
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

// Latest returns the latest complete version, or NotFound if no version exists.
func (b *Bucket) Latest(ctx context.Context) (Version, error) {
	all, err := b.Versions(ctx)
	if err != nil {
		return Version{}, err
	}
	if i := slices.IndexFunc(all, func(v Version) bool { return v.Whole }); i >= 0 {
		return all[i], nil
	}
	return Version{}, errors.Remedy(errors.Newf(errors.NotFound, "%s has no version", b),
		"save one with harvest volume sync --versioned")
}

// Version returns the prefix of a version.
func (b *Bucket) Version(v Version) (*Bucket, error) { return b.At(b.prefix + v.Name()) }

// Prune deletes all complete versions but the latest keep ones, and returns the deleted versions.
// It also deletes incomplete versions after a day.
func (b *Bucket) Prune(ctx context.Context, keep int) ([]Version, error) {
	if keep < 1 {
		return nil, errors.Newf(errors.Invalid, "invalid number of versions to keep: %d: keep at least one", keep)
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
		if err := b.DeleteVersion(ctx, v); err != nil {
			return deleted, err
		}
		deleted = append(deleted, v)
	}
	return deleted, nil
}

// DeleteVersion deletes the manifest first. From then on the version does not exist, even if the
// rest fails.
func (b *Bucket) DeleteVersion(ctx context.Context, v Version) error {
	at, err := b.Version(v)
	if err != nil {
		return err
	}
	var failed error
	fail := func(_ string, err error) { failed = err }
	if err := at.Delete(ctx, []string{manifest.Key}, fail); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	var keys []string
	for o, err := range at.All(ctx, AnyOrder) {
		if err != nil {
			return err
		}
		if keys = append(keys, o.Key); len(keys) < DeleteAtOnce {
			continue
		}
		if err := at.Delete(ctx, keys, fail); err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		keys = keys[:0]
	}
	err = at.Delete(ctx, keys, fail)
	return errors.Join(err, failed)
}
