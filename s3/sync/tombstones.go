package sync

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"os"
	"time"

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

func encodeDoomed(all []doomed) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, d := range all {
		_ = enc.Encode(d) // two strings
	}
	return b.Bytes()
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
