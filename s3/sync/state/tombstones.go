package state

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"os"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/s3/object"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// TombstonesDir holds one object for each sync that is deleting objects: their keys and ETags, as in the file that the
// machine keeps for itself. It is stored before the manifest that no longer has them, and deleted after them. If the
// sync is killed in between, syncs of other machines that list the bucket do not take these objects for new files.
const TombstonesDir = tree.Reserved + "/deleting/"

// MaxTombstones is the maximum size of such an object to read, in bytes.
const MaxTombstones = 256 << 20

// Tombstone is an object that a sync was about to delete.
type Tombstone struct {
	ETag string
	// Until is when the deletion was recorded, by the server's clock; an object that was stored later is another one.
	// Zero if it is not known.
	Until time.Time
}

// Covers reports whether an object with an ETag, stored at a time, is the one that was to be
// deleted. Servers round times to seconds.
func (t Tombstone) Covers(etag string, stored time.Time) bool {
	return t.ETag == etag && (t.Until.IsZero() || !stored.Truncate(time.Second).After(t.Until))
}

// TombstonesKey is the key of this machine's tombstones.
func (s *State) TombstonesKey() (string, error) {
	raw, err := os.ReadFile(s.File(TombstonesFile))
	if err == nil && len(raw) > 0 {
		return TombstonesDir + string(raw), nil
	}
	id := rand.Text()
	if err := atomicfile.Write(s.File(TombstonesFile), []byte(id), 0o600); err != nil {
		return "", errors.Wrapf(err, "record a deletion")
	}
	return TombstonesDir + id, nil
}

// EncodeDoomed returns objects as ReadDoomed reads them.
func EncodeDoomed(all []object.Doomed) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, d := range all {
		_ = enc.Encode(d) // two strings
	}
	return b.Bytes()
}

// OwnOnly reports whether all tombstones that were read or stored are this machine's.
func (s *State) OwnOnly() bool {
	own, err := s.TombstonesKey()
	for _, key := range s.Announced {
		if err != nil || key != own {
			return false
		}
	}
	return true
}
