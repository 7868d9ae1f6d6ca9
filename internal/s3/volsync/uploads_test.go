package volsync

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// TestOnlyOwnUploadsContinue checks that an interrupted multipart upload is resumed only by the client that began it,
// and for the same file. Other uploads are left alone, with any content.
// mission: 2.4, D1
func TestOnlyOwnUploadsContinue(t *testing.T) {
	testenv.Long(t)
	dir, state, loc := t.TempDir(), t.TempDir(), location(t)
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 80<<16)) // 80 MiB, 5 parts
	age(t, dir)
	a := between(t, &loc)
	b := openBucket(t, loc)
	key := b.Prefix() + "large"
	theirs, err := sdkOf(b).CreateMultipartUpload(t.Context(), &sdk.CreateMultipartUploadInput{Bucket: &loc.Bucket,
		Key: &key, Metadata: map[string]string{"mode": "0100600"}})
	must(t, err)
	_, err = sdkOf(b).UploadPart(t.Context(), &sdk.UploadPartInput{Bucket: &loc.Bucket, Key: &key,
		UploadId:   theirs.UploadId,
		PartNumber: aws.Int32(1),
		Body:       strings.NewReader(strings.Repeat("0123456789abcdef", 1<<20))})
	must(t, err)

	var mu sync.Mutex
	var unanswered atomic.Int64 // requests for parts
	parts := map[string]int{}   // that arrived, by upload
	count := func(stop func(n int)) func(int, http.ResponseWriter, *http.Request) bool {
		n := 0
		return func(_ int, w http.ResponseWriter, r *http.Request) bool {
			id := r.URL.Query().Get("uploadId")
			if r.Method != http.MethodPut || id == "" {
				return false
			}
			unanswered.Add(1)
			defer unanswered.Add(-1)
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return true // the client is gone, and the server hears nothing of it
			}
			// The server finishes each request that it has begun, and the test knows when.
			ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
			defer cancel()
			r = r.Clone(ctx)
			r.Body = io.NopCloser(bytes.NewReader(body))
			proxyOf(r).ServeHTTP(w, r)
			mu.Lock()
			defer mu.Unlock()
			parts[id]++
			n++
			stop(n)
			return true
		}
	}
	interrupt := func() {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a.reset(count(func(n int) {
			if n == 2 {
				cancel()
			}
		}))
		if _, err := Sync(ctx, openTree(t, dir), b,
			Options{Direction: plan.Up, State: state}); errors.KindOf(err) != errors.Canceled {
			t.Fatalf("an interrupted sync: %v", err)
		}
		a.reset(nil)
		for unanswered.Load() > 0 { // a part that arrives late would make the server's directory of an upload again
			time.Sleep(10 * time.Millisecond)
		}
	}
	uploads := func() []string {
		t.Helper()
		out, err := sdkOf(b).ListMultipartUploads(t.Context(), &sdk.ListMultipartUploadsInput{Bucket: &loc.Bucket,
			Prefix: &key})
		must(t, err)
		var ids []string
		for _, u := range out.Uploads {
			ids = append(ids, aws.ToString(u.UploadId))
		}
		return ids
	}
	interrupt()
	if got := len(uploads()); got != 2 {
		t.Fatalf("%d uploads, want theirs and ours", got)
	}
	a.reset(count(func(int) {}))
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	sent, ids := 0, 0
	mu.Lock() // the last answers may be counted after they have arrived
	for id, n := range parts {
		if id == aws.ToString(theirs.UploadId) {
			t.Errorf("%d parts went to the upload of others", n)
		}
		sent, ids = sent+n, ids+1
	}
	mu.Unlock()
	// Uploads in progress at the interruption may have arrived or not.
	if ids != 1 || sent < 5 || sent > 8 {
		t.Errorf("%d parts went to %d uploads; there are 5 parts, of which 2 were there", sent, ids)
	}
	if got := uploads(); len(got) != 1 || got[0] != aws.ToString(theirs.UploadId) {
		t.Errorf("afterwards there are the uploads %q, want theirs", got)
	}
	if e, err := b.Stat(t.Context(), "large"); err != nil || e.Mode != 0o644 {
		t.Errorf("the object says %+v, %v", e, err)
	}
	if files, err := os.ReadDir(uploadsOf(t, state)); err != nil || len(files) != 0 {
		t.Errorf("%d uploads are remembered, %v", len(files), err)
	}

	// An upload that began before the file changed is useless.
	write(t, dir, "large", strings.Repeat("0123456789abcdeF", 80<<16))
	interrupt()
	must(t, os.Chtimes(filepath.Join(dir, "large"), time.Now(), someTime))
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	if got := uploads(); len(got) != 1 {
		t.Errorf("afterwards there are the uploads %q, want theirs", got)
	}
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
}

// uploadsOf is the directory of the uploads of the only place in a state.
func uploadsOf(t *testing.T, stateDir string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(stateDir, "*", state.UploadsDir))
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("%d places remember uploads", len(all))
	}
	return all[0]
}
