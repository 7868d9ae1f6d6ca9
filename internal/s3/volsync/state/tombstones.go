package state

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"os"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// TombstonesDir holds one object for each sync that is deleting objects: their keys and ETags, as in the file that the
// machine keeps for itself. It is stored before the manifest that no longer has them, and deleted after them. If the
// sync is killed in between, syncs of other machines that list the bucket do not take these objects for new files.
const TombstonesDir = tree.Reserved + "/deleting/"

// MaxTombstones is the maximum size of such an object to read, in bytes.
const MaxTombstones = 256 << 20

// Tombstone is an object that a sync was about to delete.
type Tombstone struct {
	object.Doomed
	// Until is when another machine recorded the deletion, by the server's clock. An object that was stored later is
	// another one. Zero for deletions of this machine.
	Until time.Time
}

// Covers reports whether the object at the key, by its HEAD, is the one that was to be deleted. Tombstones of earlier
// versions of Harvest do not say when that one was stored.
func (t Tombstone) Covers(now object.Doomed) bool {
	switch {
	case now.ETag != t.ETag:
		return false
	case t.Stored != 0:
		return now.Stored == t.Stored
	}
	return t.Until.IsZero() || now.Stored != 0 && !time.Unix(now.Stored, 0).After(t.Until)
}

// MayCover reports whether a listed object may be the one that was to be deleted. Lists and HEAD may round a time to
// different seconds.
func (t Tombstone) MayCover(etag string, stored time.Time) bool {
	stored = stored.Truncate(time.Second)
	return etag == t.ETag && (t.Stored == 0 || stored.Unix() <= t.Stored+1) &&
		(t.Until.IsZero() || !stored.After(t.Until))
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
