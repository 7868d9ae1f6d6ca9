package sync

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// tombstonesDir holds one object for each sync that is deleting objects: their keys and ETags, as in the file that the
// machine keeps for itself. It is stored before the manifest that no longer has them, and deleted after them. If the
// sync is killed in between, syncs of other machines that list the bucket do not take these objects for new files.
const tombstonesDir = tree.Reserved + "/deleting/"

// maxTombstones is the maximum size of such an object to read, in bytes.
const maxTombstones = 256 << 20

// tombstone is an object that a sync was about to delete.
type tombstone struct {
	etag string
	// until is when the deletion was recorded, by the server's clock; an object that was stored later is another one.
	// Zero if it is not known.
	until time.Time
}

// covers reports whether an object with an ETag, stored at a time, is the one that was to be
// deleted. Servers round times to seconds.
func (t tombstone) covers(etag string, stored time.Time) bool {
	return t.etag == etag && (t.until.IsZero() || !stored.Truncate(time.Second).After(t.until))
}

// tombstonesKey is the key of this machine's tombstones.
func (s *state) tombstonesKey() (string, error) {
	raw, err := os.ReadFile(s.file(stateTombstones))
	if err == nil && len(raw) > 0 {
		return tombstonesDir + string(raw), nil
	}
	id := rand.Text()
	if err := atomicfile.Write(s.file(stateTombstones), []byte(id), 0o600); err != nil {
		return "", errors.Wrapf(err, "record a deletion")
	}
	return tombstonesDir + id, nil
}

// announceDeletions stores the tombstones of the objects to delete once the manifest is stored.
func (r *run) announceDeletions(ctx context.Context, st *state, all []doomed) error {
	if len(all) == 0 || r.versions() {
		return nil
	}
	key, err := st.tombstonesKey()
	if err != nil {
		return err
	}
	body := encodeDoomed(all)
	if _, err = r.b.put(ctx, key, body, crc64nvme.Checksum(body), nil); err == nil {
		st.announced = append(st.announced, key)
	}
	return err
}

func encodeDoomed(all []doomed) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, d := range all {
		_ = enc.Encode(d) // two strings
	}
	return b.Bytes()
}

// readTombstones adds the unfinished deletions of other machines to those of st.
func (r *run) readTombstones(ctx context.Context, st *state) error {
	in := &s3.ListObjectsV2Input{Bucket: &r.b.loc.Bucket, Prefix: aws.String(r.b.prefix + tombstonesDir)}
	for page, err := range r.b.pages(ctx, in) {
		if err != nil {
			return err
		}
		for i := range page.Contents {
			key, ok := strings.CutPrefix(aws.ToString(page.Contents[i].Key), r.b.prefix)
			size := aws.ToInt64(page.Contents[i].Size)
			if !ok || size > maxTombstones {
				continue
			}
			raw := make([]byte, size)
			_, err := r.b.get(ctx, key, unquote(aws.ToString(page.Contents[i].ETag)), 0, size, size, raw)
			if errors.KindOf(err) == errors.NotFound || errors.Is(err, errChangedObject) {
				continue // the other sync has finished or replaced it
			}
			if err != nil {
				return err
			}
			for d := range readDoomed(bufio.NewReader(bytes.NewReader(raw))) {
				if _, mine := st.left[d.Key]; !mine && d.ETag != "" {
					st.left[d.Key] = tombstone{d.ETag, aws.ToTime(page.Contents[i].LastModified)}
				}
			}
			st.announced = append(st.announced, key)
		}
	}
	return nil
}

// forgetDeletions deletes the tombstones of finished deletions. It keeps those of other machines
// while the manifest still has such objects, since a sync in progress may be about to drop them.
func (r *run) forgetDeletions(ctx context.Context, st *state) error {
	if len(st.announced) == 0 || r.o.Direction == Down {
		return nil
	}
	for key := range st.kept {
		if !st.void[key] && !st.ownOnly() {
			return nil
		}
	}
	return r.b.delete(ctx, st.announced, func(string, error) {}) // remains are small and read again
}

// ownOnly reports whether all tombstones that were read or stored are this machine's.
func (s *state) ownOnly() bool {
	own, err := s.tombstonesKey()
	for _, key := range s.announced {
		if err != nil || key != own {
			return false
		}
	}
	return true
}
