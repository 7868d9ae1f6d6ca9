package volsync

import (
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// isDeletion reports whether a request deletes objects, one or several.
func isDeletion(r *http.Request) bool {
	return r.Method == http.MethodDelete || r.Method == http.MethodPost && r.URL.Query().Has("delete")
}

// TestDeletionsAreConditional checks that an object that is replaced between the check and the deletion stays, on a
// server that honours conditions of single deletions only: versitygw, the embedded server, ignores the ETags of
// DeleteObjects.
// mission: A8, D2
func TestDeletionsAreConditional(t *testing.T) {
	t.Parallel()
	loc := location(t)
	direct := openBucket(t, loc)
	put := func(content string) string {
		t.Helper()
		etag, err := direct.Put(t.Context(), "kept", []byte(content), crc64nvme.Checksum([]byte(content)),
			object.MetaHeader(&tree.Entry{Kind: tree.File, Mode: 0o644}))
		must(t, err)
		return etag
	}
	etag := put("seen by the plan")
	target, err := url.Parse(loc.Endpoint)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	var replace sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isDeletion(r) {
			replace.Do(func() { put("written meanwhile") })
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	through := loc
	through.Endpoint = server.URL
	b := openBucket(t, through)
	var refused error
	must(t, b.DeleteKnown(t.Context(), []object.Doomed{{Key: "kept", ETag: etag}}, func(_ string,
		err error) {
		refused = err
	}))
	if !errors.Is(refused, object.ErrChangedObject) {
		t.Errorf("the deletion was not refused: %v", refused)
	}
	if _, err := direct.Head(t.Context(), "kept"); err != nil {
		t.Errorf("the object that was written meanwhile is gone: %v", err)
	}
}

// TestDeleteDirectoryOfObjects deletes a directory that is no object, but exists through an object below it: there is
// nothing to delete, and the object stays.
func TestDeleteDirectoryOfObjects(t *testing.T) {
	t.Parallel()
	for name, single := range map[string]bool{"one request": false, "a request each": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBucket(t, location(t))
			b.Tune(object.Tuning{SingleDeletions: single})
			body := []byte("content")
			_, err := b.Put(t.Context(), "d/f", body, crc64nvme.Checksum(body), nil)
			must(t, err)
			must(t, b.Delete(t.Context(), []string{"d/"}, func(key string, err error) { t.Errorf("%s: %v", key, err) }))
			if _, err := b.Head(t.Context(), "d/f"); err != nil {
				t.Error(err)
			}
		})
	}
}

// doomedObjects stores n objects beneath a directory, and returns their keys and ETags.
func doomedObjects(t *testing.T, b *object.Bucket, dir string, n int) []object.Doomed {
	t.Helper()
	all := make([]object.Doomed, n)
	for i := range all {
		body := fmt.Appendf(nil, "%s %d", dir, i)
		key := fmt.Sprintf("%s/%d", dir, i)
		etag, err := b.Put(t.Context(), key, body, crc64nvme.Checksum(body), nil)
		must(t, err)
		all[i] = object.Doomed{Key: key, ETag: etag}
	}
	return all
}

// methods counts the requests that a proxy saw by their methods.
func methods(a *asked) map[string]int {
	count := map[string]int{}
	for _, call := range a.seen() {
		method, _, _ := strings.Cut(call, " ")
		count[method]++
	}
	return count
}

