package s3sync

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// uploads remembers which uploads in parts this machine began to a place. Others may have begun some to the same keys, with other metadata, and
// may be at them right now: those are theirs. A failure to remember costs sending the parts again.
type uploads struct {
	dir string // "" remembers nothing
}

// begun is an upload that may be continued.
type begun struct {
	ID   string `json:"id"`
	What string `json:"what"` // a hash of size and metadata: what it was begun for
}

func (u uploads) file(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(u.dir, hex.EncodeToString(sum[:]))
}

// what is a hash of all that an upload is begun with.
func (e *Entry) what() string {
	raw, _ := json.Marshal(struct { // a map of strings cannot fail
		Size   int64
		Header map[string][]string
	}{e.body(), e.header()})
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// find returns the upload to key that was begun for e, and one that was begun for something else and is of no use any more; "" for none.
func (u uploads) find(key string, e *Entry) (id, other string) {
	if u.dir == "" {
		return "", ""
	}
	raw, err := os.ReadFile(u.file(key))
	var b begun
	if err != nil || json.Unmarshal(raw, &b) != nil {
		return "", ""
	}
	if b.What != e.what() {
		return "", b.ID
	}
	return b.ID, ""
}

func (u uploads) note(key string, e *Entry, id string) {
	if u.dir == "" {
		return
	}
	if raw, err := json.Marshal(begun{ID: id, What: e.what()}); err == nil && os.MkdirAll(u.dir, 0o700) == nil {
		_ = os.WriteFile(u.file(key), raw, 0o600)
	}
}

func (u uploads) forget(key string) {
	if u.dir != "" {
		_ = os.Remove(u.file(key))
	}
}

// sweep forgets those that are older than age.
func (u uploads) sweep(age time.Duration) {
	if u.dir == "" {
		return
	}
	all, err := os.ReadDir(u.dir)
	if err != nil {
		return
	}
	for _, f := range all {
		if info, err := f.Info(); err == nil && time.Since(info.ModTime()) > age {
			_ = os.Remove(filepath.Join(u.dir, f.Name()))
		}
	}
}
