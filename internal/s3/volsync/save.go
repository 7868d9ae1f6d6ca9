package volsync

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// Save uploads the tree as a new version below b's prefix. The server copies unchanged files from
// the previous version. If nothing has changed, Save makes no new version and returns the previous
// one. It sets the direction to Up, and implies Mirror: a version has exactly the files of the
// tree.
func Save(ctx context.Context, t *tree.Tree, b *object.Bucket, o Options) (object.Version, Stats, error) {
	o.Direction, o.Mirror, o.version = plan.Up, true, true
	last, err := b.Latest(ctx)
	if errors.KindOf(err) == errors.NotFound {
		err = nil
	}
	if err != nil {
		return object.Version{}, Stats{}, err
	}
	if last.Whole {
		if o.from, err = b.Version(last); err != nil {
			return object.Version{}, Stats{}, err
		}
		changed := false
		look := o
		look.DryRun, look.Progress, look.Plan = true, nil, func(a plan.Action) {
			changed = changed ||
				a.Op != plan.Skip
		}
		if stats, err := Sync(ctx, t, o.from, look); err != nil || !changed {
			return last, stats, err
		}
	}
	next := object.Version{Time: time.Unix(max(time.Now().Unix(), last.Time.Unix()+1), 0), Whole: true}
	to, err := b.Version(next)
	if err != nil {
		return object.Version{}, Stats{}, err
	}
	stats, err := Sync(ctx, t, to, o)
	return next, stats, err
}

// Restore makes the tree like a version, the latest if v is zero. It sets the direction to Down.
func Restore(ctx context.Context, t *tree.Tree, b *object.Bucket, v object.Version, o Options) (object.Version,
	Stats, error) {
	if v.Time.IsZero() {
		var err error
		if v, err = b.Latest(ctx); err != nil {
			return object.Version{}, Stats{}, err
		}
	}
	from, err := b.Version(v)
	if err != nil {
		return object.Version{}, Stats{}, err
	}
	if _, err := from.Head(ctx, manifest.Key); errors.KindOf(err) == errors.NotFound {
		err = errors.Newf(errors.NotFound, "%s has no version %s", b, v.Name())
		return object.Version{}, Stats{}, errors.Remedy(err, "list them with harvest volume versions")
	} else if err != nil {
		return object.Version{}, Stats{}, err
	}
	o.Direction, o.version = plan.Down, true
	stats, err := Sync(ctx, t, from, o)
	return v, stats, err
}
