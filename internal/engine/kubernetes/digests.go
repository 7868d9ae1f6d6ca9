package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// digests are the SHA-256 digests of files of images. They are kept in a file, because an image has some hundred
// megabytes.
type digests struct {
	file string
	busy sync.Mutex // held while a file is read, so that no file is read twice

	mu  sync.Mutex
	all map[string]digest // by path; guarded by mu
}

// digest is the digest of a file that did not change. Its change time says nothing: it also changes with the number of
// links, and sandboxes are links to files of images.
type digest struct {
	Size, Modified int64
	Inode          uint64
	Sum            string
}

// openDigests reads the file. It is a cache: a damaged one is as good as none.
func openDigests(file string) *digests {
	d := &digests{file: file, all: map[string]digest{}}
	if b, err := os.ReadFile(file); err == nil {
		_ = json.Unmarshal(b, &d.all)
	}
	return d
}

// of returns the digest of a file, in hexadecimal digits.
func (d *digests) of(ctx context.Context, path string) (string, error) {
	if sum, ok := d.find(path); ok {
		return sum, nil
	}
	d.busy.Lock()
	defer d.busy.Unlock()
	if sum, ok := d.find(path); ok {
		return sum, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", errors.Wrapf(err, "open a file of an image")
	}
	defer f.Close()
	state, err := stateOf(f)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, &canceled{ctx, f}); err != nil {
		return "", errors.Wrapf(err, "read a file of an image")
	}
	state.Sum = hex.EncodeToString(hash.Sum(nil))
	d.mu.Lock()
	defer d.mu.Unlock()
	for other := range d.all {
		if _, err := os.Lstat(other); err != nil {
			delete(d.all, other)
		}
	}
	d.all[path] = state
	b, err := json.Marshal(d.all)
	if err == nil {
		err = atomicfile.Write(d.file, b, 0o600)
	}
	if err != nil {
		logf.Warnf(ctx, "the digest of a file is not kept: %v", err)
	}
	return state.Sum, nil
}

// find returns a digest that is known and still right.
func (d *digests) find(path string) (string, bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	now, err := stateOf(f)
	if err != nil {
		return "", false
	}
	d.mu.Lock()
	known, ok := d.all[path]
	d.mu.Unlock()
	now.Sum = known.Sum
	return known.Sum, ok && known == now
}

// stateOf returns what changes when a file does.
func stateOf(f *os.File) (digest, error) {
	info, err := f.Stat()
	if err != nil {
		return digest{}, errors.Wrapf(err, "look at a file of an image")
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return digest{}, errors.Errorf("a file without an inode")
	}
	return digest{Size: info.Size(), Modified: stat.Mtim.Nano(), Inode: stat.Ino}, nil
}

// canceled is a reader that fails when ctx ends.
type canceled struct {
	ctx context.Context
	io.Reader
}

func (c *canceled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.Reader.Read(p)
}
