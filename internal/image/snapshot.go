package image

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// layerFile holds the layer of a snapshot, a tar stream in the form of an OCI layer.
const layerFile = "layer.tar"

// keptFile marks the snapshot of a suspended sandbox that belongs to its user by now. The manifest
// stays as it is: other processes hold a lock on that file.
const keptFile = "kept"

// snapshotPrefix begins the names of unfinished snapshots.
const snapshotPrefix = "snapshot-"

// Snapshot describes an image taken of a running sandbox.
type Snapshot struct {
	Size int64  `json:"size_bytes"`     // of the layer
	Path string `json:"path,omitempty"` // only the files below it were taken
	// Suspension means that it belongs to a suspended sandbox. It may be removed if it is unused and has no name,
	// unless Library.Keep was called.
	Suspension bool `json:"suspension,omitempty"`
	// Lineage lists the snapshots that lead to this one, oldest first, including this one. Earlier
	// images may have been deleted.
	Lineage []Origin `json:"lineage"`
}

// Origin is the source of a snapshot.
type Origin struct {
	Image   string    `json:"image"`   // image of the sandbox
	Sandbox string    `json:"sandbox"` // the sandbox
	Time    time.Time `json:"time"`
}

// Snapshotter is a Builder that stores snapshots of sandboxes.
type Snapshotter interface {
	// Snapshot makes an image of a sandbox of the image parent, which the caller keeps in use. fill
	// writes the difference to parent's root file system in the form of an OCI layer. If parent is
	// a snapshot, it is the difference to the root file system below it. When Snapshot returns, the
	// image is durable; after an error nothing of it is left. It returns Exhausted if the disk is
	// full.
	Snapshot(ctx context.Context, parent Image, opts SnapshotOptions, fill func(io.Writer) error) (Image, error)
}

// SnapshotOptions configures one Library.Snapshot.
type SnapshotOptions struct {
	Owner   string   // as in Spec
	Names   []string // names for the image; older images lose them
	Sandbox string   // the sandbox
	Path    string   // "" for all
	// Suspension is that of the Snapshot. Such an image is never one with another, although it has the same files.
	Suspension bool
	Root       string // root file system below the layer; "" is the parent's current one
}

// Layer returns the path of a snapshot's layer over its Root: a tar stream in the form of an OCI
// layer. It is "" for other images.
func (l *Library) Layer(img Image) string {
	if img.Snapshot == nil {
		return ""
	}
	return l.path(hexOf(img.Digest), layerFile)
}

// Snapshot implements Snapshotter. The root file system is shared with the parent instead of
// copied, and stays when the parent is deleted. A snapshot of a sandbox that came from a snapshot
// again has one layer over the same root. The layer is read back and verified before it is
// published. Errors of fill are returned.
func (l *Library) Snapshot(ctx context.Context, parent Image, opts SnapshotOptions,
	fill func(io.Writer) error) (img Image, err error) {
	names, err := l.checkNames(opts.Names)
	if err != nil {
		return Image{}, err
	}
	for i := range names {
		names[i] = stored(opts.Owner, names[i])
	}
	name := snapshotPrefix + rand.Text() // the digest is known once it is written
	lockName := l.path(lockDir, name)
	lock, err := tryLock(lockName)
	if err != nil || lock == nil {
		return Image{}, tarfs.Explain(err, "the snapshot")
	}
	temp := newPrefix + name
	defer func() {
		err = errors.Join(err, os.RemoveAll(l.path(temp)), os.Remove(lockName), lock.Close())
		err = errors.Stage(err, "image: snapshot")
	}()
	start := time.Now()
	img, err = l.layer(temp, parent, opts, fill)
	if err != nil {
		return Image{}, err
	}
	if err := context.Cause(ctx); err != nil {
		return Image{}, err
	}
	fault.Point("snapshot.taken")
	l.mu.Lock()
	defer l.mu.Unlock()
	if same, err := l.read(hexOf(img.Digest)); err == nil { // unchanged since the last one
		return l.named(same, names)
	}
	img.Built, img.BuildTime = time.Now().UTC(), time.Since(start)
	if err := l.describe(temp, img); err != nil {
		return Image{}, tarfs.Explain(err, manifestFile)
	}
	if err := l.publish(temp, hexOf(img.Digest)); err != nil {
		return Image{}, errors.Wrapf(err, "publish image %s", img.ID)
	}
	fault.Point("snapshot.published")
	logf.Infof(ctx, "image %s is a snapshot of sandbox %s, taken in %v, %d bytes", img.ID, opts.Sandbox,
		img.BuildTime.Round(time.Millisecond), img.Snapshot.Size)
	return l.named(img, names)
}