// TestDeletionsAskAsLittleAsPossible checks that a server that heeds the condition of a deletion gets one request for
// each object, and two more for the first, and that any other server gets a check of each object and a deletion of
// all.
// mission: A8, D2
func TestDeletionsAskAsLittleAsPossible(t *testing.T) {
	t.Parallel()
	const n = 20
	conditional := func(r *http.Request) bool {
		return r.Method == http.MethodDelete && r.Header.Get("If-Match") != ""
	}
	for name, c := range map[string]struct {
		location      func() s3.Location
		fault         func(n int, w http.ResponseWriter, r *http.Request) bool
		first, next   map[string]int
		unconditional bool
	}{
		"embedded": {location: func() s3.Location { return location(t) },
			first: map[string]int{"HEAD": 1, "DELETE": 1 + n}, next: map[string]int{"DELETE": n}},
		"strict": {
			location: func() s3.Location { return strictLocation(t, &strictServer{}) },
			first:    map[string]int{"HEAD": 1, "DELETE": 1 + n}, next: map[string]int{"DELETE": n}},
		"without conditions": {location: func() s3.Location { return strictLocation(t, &strictServer{lax: true}) },
			// One more write and deletion find out whether it heeds any conditions.
			first: map[string]int{"HEAD": n, "DELETE": 1, "POST": 2, "PUT": 1},
			next:  map[string]int{"HEAD": n, "DELETE": 1, "POST": 1}, unconditional: true},
		"conditions not implemented": {location: func() s3.Location { return strictLocation(t, &strictServer{}) },
			fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
				return conditional(r) && xmlFault(w, http.StatusNotImplemented, "NotImplemented")
			},
			first: map[string]int{"HEAD": n + 1, "DELETE": 1, "POST": 1, "PUT": 1},
			next:  map[string]int{"HEAD": n + 1, "DELETE": 1, "POST": 1}},
		"singly, without conditions": {location: func() s3.Location { return strictLocation(t, &strictServer{}) },
			fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
				return (conditional(r) || r.Method == http.MethodPost) &&
					xmlFault(w, http.StatusNotImplemented, "NotImplemented")
			},
			first: map[string]int{"HEAD": n + 1, "DELETE": 1 + 2*n, "POST": 2, "PUT": 1}, // with a CRC-32, then an MD5
			next:  map[string]int{"HEAD": n + 1, "DELETE": 1 + 2*n}},
	} {
		t.Run(name, func(t *testing.T) {
			loc := c.location()
			direct := openBucket(t, loc)
			proxy := between(t, &loc)
			b := openBucket(t, loc)
			for _, want := range []map[string]int{c.first, c.next} {
				all := doomedObjects(t, direct, "d", n)
				proxy.reset(c.fault)
				must(t, b.DeleteKnown(t.Context(), all, func(key string, err error) { t.Errorf("%s: %v", key, err) }))
				if got := methods(proxy); !maps.Equal(got, want) {
					t.Errorf("requests: %v, want %v", got, want)
				}
				if b.Unconditional() != c.unconditional {
					t.Errorf("the server has no conditions: %v", !c.unconditional)
				}
				for _, d := range all {
					if _, err := direct.Head(t.Context(), d.Key); errors.KindOf(err) != errors.NotFound {
						t.Errorf("%s is still there: %v", d.Key, err)
					}
				}
			}
		})
	}
}

// TestDeletionsSpareOthers checks that objects that are no longer those of the plan stay, on servers of each kind, and
// that objects that no longer exist count as deleted, whichever comes first.
// mission: A8, D2
func TestDeletionsSpareOthers(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*strictServer{
		"strict": {}, "refuses conditions on nothing": {picky: true}, "without conditions": {lax: true},
	} {
		for _, single := range []bool{false, true} {
			for _, shift := range []int{0, 1, 2} {
				t.Run(fmt.Sprintf("%s, singly %v, %d", name, single, shift), func(t *testing.T) {
					b := openBucket(t, strictLocation(t, server))
					b.Tune(object.Tuning{SingleDeletions: single})
					all := doomedObjects(t, b, "d", 3)
					all = append(all[shift:], all[:shift]...)
					same, changed, gone := all[(3-shift)%3], all[(4-shift)%3], all[(5-shift)%3]
					body := []byte("of somebody else")
					_, err := b.Put(t.Context(), changed.Key, body, crc64nvme.Checksum(body), nil)
					must(t, err)
					must(t, b.Delete(t.Context(), []string{gone.Key}, func(string, error) {}))
					unknown := doomedObjects(t, b, "unknown", 1)[0].Key
					refused := map[string]bool{}
					must(t, b.DeleteKnown(t.Context(), append(all, object.Doomed{Key: unknown}),
						func(key string, err error) { refused[key] = errors.Is(err, object.ErrChangedObject) }))
					if want := map[string]bool{changed.Key: true, unknown: true}; !maps.Equal(refused, want) {
						t.Errorf("refused: %v, want %v", refused, want)
					}
					for key, want := range map[string]bool{same.Key: false, changed.Key: true, gone.Key: false,
						unknown: true} {
						if _, err := b.Head(t.Context(), key); (err == nil) != want {
							t.Errorf("%s is there: %v, want %v", key, err == nil, want)
						}
					}
				})
			}
		}
	}
}
