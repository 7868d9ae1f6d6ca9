package volsync

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestBucketInHost checks that a volume is uploaded and restored if the bucket is part of the host name, and that no
// request goes to another host.
// mission: 2.1, 2.7, 3.1
func TestBucketInHost(t *testing.T) {
	t.Parallel()
	store := s3mem.New()
	must(t, store.CreateBucket("files"))
	objects := gofakes3.New(store).Server()
	var mu sync.Mutex
	others := map[string]int{}
	asked := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.URL.String()
		mu.Lock()
		asked++
		if r.Host != "files.s3.test.invalid" || !strings.HasPrefix(at, "http://files.s3.test.invalid/") {
			others[r.Method+" "+at+" of "+r.Host]++
		}
		mu.Unlock()
		r.URL.Scheme, r.URL.Host = "", ""
		r.URL.Path = "/files" + r.URL.Path
		if r.URL.RawPath != "" {
			r.URL.RawPath = "/files" + r.URL.RawPath
		}
		objects.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	dir, back := t.TempDir(), t.TempDir()
	for _, path := range []string{"f", "d/g", "a b+c", "ü", "files/f"} {
		write(t, dir, path, path)
	}
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 17<<16)) // 17 MiB: 2 parts
	age(t, dir)
	b := openBucket(t, s3.Location{Bucket: "files", Prefix: "work", Endpoint: "http://s3.test.invalid",
		Proxy:       proxy.URL,
		Credentials: s3.Credentials{AccessKeyID: "AKIA", SecretAccessKey: "key"}})
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up, Packs: true}); stats.Files != 6 {
		t.Errorf("up: %s", stats)
	}
	mustSync(t, back, b, Options{Direction: plan.Down, List: true, Owners: true})
	sameTrees(t, dir, back)
	if o, err := store.HeadObject("files", "work/d/g"); err != nil || o == nil {
		t.Errorf("the bucket lacks a file: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(others) > 0 || asked < 10 {
		t.Errorf("%d requests, of them to others: %v", asked, others)
	}
}
