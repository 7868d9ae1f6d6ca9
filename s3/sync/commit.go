package sync

import (
	"io"

	"context"

	"github.com/RelevanceAI/harvest/errors"
	"os"
)

// commit stores the new manifest if it differs from the bucket's, and then makes the new state
// current.
func (r *run) commit(ctx context.Context, st *state, remote *contents) error {
	if err := st.finish(); err != nil {
		return err
	}
	etag := remote.etag
	if remote.healed {
		etag = st.etag // the bucket has none that the next sync could trust
	}
	all := st.doomed(r.removed)
	if err := st.doom(all); err != nil {
		return err
	}
	if err := r.announceDeletions(ctx, st, all); err != nil {
		return err
	}
	if !st.down && (st.changed || remote.healed || remote.dropped || remote.b != r.b) {
		var err error
		if etag, err = r.b.putManifest(ctx, st.manifest, remote); err != nil {
			return err
		}
	}
	return st.replace(etag)
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
