package remote

import (
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

func TestListed(t *testing.T) {
	keys := []string{"../up", "a", "a//b", "a/b", "a/c/d", "b/", "b/c", "x", "x/y"}
	slices.Sort(keys)
	var got []string
	for it, err := range listed(func(yield func(object.Object, error) bool) {
		for _, k := range keys {
			if !yield(object.Object{Key: k}, nil) {
				return
			}
		}
	}) {
		if err != nil {
			t.Fatal(err)
		}
		if it.err != nil {
			got = append(got, "bad "+it.key)
		} else {
			got = append(got, it.Kind.String()+" "+it.Path)
		}
	}
	want := []string{"bad ../up", "file a", "bad a//b", "directory a", "file a/b", "directory a/c", "file a/c/d",
		"directory b", "file b/c", "file x", "directory x", "file x/y"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestJoined checks that lists and manifests are joined by key, and that errors of either are reported.
func TestJoined(t *testing.T) {
	broken := errors.Newf(errors.Invalid, "broken")
	file := func(path, etag string, size int64) *tree.Entry {
		return &tree.Entry{Path: path, Kind: tree.File, ETag: etag, Size: size, Mode: 0o600}
	}
	manifest := []*tree.Entry{
		{Path: "a", Kind: tree.Symlink, Target: "x", ETag: "1"},
		file("b", "2", 5),
		{Path: "d", Kind: tree.Dir, Mode: 0o700},
		file("d/gone", "3", 1),
		{Path: "d/hard", Kind: tree.File, Link: "b"},
		{Path: "s", Kind: tree.File, Size: 9, ETag: "9", Extents: []tree.Extent{{Offset: 0, Length: 1}},
			Key: tree.Hidden("sparse", "s")},
		{Path: "z", Kind: tree.Dir, Mode: 0o711},
	}
	list := []object.Object{{Key: "a", Size: 1, ETag: "1"}, {Key: "b", Size: 6, ETag: "other"},
		{Key: "bad//key", Size: 1, ETag: "x"}, {Key: "d/new", Size: 2, ETag: "4"}}
	all := func(entries []*tree.Entry, end error) iter.Seq2[*tree.Entry, error] {
		return func(yield func(*tree.Entry, error) bool) {
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if end != nil {
				yield(nil, end)
			}
		}
	}
	objects := func(all []object.Object, end error) iter.Seq2[item, error] {
		return listed(func(yield func(object.Object, error) bool) {
			for _, o := range all {
				if !yield(o, nil) {
					return
				}
			}
			if end != nil {
				yield(object.Object{}, end)
			}
		})
	}
	read := func(seq iter.Seq2[*tree.Entry, error], stop int) (got []string, last error) {
		for e, err := range seq {
			switch {
			case e == nil:
				last = err
			case err != nil:
				got = append(got, "bad "+e.Path)
			default:
				got = append(got, fmt.Sprintf("%s %s %o", e.Path, e.ETag, e.Mode))
			}
			if len(got) == stop {
				return got, last
			}
		}
		return got, last
	}
	want := []string{"a 1 0", "b other 644", "bad bad//key", "d  700", "d/hard  0", "d/new 4 644", "s 9 0", "z  711"}
	missing := func(m *tree.Entry) (bool, error) {
		return (&Contents{B: &object.Bucket{}, complete: true}).missing(t.Context(), m)
	}
	if got, err := read(joined(missing, all(manifest, nil), objects(list, nil), new(bool)), -1); err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("got  %q, %v\nwant %q", got, err, want)
	}
	for stop := range len(want) { // the caller may stop at any point
		if got, _ := read(joined(missing, all(manifest, nil), objects(list, nil), new(bool)),
			stop+1); !slices.Equal(got, want[:stop+1]) {
			t.Errorf("the first %d are %q", stop+1, got)
		}
	}
	for name, seq := range map[string]iter.Seq2[*tree.Entry, error]{
		"list":              joined(missing, all(manifest, nil), objects(list[:2], broken), new(bool)),
		"manifest":          joined(missing, all(manifest[:1], broken), objects(list, nil), new(bool)),
		"manifest's end":    joined(missing, all(manifest, broken), objects(list, nil), new(bool)),
		"manifest, no list": joined(missing, all(nil, broken), objects(nil, nil), new(bool)),
	} {
		if _, err := read(seq, -1); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
