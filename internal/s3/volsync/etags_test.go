package volsync

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// untagged is a server, or a proxy before it, that returns no ETags.
type untagged struct{ http.Handler }

// ServeHTTP implements http.Handler.
func (u untagged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	u.Handler.ServeHTTP(rec, r)
	for name, values := range rec.Header() {
		if name != "Etag" && name != "Content-Length" || r.Method == http.MethodHead && name == "Content-Length" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(regexp.MustCompile(`<ETag>[^<]*</ETag>`).ReplaceAll(rec.Body.Bytes(), nil))
}

// TestServerWithoutETags checks that a sync which needs ETags says that the server returns none, and blames no other
// program. A sync down needs none.
// mission: D1, D2
func TestServerWithoutETags(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"up": {Direction: plan.Up},
		"up, with a list": {Direction: plan.Up, List: true},
		"mirror":          {Direction: plan.Up, Mirror: true, DeleteMany: true}, "both": {Direction: plan.Both}} {
		for _, filled := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				server := &strictServer{}
				loc := strictLocation(t, server)
				m := &machine{t.TempDir(), t.TempDir(), openBucket(t, loc)}
				write(t, m.dir, "f", "content")
				write(t, m.dir, "g", "content")
				if filled {
					m.both(t)
					write(t, m.dir, "f", "an edit")
				}
				front := httptest.NewServer(untagged{server})
				t.Cleanup(front.Close)
				loc.Endpoint = front.URL
				b := openBucket(t, loc)
				own := o // two subtests have the same
				own.State = m.state
				stats, err := Sync(t.Context(), openTree(t, m.dir), b, own)
				if errors.KindOf(err) != errors.Unsupported ||
					!strings.Contains(errors.Message(err), "returns no ETag") ||
					!strings.Contains(errors.RemedyOf(err), "server that returns ETags") {
					t.Errorf("the sync ended with %v; %s; %+v", err, errors.RemedyOf(err), stats.Failures)
				}
				if filled {
					back := t.TempDir()
					mustSync(t, back, b, Options{Direction: plan.Down})
					if len(filesOf(t, back)) != 2 {
						t.Errorf("down: %q", filesOf(t, back))
					}
				}
			})
		}
	}
}
