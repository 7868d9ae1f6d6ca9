package volsync

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestSilentServerIsReported checks that a sync says that it waits for a server that accepts requests and answers none,
// from the first request on, and no longer once the server answers.
// mission: 2.6, 2.8
func TestSilentServerIsReported(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]func(r *http.Request) bool{
		"the first request": func(*http.Request) bool { return true },
		"a list":            func(r *http.Request) bool { return r.URL.Query().Has("list-type") },
		"an object":         func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/f") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loc := strictLocation(t, &strictServer{})
			a := between(t, &loc)
			m := &machine{t.TempDir(), t.TempDir(), openBucket(t, loc)}
			write(t, m.dir, "f", "content")
			reported := make(chan struct{})
			a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
				if silent(r) {
					<-reported
				}
				return false
			})
			waited, last := "", ""
			o := Options{Direction: plan.Both, State: m.state, List: true, waitAfter: time.Millisecond}
			o.Progress = func(s Stats) {
				if last = s.Waiting; s.Waiting != "" && waited == "" {
					waited = s.Waiting
					close(reported)
				}
			}
			mustSync(t, m.dir, m.b, o)
			if want := "S3 at " + strings.TrimPrefix(a.URL, "http://"); waited != want || last != "" {
				t.Errorf("waited for %q, want %q; at the end for %q", waited, want, last)
			}
		})
	}
}
