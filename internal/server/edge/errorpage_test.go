package edge

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// TestErrorPage checks that a person who opens an address in a browser gets a page with the next step, and that
// programs get the problem as JSON.
// mission: 7.7
func TestErrorPage(t *testing.T) {
	t.Parallel()
	const accept = "text/html,application/xhtml+xml,*/*;q=0.8"
	gone := errors.Remedy(errors.Newf(errors.Gone, "the link <b> was used"), "make a new one: harvest key link")
	down := errors.Remedy(errors.Newf(errors.Unavailable, "nothing listens on port 80"), "start a server there")
	for _, c := range []struct {
		name, method, path, accept, key string
		err                             error
		has, lacks                      []string
	}{
		{"a used link", "POST", api.SignIn, accept, "", gone,
			[]string{"the link &lt;b&gt; was used", "Next: make a new one: harvest key link.", `href="./"`},
			[]string{"<script", "http-equiv", "<b>"}},
		{"a dead port", "GET", "/", accept, "", down, []string{"nothing listens on port 80",
			"<script>" + again + "</script>", "tries again by itself"}, []string{`href="./"`}},
		{"a program", "GET", "/v1/sandboxes/x", "*/*", "", gone, []string{`"code":"gone"`}, []string{"<html"}},
		{"a program with a key", "GET", "/v1/sandboxes/x", accept, "Bearer hv_1", gone, []string{`"code":"gone"`},
			[]string{"<html"}},
		{"a script", "DELETE", "/v1/sandboxes/x", accept, "", gone, []string{`"code":"gone"`}, []string{"<html"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, r := httptest.NewRecorder(), httptest.NewRequest(c.method, c.path, http.NoBody)
			r.Header.Set("Accept", c.accept)
			if c.key != "" {
				r.Header.Set("Authorization", c.key)
			}
			Fail(w, r, c.err)
			body := w.Body.String()
			for _, want := range c.has {
				if !strings.Contains(body, want) {
					t.Errorf("it lacks %q: %s", want, body)
				}
			}
			for _, unwanted := range c.lacks {
				if strings.Contains(body, unwanted) {
					t.Errorf("it has %q: %s", unwanted, body)
				}
			}
			if isPage := strings.Contains(body, "<html"); isPage != strings.HasPrefix(w.Header().Get("Content-Type"),
				"text/html") || isPage != (w.Header().Get("Content-Security-Policy") != "") {
				t.Errorf("the headers are %v", w.Header())
			}
		})
	}
}
