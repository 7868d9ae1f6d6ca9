package volsync

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

var (
	listedName = pattern.New(`<(Key|Prefix|KeyMarker|NextKeyMarker)>([^<]*)</`)
	listRoot   = pattern.New(`<(ListBucketResult|ListMultipartUploadsResult)[^>]*>`)
)

// asAWS writes lists as AWS and MinIO do for requests with URL encoding. The server behind it ignores that parameter.
func asAWS(_ int, w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || r.URL.Query().Get("encoding-type") != "url" {
		return false
	}
	rec := httptest.NewRecorder()
	proxyOf(r).ServeHTTP(rec, r)
	body := listedName().ReplaceAllStringFunc(rec.Body.String(), func(s string) string {
		m := listedName().FindStringSubmatch(s)
		return "<" + m[1] + ">" + strings.ReplaceAll(url.QueryEscape(html.UnescapeString(m[2])), "%2F", "/") + "</"
	})
	body = strings.ReplaceAll(body, "<EncodingType></EncodingType>", "")
	body = listRoot().ReplaceAllString(body, "$0<EncodingType>url</EncodingType>")
	for k, v := range rec.Header() {
		if k != "Content-Length" {
			w.Header()[k] = v
		}
	}
	w.WriteHeader(rec.Code)
	_, _ = io.WriteString(w, body)
	return true
}

// oddNames are names that URL encoding changes.
var oddNames = []string{"a b.txt", "a+b", "100%", "%41", "ä/ö ü+%.txt", "x & <y>", "日本/語", "plain"}

// TestListsAsInURLs checks that keys of URL-encoded lists are decoded to the objects' keys.
// mission: 2.1, 3.1, 3.2, D2, D4
func TestListsAsInURLs(t *testing.T) {
	dir := t.TempDir()
	for _, name := range oddNames {
		write(t, dir, name, "of "+name)
	}
	loc := location(t)
	loc.Prefix = "ein Ort+50%"
	a := between(t, &loc)
	b := openBucket(t, loc)
	mustSync(t, dir, b, Options{Direction: plan.Up, State: t.TempDir()})
	a.reset(asAWS)

	// With a manifest that is compared with the list nothing is new, and nothing is gone.
	stats := mustSync(t, dir, b, Options{Direction: plan.Both, State: t.TempDir(), List: true})
	if stats.Files+stats.Deleted+stats.Updated > 0 || stats.Skipped < int64(len(oddNames)) {
		t.Errorf("a list shows the same, and a sync did %s", stats)
	}
	// Without a manifest, only the list remains.
	must(t, b.Delete(t.Context(), []string{manifest.Key}, func(_ string, err error) { t.Error(err) }))
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, State: t.TempDir()})
	for _, name := range oddNames {
		if raw, err := os.ReadFile(filepath.Join(back, name)); err != nil || string(raw) != "of "+name {
			t.Errorf("%q came as %q, %v", name, raw, err)
		}
	}
	var names []string
	must(t, b.ReadDir(t.Context(), "", func(e *tree.Entry) error {
		names = append(names, e.Path)
		return nil
	}))
	slices.Sort(names)
	if want := []string{"%41", "100%", "a b.txt", "a+b", "plain", "x & <y>", "ä", "日本"}; !slices.Equal(names, want) {
		t.Errorf("the directory has %q", names)
	}
	if e, err := b.Describe(t.Context(), "日本"); err != nil || e.Kind != tree.Dir {
		t.Errorf("a directory is %+v, %v", e, err)
	}
	// Abandoned uploads are aborted under their own keys.
	_, err := sdkOf(b).CreateMultipartUpload(t.Context(),
		&sdk.CreateMultipartUploadInput{Bucket: aws.String(b.Location().Bucket),
			Key: aws.String(b.Prefix() + "ö +%")})
	must(t, err)
	if n, err := b.Sweep(t.Context(), -time.Hour); n != 1 || err != nil {
		t.Errorf("%d uploads were aborted, %v", n, err)
	}
	for u, err := range b.UploadsBegun(t.Context()) {
		t.Errorf("the upload to %q is still there, %v", aws.ToString(u.Key), err)
	}
}

// Versions with such names are listed, and deleted to the last object.
// mission: D4
func TestVersionsAsInURLs(t *testing.T) {
	dir := t.TempDir()
	for _, name := range oddNames {
		write(t, dir, name, "of "+name)
	}
	loc := location(t)
	loc.Prefix = "an account+1"
	a := between(t, &loc)
	a.reset(asAWS)
	b := openBucket(t, loc)
	first, _, err := Save(t.Context(), openTree(t, dir), b, Options{State: t.TempDir()})
	must(t, err)
	write(t, dir, "plain", "another")
	second, _, err := Save(t.Context(), openTree(t, dir), b, Options{State: t.TempDir()})
	must(t, err)
	if all, err := b.Versions(t.Context()); err != nil || len(all) != 2 || all[0].Name() != second.Name() {
		t.Fatalf("the versions are %v, %v", all, err)
	}
	if _, err := b.Prune(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	at, err := b.Version(first)
	must(t, err)
	for o, err := range at.All(t.Context(), object.AnyOrder) {
		t.Errorf("of the version that was pruned there is %q, %v", o.Key, err)
	}
	back := t.TempDir()
	_, _, err = Restore(t.Context(), openTree(t, back), b, object.Version{}, Options{})
	must(t, err)
	if raw, err := os.ReadFile(filepath.Join(back, "ä/ö ü+%.txt")); err != nil || len(raw) == 0 {
		t.Errorf("the version that was kept has %q, %v", raw, err)
	}
}

// TestListOrder checks that a list that is not in the order of the keys' bytes ends the sync, since existing files
// would seem to be gone.
// mission: 3.4
func TestListOrder(t *testing.T) {
	for name, answer := range map[string]struct {
		list string
		kind errors.Kind
	}{
		"order": {`<Contents><Key>PREFIXb</Key><Size>1</Size></Contents><Contents><Key>PREFIXa</Key><Size>1</Size></Contents>`, errors.Unsupported},
		"encoding": {`<EncodingType>url</EncodingType><Contents><Key>100%zz</Key><Size>1</Size></Contents>`,
			errors.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			dir, loc := t.TempDir(), location(t)
			write(t, dir, "a", "1")
			a := between(t, &loc)
			b := openBucket(t, loc)
			a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("list-type") == "" {
					return false
				}
				w.Header().Set("Content-Type", "application/xml")
				fmt.Fprintf(w, `<?xml version="1.0"?>`+
					`<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`+
					`<IsTruncated>false</IsTruncated>%s</ListBucketResult>`,
					strings.ReplaceAll(answer.list, "PREFIX", b.Prefix()))
				return true
			})
			_, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Down, Mirror: true, List: true})
			if errors.KindOf(err) != answer.kind || errors.RemedyOf(err) == "" {
				t.Errorf("a sync ended with %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "a")); err != nil {
				t.Error(err)
			}
		})
	}
}
