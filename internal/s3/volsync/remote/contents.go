// Package remote yields the entries of a bucket as a sync sees them: from its manifest, from a list,
// or from both.
package remote

import (
	"context"
	"iter"
	"net/http"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// maxManifest is the maximum size of a manifest to fetch, in bytes.
const maxManifest = 4 << 30

// Contents is the content of a bucket below its prefix.
type Contents struct {
	B *object.Bucket
	// ETag is the manifest's ETag, or "".
	ETag string
	// known: the manifest is the one in this machine's state.
	Known bool
	// healed: the manifest is unusable or missing, and a list replaces it.
	Healed bool
	// memory: this machine's state replaces the lost manifest, for objects that the bucket still
	// has.
	Memory bool
	List   bool
	// dropped: the manifest has entries whose objects are missing.
	Dropped bool
	Empty   bool   // there is neither an object nor a manifest
	File    string // the fetched manifest
	// entries are the entries of a small manifest.
	entries  []*tree.Entry
	complete bool // lists show keys beneath objects: the server is Amazon's
}

// fewEntries and fewBytes limit a manifest whose entries are kept in memory after it is checked. A
// larger one is read twice.
const (
	fewEntries = 20_000
	fewBytes   = 16 << 20
)

// Close removes the fetched manifest.
func (c *Contents) Close() {
	if c.File != "" {
		_ = os.Remove(c.File)
	}
}

// Read determines the content of the bucket. If the manifest is the one in st, this takes a
// single request.
func Read(ctx context.Context, b *object.Bucket, st *state.State, list bool) (*Contents, error) {
	c := &Contents{B: b, List: list}
	res, err := b.Head(ctx, manifest.Key)
	if errors.KindOf(err) == errors.Unauthenticated || errors.KindOf(err) == errors.Canceled {
		return nil, err
	}
	if object.Cut(err) {
		return nil, err // S3 is unavailable: a list would take as long to fail
	}
	if err != nil {
		// The error of a HEAD has no body; that of a list has the reason.
		if why := b.Check(ctx); why != nil {
			return nil, why
		}
		if errors.KindOf(err) != errors.NotFound {
			return nil, err
		}
		c.List, c.Healed, c.Memory = true, st.ManifestETag != "", st.ManifestETag != ""
		c.Empty, err = b.Empty(ctx)
		return c, err
	}
	if c.ETag, err = b.Tagged(res.Header.Get("ETag")); err != nil && !st.Down {
		return nil, err
	}
	c.complete = res.Header.Get("Server") == "AmazonS3"
	if c.Known = c.ETag != "" && c.ETag == st.ManifestETag; c.Known {
		return c, nil
	}
	c.File = st.File(state.Fetched)
	if err := fetch(ctx, b, manifest.Key, res.Header, c.File, maxManifest); errors.Is(err, object.ErrChangedObject) {
		return nil, object.ErrOvertaken
	} else if err != nil {
		return nil, err
	}
	err = c.examine()
	c.Memory = c.Healed && st.ManifestETag != ""
	return c, err
}

// examine reads a fetched manifest once. A damaged or inconsistent one is replaced by a list.
func (c *Contents) examine() error {
	few, size := make([]*tree.Entry, 0, 1024), int64(0)
	for e, err := range manifest.ReadFile(c.File) {
		if errors.KindOf(err) == errors.Unsupported {
			return err
		}
		if err != nil {
			c.Healed, c.List = true, true
			return nil
		}
		if size += e.MemorySize(); len(few) == fewEntries || size > fewBytes {
			few = nil
		}
		if few != nil {
			few = append(few, e)
		}
	}
	c.entries = few
	return nil
}

// Read yields the entries in order. It uses last, the entries of the state, if the state matches
// the bucket's manifest or replaces a lost one.
func (c *Contents) Read(ctx context.Context, last iter.Seq2[*tree.Entry, error]) iter.Seq2[*tree.Entry, error] {
	manifest := func(yield func(*tree.Entry, error) bool) {
		switch {
		case c.Healed && !c.Memory:
		case c.Healed:
			for e, err := range last {
				if gone, asked := c.gone(ctx, e); asked != nil {
					err = asked
				} else if gone {
					continue
				}
				if !yield(e, err) {
					return
				}
			}
		case c.Known:
			for e, err := range last {
				if !yield(e, err) {
					return
				}
			}
		case c.entries != nil:
			for i, e := range c.entries {
				c.entries[i] = nil // let it be garbage-collected after use
				if !yield(e, nil) {
					return
				}
			}
		case c.File != "":
			for e, err := range manifest.ReadFile(c.File) {
				if !yield(e, err) {
					return
				}
			}
		}
	}
	if !c.List {
		return manifest
	}
	missing := func(m *tree.Entry) (bool, error) { return c.missing(ctx, m) }
	return joined(missing, manifest, listed(c.B.Objects(ctx)), &c.Dropped)
}

// gone reports whether an object that lists do not show differs from this machine's record of it.
func (c *Contents) gone(ctx context.Context, e *tree.Entry) (bool, error) {
	if e == nil || e.ETag == "" || !e.HiddenUnder(c.B.Prefix()) {
		return false, nil
	}
	now, err := c.B.Stat(ctx, e.KeyUnder(c.B.Prefix()))
	if errors.KindOf(err) == errors.NotFound {
		return true, nil
	}
	return err == nil && now.ETag != e.ETag, err
}

// missing reports whether the object of an entry of the manifest that is not in the list is gone. Lists of some servers
// lag behind the manifest, which was read before, and some list no keys beneath an object (MinIO: WalkDir in
// metacache-walk.go). missing therefore asks for each such object, except on Amazon's servers, whose lists are
// complete. Few objects disappear behind the manifest.
func (c *Contents) missing(ctx context.Context, m *tree.Entry) (bool, error) {
	if m.ETag == "" || m.HiddenUnder(c.B.Prefix()) {
		return false, nil
	}
	if c.complete {
		return true, nil
	}
	_, err := c.B.Stat(ctx, m.KeyUnder(c.B.Prefix()))
	if errors.KindOf(err) == errors.NotFound {
		return true, nil
	}
	return false, err
}

// item is an entry of a list, or an error for an object that cannot be one.
type item struct {
	*tree.Entry
	key string
	err error
}

// listed converts a list of objects to entries. Directories that appear only in keys get an entry,
// and keys that are not paths an error.
func listed(objects iter.Seq2[object.Object, error]) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		open := []string{} // keys of the directories that the last key was in, with their slashes
		for o, err := range objects {
			if err != nil {
				yield(item{}, err)
				return
			}
			path, ok := tree.DecodeKey(strings.TrimSuffix(o.Key, "/"))
			if !ok {
				if !yield(item{key: o.Key, err: tree.KeyProblem(strings.TrimSuffix(o.Key, "/"))}, nil) {
					return
				}
				continue
			}
			for len(open) > 0 && !strings.HasPrefix(o.Key, open[len(open)-1]) {
				open = open[:len(open)-1]
			}
			from := 0
			if len(open) > 0 {
				from = len(open[len(open)-1])
			}
			for {
				i := strings.IndexByte(o.Key[from:], '/')
				if i < 0 {
					break
				}
				from += i + 1
				dir := o.Key[:from]
				open = append(open, dir)
				path, _ := tree.DecodeKey(dir[:len(dir)-1])
				e := &tree.Entry{Path: path, Kind: tree.Dir, Mode: 0o755, Foreign: true, Unknown: tree.FactsOfStat}
				if dir == o.Key && o.Size > 0 {
					e.Blocked = true
				} else if dir == o.Key {
					e.ETag = o.ETag
				}
				if !yield(item{Entry: e, key: dir}, nil) {
					return
				}
			}
			if strings.HasSuffix(o.Key, "/") {
				continue
			}
			if !yield(item{Entry: &tree.Entry{Path: path, Kind: tree.File, Mode: 0o644, Size: o.Size, ETag: o.ETag,
				ModTime: tree.At(o.Time), Foreign: true, Unknown: tree.AllFacts}, key: o.Key}, nil) {
				return
			}
		}
	}
}

