package volsync

import (
	"context"
	"io"
	"os"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/remote"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// commit stores the new manifest if it differs from the bucket's, and then makes the new state
// current.
func (r *run) commit(ctx context.Context, st *state.State, remote *remote.Contents) error {
	if err := st.Finish(); err != nil {
		return err
	}
	etag := remote.ETag
	if remote.Healed {
		etag = st.ManifestETag // the bucket has none that the next sync could trust
	}
	all := st.ToDelete(r.removed)
	if err := st.Doom(all); err != nil {
		return err
	}
	if err := r.announceDeletions(ctx, st, all); err != nil {
		return err
	}
	if !st.Down && (st.Changed || remote.Healed || remote.Dropped || remote.B != r.b) {
		var err error
		if etag, err = putManifest(ctx, r.b, st.Manifest, remote); err != nil {
			return err
		}
	}
	return st.Replace(etag)
}

// putManifest writes the manifest, unless another sync has replaced the one that this sync read.
func putManifest(ctx context.Context, b *object.Bucket, f *os.File, old *remote.Contents) (string, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", errors.Wrapf(err, "read a manifest")
	}
	etag := old.ETag
	if old.B != b {
		etag = ""
	}
	return b.PutIf(ctx, manifest.Key, f, size, "application/zstd", etag)
}
