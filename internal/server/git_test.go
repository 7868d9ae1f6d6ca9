package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
)

// TestMemoryRoutes checks that the memories of a repository can be listed, read, edited and deleted.
// mission: C3
func TestMemoryRoutes(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.want(404, "GET", "/v1/memory/owner-name", "")
	w.want(204, "PUT", "/v1/memory/owner-name/entities/how%20to%20test", `{"observations":["make test"]}`)
	w.want(204, "PUT", "/v1/memory/owner-name/entities/a%2Fb", `{"type":"path","observations":["x","y"]}`)
	w.want(400, "PUT", "/v1/memory/owner-name/entities/none", `{"observations":[]}`)
	w.want(400, "PUT", "/v1/memory/owner-name/entities/none", `{"odd":1}`)
	w.want(400, "PUT", "/v1/memory/..%2Fx/entities/none", `{"observations":["x"]}`)
	resp, body := w.do("GET", "/v1/memory/owner-name", "")
	want := api.MemoryGraph{Relations: []api.Relation{}, Entities: []api.Entity{
		{Name: "how to test", Type: "note", Observations: []string{"make test"}},
		{Name: "a/b", Type: "path", Observations: []string{"x", "y"}},
	}}
	if got := parse[api.MemoryGraph](t, body); resp.StatusCode != http.StatusOK || cmp.Diff(want, got) != "" {
		t.Errorf("%s %s", resp.Status, cmp.Diff(want, got))
	}
	if _, body = w.do("GET", api.Memories, ""); len(parse[api.List[api.Memory]](t, body).Data) != 1 ||
		!strings.Contains(body, `"owner-name"`) {
		t.Error(body)
	}
	w.want(204, "POST", "/v1/memory/owner-name/move", `{"to":"owner-other"}`)
	w.want(404, "POST", "/v1/memory/owner-name/move", `{"to":"owner-other"}`)
	w.want(400, "POST", "/v1/memory/owner-other/move", `{"to":"../x"}`)
	w.want(204, "POST", "/v1/memory/owner-other/move", `{"to":"owner-name"}`)
	w.want(204, "DELETE", "/v1/memory/owner-name/entities/a%2Fb", "")
	w.want(404, "DELETE", "/v1/memory/owner-name/entities/a%2Fb", "")
	w.want(204, "DELETE", "/v1/memory/owner-name", "")
	w.want(404, "DELETE", "/v1/memory/owner-name", "")
}

// TestGitRoutesWithoutSessions checks that a server without sessions reports this.
func TestGitRoutesWithoutSessions(t *testing.T) {
	t.Parallel()
	w := start(t)
	for _, path := range []string{"sync", "push", "pull-request"} {
		resp, body := w.do("POST", "/v1/sessions/ses_1/"+path, `{}`)
		if resp.StatusCode/100 == 2 || !strings.Contains(body, "no sessions") {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	for _, path := range []string{"diff", "bundle"} {
		if resp, body := w.do("GET", "/v1/sessions/ses_1/"+path, ""); resp.StatusCode/100 == 2 ||
			!strings.Contains(body, "no sessions") {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
}