// Keep makes the snapshot of a suspended sandbox like any other one: it stays until its user deletes
// it. NotFound: it does not exist.
func (l *Library) Keep(_ context.Context, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	img, err := l.byID(id)
	if err != nil {
		return err
	}
	return errors.Wrapf(atomicfile.WriteDurable(l.path(hexOf(img.Digest), keptFile), nil, 0o600), "keep image %s", id)
}

// layer fills the directory temp with parent's root and the layer, and returns the image.
func (l *Library) layer(temp string, parent Image, opts SnapshotOptions, fill func(io.Writer) error) (Image, error) {
	if err := os.Mkdir(l.path(temp), 0o700); err != nil {
		return Image{}, tarfs.Explain(err, "the snapshot")
	}
	root, fingerprint, err := l.under(parent, opts)
	if err == nil {
		err = os.Link(root, l.path(temp, rootFile))
	}
	if err != nil {
		return Image{}, tarfs.Explain(err, "the root file system of image "+parent.ID)
	}
	f, err := os.OpenFile(l.path(temp, layerFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Image{}, tarfs.Explain(err, "the snapshot")
	}
	defer f.Close()
	written := &checked{w: f, sum: crc32.New(crc32.MakeTable(crc32.Castagnoli))}
	if err := fill(written); err != nil {
		if written.err != nil {
			err = tarfs.Explain(written.err, "the snapshot")
		}
		return Image{}, err
	}
	if err := f.Sync(); err != nil {
		return Image{}, tarfs.Explain(err, "the snapshot")
	}
	digest, err := verify(f, written)
	if err != nil {
		return Image{}, err
	}
	spec := Spec{Owner: opts.Owner, Parent: parent.ID, Layer: digest}
	full, err := spec.Digest(fingerprint)
	if err != nil {
		return Image{}, err
	}
	s := &Snapshot{Size: written.n, Path: opts.Path, Suspension: opts.Suspension,
		Lineage: []Origin{{Image: parent.ID, Sandbox: opts.Sandbox, Time: time.Now().UTC()}}}
	if parent.Snapshot != nil {
		s.Lineage = append(slices.Clone(parent.Snapshot.Lineage), s.Lineage...)
	}
	return Image{ID: idOf(full), Digest: full, Names: []string{}, Spec: spec, Config: parent.Config, Size: parent.Size,
		Parts: parent.Parts, Missing: parent.Missing, Snapshot: s}, nil
}

// under returns the root file system below a snapshot's layer, and a fingerprint that distinguishes
// images with the same parent and layer: the parent may have been rebuilt since the sandbox began,
// or since another snapshot.
func (l *Library) under(parent Image, opts SnapshotOptions) (root string, fingerprint []byte, err error) {
	root = cmp.Or(opts.Root, l.Root(parent))
	info, err := os.Stat(root)
	if err != nil {
		return "", nil, err
	}
	fingerprint = fmt.Appendf(nil, "%s\x00%d bytes of %d", opts.Path, info.Size(), info.ModTime().UnixNano())
	if opts.Suspension {
		fingerprint = append(fingerprint, "\x00suspension of "+opts.Sandbox...)
	}
	return root, fingerprint, nil
}

// checked is a writer that computes a fast checksum, since the sandbox waits meanwhile.
type checked struct {
	w   io.Writer
	sum hash.Hash32
	n   int64
	err error
}

func (c *checked) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	_, _ = c.sum.Write(p[:n]) // never fails
	if err != nil {
		c.err = err
	}
	return n, err
}

// verify reads the file back, compares it with the written data, and returns its digest.
func verify(f *os.File, written *checked) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", errors.Wrapf(err, "read the snapshot again")
	}
	digest, sum := sha256.New(), crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(io.MultiWriter(digest, sum), bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return "", errors.Wrapf(err, "read the snapshot again")
	}
	if n != written.n || sum.Sum32() != written.sum.Sum32() {
		return "", errors.Remedy(errors.Newf(errors.Internal,
			"the disk does not return the data that the snapshot wrote"),
			"check the disk of the data directory")
	}
	return digestPrefix + hex.EncodeToString(digest.Sum(nil)), nil
}
