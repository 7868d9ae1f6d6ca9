package sync

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/object"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// isDeletion reports whether a request deletes objects, one or several.
func isDeletion(r *http.Request) bool {
	return r.Method == http.MethodDelete || r.Method == http.MethodPost && r.URL.Query().Has("delete")
}

// TestDeletionsAreConditional checks that an object that is replaced between the check and the deletion stays, on a
// server that honours conditions of single deletions only: versitygw, the embedded server, ignores the ETags of
// DeleteObjects.
// mission: 3.1, A8
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