// joined yields the entries of the list, with the manifest's description if it has the same object. Entries that are
// not in the list come from the manifest, unless missing reports that their object is gone.
func joined(missing func(m *tree.Entry) (bool, error), manifest iter.Seq2[*tree.Entry, error],
	list iter.Seq2[item, error], dropped *bool) iter.Seq2[*tree.Entry, error] {
	return func(yield func(*tree.Entry, error) bool) {
		next, stop := iter.Pull2(manifest)
		defer stop()
		m, merr, more := next()
		unlisted := func() bool {
			gone, err := missing(m)
			if err != nil {
				yield(nil, err)
				return false
			}
			if gone {
				*dropped = true
				return true
			}
			return yield(m, nil)
		}
		for it, err := range list {
			if err != nil {
				yield(nil, err)
				return
			}
			for more && merr == nil && tree.CompareKeys(m.Order(), it.key) < 0 {
				if !unlisted() {
					return
				}
				m, merr, more = next()
			}
			if merr != nil {
				yield(nil, merr)
				return
			}
			e, failed := it.Entry, it.err
			if more && m.Order() == it.key {
				if failed == nil && (m.Kind == tree.Dir || m.ETag == e.ETag &&
					(m.Kind != tree.File || m.BodySize() == e.Size)) {
					e = m
				}
				if it.Entry != nil && it.Blocked {
					kept := *e
					kept.ETag, kept.Blocked = "", true
					e = &kept
				}
				m, merr, more = next()
			}
			if failed != nil {
				if !yield(&tree.Entry{Path: it.key}, failed) {
					return
				}
				continue
			}
			if !yield(e, nil) {
				return
			}
		}
		for ; more; m, merr, more = next() {
			if merr != nil {
				yield(nil, merr)
				return
			}
			if !unlisted() {
				return
			}
		}
	}
}

// fetch writes an object, which may be large, to a file. header is the object's.
func fetch(ctx context.Context, b *object.Bucket, key string, header http.Header, path string, limit int64) error {
	size := object.ContentLength(header)
	if size < 0 || size > limit {
		return errors.Newf(errors.Invalid, "%s has %d bytes, more than the maximum", key, size)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return errors.Wrapf(err, "write %s", key)
	}
	defer f.Close()
	etag := object.Unquote(header.Get("ETag"))
	buf := make([]byte, min(size, buffer.PartSize))
	for at := int64(0); at < size; at += buffer.PartSize {
		n := min(buffer.PartSize, size-at)
		got, err := b.Get(ctx, key, etag, at, n, size, buf)
		if err != nil {
			return err
		}
		if _, err := f.WriteAt(got.Body, at); err != nil {
			return errors.Wrapf(err, "write %s", key)
		}
	}
	return nil
}

// passingName matches the names under which versitygw briefly stores an object while it replaces
// another one (backend/posix, linkatOTmpfile).
var passingName = pattern.New(`^\.(.+)\.sgwtmp\.[0-9]{19}$`)

// Passing reports whether a path may be a transient entry of a list. It is one only if the object
// is gone when it is fetched.
func Passing(path string) bool {
	return passingName().MatchString(path[strings.LastIndexByte(path, '/')+1:])
}
