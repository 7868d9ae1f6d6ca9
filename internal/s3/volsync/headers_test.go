package volsync

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestHeadersOfOthersAreKept checks that headers that other programs set on an object stay when its file is edited, and
// that new objects get a type by their name.
// mission: 3.4
func TestHeadersOfOthersAreKept(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]*object.Bucket{"embedded": openBucket(t, location(t)), "strict": strictBucket(t)} {
		t.Run(name, func(t *testing.T) {
			set := map[string]string{"Content-Type": "text/x-special", "Cache-Control": "max-age=60",
				"Content-Disposition": `attachment; filename="x"`,
				"Content-Encoding":    "identity", "Content-Language": "de",
				"Expires": "Wed, 01 Jan 2031 00:00:00 GMT", "X-Amz-Meta-Colour": "blue",
				"X-Amz-Meta-Mode": "0100600"}
			for key, body := range map[string]string{"small": "one",
				"large": strings.Repeat("0123456789abcdef", 17<<16)} {
				h := http.Header{"X-Amz-Tagging": {"team=red%20one&cost=7"}}
				for k, v := range set {
					h.Set(k, v)
				}
				_, err := b.Put(t.Context(), key, []byte(body), crc64nvme.Checksum([]byte(body)), h)
				must(t, err)
			}
			dir, state := t.TempDir(), t.TempDir()
			both := Options{Direction: plan.Both, State: state, Owners: true}
			mustSync(t, dir, b, both)
			for _, key := range []string{"small", "large"} {
				f, err := os.OpenFile(filepath.Join(dir, key), os.O_APPEND|os.O_WRONLY, 0)
				must(t, err)
				_, err = f.WriteString(", edited")
				must(t, err)
				must(t, f.Chmod(0o640))
				must(t, f.Close())
			}
			write(t, dir, "new.html", "<p>")
			write(t, dir, "unknown", "x")
			mustSync(t, dir, b, both)
			must(t, os.Chmod(filepath.Join(dir, "small"), 0o600)) // metadata alone leave the object
			mustSync(t, dir, b, both)
			e, err := b.Describe(t.Context(), "small")
			must(t, err)
			changed := *e
			changed.Mode = 0o644
			must(t, b.CopyObject(t.Context(), e, &changed)) // as a live mount changes a mode
			must(t, b.WriteObject(t.Context(), &changed, bytes.NewReader(make([]byte, changed.Size))))
			for key, mode := range map[string]string{"small": "0100644", "large": "0100640"} {
				set["X-Amz-Meta-Mode"] = mode // the file's, not that of the earlier object
				res, err := b.Head(t.Context(), key)
				must(t, err)
				for k, v := range set {
					if got := res.Header.Get(k); got != v {
						t.Errorf("%s: %s is %q, want %q", key, k, got, v)
					}
				}
				if n := res.Header.Get("X-Amz-Tagging-Count"); n != "2" {
					t.Errorf("%s has %q tags", key, n)
				}
			}
			for key, want := range map[string]string{"new.html": "text/html; charset=utf-8",
				"unknown": "application/octet-stream"} {
				if res, err := b.Head(t.Context(), key); err != nil || res.Header.Get("Content-Type") != want {
					t.Errorf("%s has the type %q, %v, want %q", key, res.Header.Get("Content-Type"), err, want)
				}
			}
			if name == "embedded" {
				tags, err := sdkOf(b).GetObjectTagging(t.Context(),
					&sdk.GetObjectTaggingInput{Bucket: aws.String(b.Location().Bucket),
						Key: aws.String(b.Prefix() + "small")})
				must(t, err)
				for _, tag := range tags.TagSet {
					if k, v := aws.ToString(tag.Key), aws.ToString(tag.Value); k+"="+v != "team=red one" &&
						k+"="+v != "cost=7" {
						t.Errorf("the tag %s is %s", k, v)
					}
				}
			}
		})
	}
}

// TestArchivedObject checks that an archived object is reported as such, with the remedy.
func TestArchivedObject(t *testing.T) {
	t.Parallel()
	loc := location(t)
	a := between(t, &loc)
	b, dir := openBucket(t, loc), t.TempDir()
	write(t, dir, "f", "x")
	mustSync(t, dir, b, Options{Direction: plan.Up})
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/f") &&
			xmlFault(w, http.StatusForbidden, "InvalidObjectState")
	})
	stats, err := Sync(t.Context(), openTree(t, t.TempDir()), b, Options{Direction: plan.Down})
	if err != nil || stats.Failed != 1 || !strings.Contains(stats.Failures[0].Reason, "archived") ||
		!strings.Contains(stats.Failures[0].Remedy, "restore it first") {
		t.Errorf("%+v, %v", stats.Failures, err)
	}
}
