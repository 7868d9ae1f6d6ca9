package volsync

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestKeysOfAnyBytes checks that keys are bytes, which S3 lists URL-encoded: similar-looking keys are different files,
// and keys that are not valid paths are reported.
// mission: 2.5, 3.2
func TestKeysOfAnyBytes(t *testing.T) {
	t.Parallel()
	good := []string{"CASE", "Case", "case", "e\u0301", "\u00e9", "dir/x", "Dir/x", "\u212b", "\u00c5"}
	bad := []string{"bad\xffutf8", "half\xc3", "control\x01", "new\nline", "return\r", "del\x7f",
		"not\ufffe", "dir\x02/f"}
	store := s3mem.New()
	must(t, store.CreateBucket("keys"))
	var all []string
	for _, key := range slices.Concat(good, bad) {
		_, err := store.PutObject("keys", "work/"+key, map[string]string{}, strings.NewReader(key),
			int64(len(key)), nil)
		must(t, err)
		all = append(all, "work/"+key)
	}
	slices.Sort(all)
	objects := gofakes3.New(store).Server()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Query().Get("list-type") != "2" {
			objects.ServeHTTP(w, r)
			return
		}
		fmt.Fprint(w, `<ListBucketResult><EncodingType>url</EncodingType>`)
		for _, key := range all { // the server in memory writes them as XML can
			o, err := store.HeadObject("keys", key)
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprintf(w,
				`<Contents><Key>%s</Key><Size>%d</Size><ETag>"%x"</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>`,
				strings.ReplaceAll(url.QueryEscape(key), "%2F", "/"), o.Size, o.Hash)
		}
		fmt.Fprint(w, `</ListBucketResult>`)
	}))
	t.Cleanup(s.Close)
	b := openBucket(t, s3.Location{Bucket: "keys", Prefix: "work", Endpoint: s.URL, PathStyle: true,
		Credentials: s3.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}})
	back := t.TempDir()
	stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down})
	must(t, err)
	for _, path := range good {
		if raw, err := os.ReadFile(filepath.Join(back, path)); err != nil || string(raw) != path {
			t.Errorf("%q came as %q, %v", path, raw, err)
		}
	}
	var named []string
	for _, f := range stats.Failures {
		named = append(named, f.Path)
	}
	slices.Sort(named)
	slices.Sort(bad)
	if !slices.Equal(named, bad) {
		t.Errorf("named were %q, and not %q", named, bad)
	}
	if got := regularFiles(t, back); len(got) != len(good) {
		t.Errorf("there are the files %q", got)
	}
}
