package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/filelock"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

const (
	partSuffix = ".part" // of a blob being downloaded, or partly downloaded
	lockPoll   = 50 * time.Millisecond
)

// blobs are files named by the hex digits of their SHA-256. A file gets this name only after it was
// checked. Its mtime is that of its last use. Several processes may share the directory.
//
// Each account has its own blobs. Otherwise an account that knows a digest could get the layer
// without access to its registry, and learn from the timing which images others use.
type blobs struct{ dir string }

// accountsDir has the blobs of all accounts but the first, by name.
const accountsDir = "accounts"

func openBlobs(dir string) (*blobs, error) { return &blobs{dir}, os.MkdirAll(dir, 0o700) }

// of returns the blobs of an account.
func (b *blobs) of(owner string) (*blobs, error) {
	if owner == "" {
		return b, nil
	}
	own, err := openBlobs(filepath.Join(b.dir, accountsDir, filepath.Base(owner)))
	return own, tarfs.Explain(err, "blobs")
}

// all returns the blobs of every account.
func (b *blobs) all() ([]*blobs, error) {
	all := []*blobs{b}
	entries, err := os.ReadDir(filepath.Join(b.dir, accountsDir))
	if err != nil && !errors.IsNotExist(err) {
		return nil, err
	}
	for _, e := range entries {
		all = append(all, &blobs{filepath.Join(b.dir, accountsDir, e.Name())})
	}
	return all, nil
}

func (b *blobs) path(digest v1.Hash) string { return filepath.Join(b.dir, digest.Hex) }

// open opens a blob, or returns nil if it does not exist.
func (b *blobs) open(digest v1.Hash) (*os.File, error) {
	f, err := os.Open(b.path(digest))
	if errors.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "open a blob")
	}
	now := time.Now()
	if err := os.Chtimes(b.path(digest), now, now); err != nil && !errors.IsNotExist(err) { // removed: it stays open
		f.Close()
		return nil, errors.Wrapf(err, "mark a blob as used")
	}
	return f, nil
}

// put stores text as a blob.
func (b *blobs) put(ctx context.Context, digest v1.Hash, text []byte) error {
	f, err := b.lock(ctx, digest)
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(text, 0)
	}
	if err != nil {
		return full(err)
	}
	return b.publish(f.File, digest)
}

// lock opens the partial file of a blob, which it creates if missing, and locks it until it is
// closed.
func (b *blobs) lock(ctx context.Context, digest v1.Hash) (*filelock.Lock, error) {
	name := b.path(digest) + partSuffix
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, tarfs.Explain(err, "blobs")
		}
		lock, err := filelock.Exclusive(f)
		switch {
		case err == nil && isStill(f, name):
			return lock, nil
		case err == nil: // the previous holder has completed it
			lock.Close()
			continue
		}
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Wrapf(err, "lock a blob")
		}
		if err := sleep(ctx, lockPoll); err != nil {
			return nil, err
		}
	}
}

// isStill reports whether f still has that name.
func isStill(f *os.File, name string) bool {
	own, err1 := f.Stat()
	now, err2 := os.Stat(name)
	return err1 == nil && err2 == nil && os.SameFile(own, now)
}

// publish renames a checked file to its final name.
func (b *blobs) publish(f *os.File, digest v1.Hash) error {
	if err := f.Sync(); err != nil {
		return full(err)
	}
	return errors.Wrapf(os.Rename(f.Name(), b.path(digest)), "keep a blob")
}

// discard removes a blob if it exists.
func (b *blobs) discard(digest v1.Hash) error {
	if err := os.Remove(b.path(digest)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "remove a blob")
	}
	return nil
}

// blame determines the reason why a layer cannot be unpacked. If the file has changed on the disk
// since it was checked, blame removes it.
func (b *blobs) blame(f *os.File, digest v1.Hash, unreadable error) error {
	sum := sha256.New()
	_, err := f.Seek(0, io.SeekStart)
	if err == nil {
		_, err = io.Copy(sum, f)
	}
	if err != nil {
		return errors.Wrapf(err, "read a blob again")
	}
	if hex.EncodeToString(sum.Sum(nil)) == digest.Hex {
		return unreadable
	}
	err = errors.Explainf(unreadable, errors.Unavailable,
		"a layer that was kept on this machine is damaged; it was removed")
	return errors.Join(errors.Remedy(err, "try again, and check the disk of the data directory if it happens again"),
		b.discard(digest))
}

// full explains a write error.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = errors.Explainf(err, errors.Exhausted, "the disk is full: there is no space left for the image's layers")
		return errors.Remedy(err, "free some space on the disk of the data directory, or run harvest image gc")
	}
	return errors.Wrapf(err, "write a blob")
}

// fetch returns a blob, from the registry if it is not stored. told receives the number of further
// bytes, or a negative number if bytes must be fetched again.
func (b *blobs) fetch(ctx context.Context, r *remote, d v1.Descriptor, told func(int64)) (*os.File, error) {
	if err := checkDescriptor(d); err != nil {
		return nil, err
	}
	if f, err := b.open(d.Digest); f != nil || err != nil {
		told(d.Size)
		return f, err
	}
	part, err := b.lock(ctx, d.Digest)
	if err != nil {
		return nil, err
	}
	defer part.Close()
	if f, err := b.open(d.Digest); f != nil || err != nil { // another one has fetched it meanwhile
		told(d.Size)
		if err == nil {
			err = os.Remove(part.Name()) // created by our lock
		}
		return f, errors.Wrapf(err, "clean up the blobs")
	}
	err = r.each(ctx, func(s *session) error {
		return (&download{remote: r, session: s, part: part.File, want: d, told: told}).run(ctx)
	})
	if err != nil {
		return nil, err
	}
	if err := b.publish(part.File, d.Digest); err != nil {
		return nil, err
	}
	return b.open(d.Digest)
}

