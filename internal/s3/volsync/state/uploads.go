package state

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Uploads records the uploads in parts that this machine began to a place. Other programs may have
// uploads to the same keys in progress, which must be left alone. If the record is lost, the parts
// are sent again.
type Uploads struct {
	Dir string // "" disables the record
}

// begun is an upload that may be continued.
type begun struct {
	ID   string `json:"id"`
	What string `json:"what"` // a hash of the size and metadata of the file
}

func (u Uploads) file(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(u.Dir, hex.EncodeToString(sum[:]))
}

// what returns a hash of the parameters of an upload.
func what(e *tree.Entry) string {
	raw, _ := json.Marshal(struct { // a map of strings cannot fail
		Size   int64
		Header map[string][]string
	}{e.BodySize(), object.MetaHeader(e)})
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Find returns the upload to key that was begun for e, and an obsolete one that was begun for
// another content. Either may be "".
func (u Uploads) Find(key string, e *tree.Entry) (id, other string) {
	if u.Dir == "" {
		return "", ""
	}
	raw, err := os.ReadFile(u.file(key))
	var b begun
	if err != nil || json.Unmarshal(raw, &b) != nil {
		return "", ""
	}
	if b.What != what(e) {
		return "", b.ID
	}
	return b.ID, ""
}

// Note records an upload to key that was begun for e.
func (u Uploads) Note(key string, e *tree.Entry, id string) {
	if u.Dir == "" {
		return
	}
	if raw, err := json.Marshal(begun{ID: id, What: what(e)}); err == nil && os.MkdirAll(u.Dir, 0o700) == nil {
		_ = atomicfile.Write(u.file(key), raw, 0o600)
	}
}

// Forget removes the record of an upload to key.
func (u Uploads) Forget(key string) {
	if u.Dir != "" {
		_ = os.Remove(u.file(key))
	}
}

// Sweep deletes records older than age.
func (u Uploads) Sweep(age time.Duration) {
	if u.Dir == "" {
		return
	}
	all, err := os.ReadDir(u.Dir)
	if err != nil {
		return
	}
	for _, f := range all {
		if info, err := f.Info(); err == nil && time.Since(info.ModTime()) > age {
			_ = os.Remove(filepath.Join(u.Dir, f.Name()))
		}
	}
}
