package volsync

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
)

// partsOnly is a server that heeds conditions of single writes, but not those of uploads in parts, and that reports
// another ETag for such an upload than for its object: findings/gofakes3-multipart-etag.sh.
func partsOnly(t *testing.T) (*s3mem.Backend, s3.Location, *asked) {
	t.Helper()
	store := s3mem.New()
	must(t, store.CreateBucket("parts"))
	server := httptest.NewServer(gofakes3.New(store).Server())
	t.Cleanup(server.Close)
	loc := s3.Location{Bucket: "parts", Prefix: "work", Endpoint: server.URL, PathStyle: true,
		Credentials: s3.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}}
	return store, loc, between(t, &loc)
}

func TestLargeFilesWithTwoETags(t *testing.T) {
	t.Parallel()
	_, loc, _ := partsOnly(t)
	one, two := twoAt(t, openBucket(t, loc))
	write(t, one.dir, "big", strings.Repeat("x", buffer.PartSize+1))
	if s := one.both(t); s.Files != 1 {
		t.Fatalf("uploaded: %s", s)
	}
	if s := one.both(t); s.Files+s.Updated > 0 {
		t.Errorf("a second sync is not quiet: %s", s)
	}
	settle(t, two, one)
	for i, m := range []*machine{one, two, one, one} {
		m.both(t)
		write(t, m.dir, "big", strings.Repeat("y", buffer.PartSize+2+i))
		if s := m.both(t); s.Files != 1 || s.Conflicts > 0 {
			t.Errorf("change %d: %s %+v", i, s, s.Decided)
		}
	}
	settle(t, one, two)
}

// TestLargeFilesSpareOthers checks that an object that another program writes during an upload in parts is not
// replaced.
func TestLargeFilesSpareOthers(t *testing.T) {
	t.Parallel()
	store, loc, a := partsOnly(t)
	one, two := twoAt(t, openBucket(t, loc))
	write(t, one.dir, "changed", strings.Repeat("x", buffer.PartSize+1))
	settle(t, one, two)
	for _, path := range []string{"new", "changed"} {
		own, other := strings.Repeat(path[:1], buffer.PartSize+1), path+" by another"
		write(t, one.dir, path, own)
		var once atomic.Bool
		a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("partNumber") == "1" && strings.HasSuffix(r.URL.Path, "/"+path) && !once.Swap(true) {
				_, err := store.PutObject("parts", "work/"+path, map[string]string{}, strings.NewReader(other),
					int64(len(other)), nil)
				if err != nil {
					t.Error(err)
				}
			}
			return false
		})
		one.both(t)
		a.reset(nil)
		settle(t, one, two)
		bothContents(t, two, path, own, other)
	}
}