func checkDescriptor(d v1.Descriptor) error {
	if d.Digest.Algorithm != "sha256" || len(d.Digest.Hex) != 2*sha256.Size || d.Size < 0 {
		return errors.Newf(errors.Unsupported, "the image has a part with an unsupported digest: %.100q",
			d.Digest.String())
	}
	return nil
}

// download is the download of one blob.
type download struct {
	remote  *remote
	session *session
	part    *os.File
	want    v1.Descriptor
	told    func(int64)

	sum  hash.Hash
	have int64
	bad  bool // the data did not match
}

// run downloads the rest of a blob. It retries, without limit while there is progress.
func (d *download) run(ctx context.Context) error {
	if err := d.resume(); err != nil {
		return err
	}
	resumed := d.have > 0
	for failures := 0; ; {
		before := d.have
		err := d.once(ctx)
		if err == nil && d.have == d.want.Size {
			if err = d.verify(); err == nil {
				return nil
			}
		} else if err == nil {
			err = errors.Newf(errors.Unavailable, "the registry %s sent only a part of the image",
				hostOf(d.session.repo))
			err = errors.Remedy(err, "try again; if it fails again, check the registry and any proxy before it")
		}
		if ctx.Err() != nil || errors.KindOf(err) != errors.Unavailable || d.bad && !resumed {
			return err
		}
		resumed, d.bad = resumed && !d.bad, false // data of an earlier download may be bad: restart once
		if d.have > before {
			failures = 0
		}
		if failures++; failures == attempts {
			return err
		}
		if errors.Is(err, errRange) {
			if err := d.restart(); err != nil {
				return err
			}
		}
		if err := sleep(ctx, backoff(d.remote.source.pause, failures)); err != nil {
			return err
		}
	}
}

// resume takes over the data of an earlier download.
func (d *download) resume() error {
	d.sum = sha256.New()
	if _, err := d.part.Seek(0, io.SeekStart); err != nil {
		return errors.Wrapf(err, "read a blob")
	}
	n, err := io.Copy(d.sum, d.part)
	if err != nil {
		return errors.Wrapf(err, "read a blob")
	}
	d.have = n
	d.told(n)
	if n > d.want.Size {
		return d.restart()
	}
	return nil
}

func (d *download) restart() error {
	d.told(-d.have)
	d.have = 0
	d.sum.Reset()
	_, err := d.part.Seek(0, io.SeekStart)
	return errors.Wrapf(errors.Join(err, d.part.Truncate(0)), "clear a blob")
}

// once requests the missing data and writes it as it arrives.
func (d *download) once(ctx context.Context) error {
	if d.have == d.want.Size {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	header := http.Header{}
	if d.have > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(d.have, 10)+"-")
	}
	resp, err := d.remote.get(ctx, d.session, "blobs/"+d.want.Digest.String(), header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if d.have > 0 && !(resp.StatusCode == http.StatusPartialContent &&
		strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(d.have, 10)+"-")) {
		if resp.StatusCode == http.StatusPartialContent {
			return errRange
		}
		if err := d.restart(); err != nil { // the registry sends everything again
			return err
		}
	}
	stalled := errors.Newf(errors.Unavailable, "the registry %s stopped sending data", hostOf(d.session.repo))
	watch := time.AfterFunc(d.remote.source.stall, func() { cancel(stalled) })
	defer watch.Stop()
	buf := make([]byte, 128<<10)
	for {
		n, err := resp.Body.Read(buf)
		watch.Reset(d.remote.source.stall)
		if werr := d.write(buf[:n]); werr != nil {
			return werr
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil && context.Cause(ctx) == stalled:
			return stalled
		case err != nil:
			return d.remote.explain(d.session, err)
		}
	}
}

func (d *download) write(p []byte) error {
	if int64(len(p)) > d.want.Size-d.have {
		return d.wrong("more bytes than it announced")
	}
	if _, err := d.part.Write(p); err != nil {
		return full(err)
	}
	d.sum.Write(p)
	d.have += int64(len(p))
	d.told(int64(len(p)))
	return nil
}

// verify checks the downloaded data.
func (d *download) verify() error {
	if hex.EncodeToString(d.sum.Sum(nil)) == d.want.Digest.Hex {
		return nil
	}
	return d.wrong("another content than its digest says")
}

// wrong discards the downloaded data and returns an error.
func (d *download) wrong(what string) error {
	d.bad = true
	err := errors.Newf(errors.Unavailable, "the registry %s sent %s for a part of %s", hostOf(d.session.repo), what,
		d.remote.ref.Name())
	err = errors.Remedy(err, "try again; if it fails again, check the registry and any proxy before it")
	if failed := d.restart(); failed != nil {
		return failed
	}
	return err
}
