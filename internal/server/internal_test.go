package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// TestHalfAnAnswer checks that a failure after the beginning of an answer breaks the answer off, so that clients do not
// take a part for the whole.
func TestHalfAnAnswer(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]edge.Handler{
		"error": func(w http.ResponseWriter, _ *http.Request) error {
			io.WriteString(w, "half")
			return errors.Errorf("late")
		},
		"panic": func(w http.ResponseWriter, _ *http.Request) error {
			io.WriteString(w, "half")
			panic("late")
		},
	} {
		for _, proto := range []int{1, 2} {
			s := New(t.Context(), Options{})
			ts := httptest.NewUnstartedServer(s.middleware(h))
			ts.EnableHTTP2 = proto == 2
			ts.StartTLS()
			resp, err := ts.Client().Get(ts.URL)
			if err == nil {
				if resp.ProtoMajor != proto {
					t.Errorf("%s: %s", name, resp.Proto)
				}
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if err == nil {
				t.Errorf("%s, HTTP/%d: the answer seems to be whole", name, proto)
			}
			ts.Close()
		}
	}
}

// mission: F1
func TestTimesThatNobodyNames(t *testing.T) {
	t.Parallel()
	if o := New(t.Context(), Options{}).opts; o.Heartbeat != 15*time.Second || o.Patience != time.Minute {
		t.Errorf("a heartbeat comes every %s, patience lasts %s", o.Heartbeat, o.Patience)
	}
}

func TestPanicIsInternal(t *testing.T) {
	t.Parallel()
	s := New(t.Context(), Options{})
	h := edge.Handler(func(http.ResponseWriter, *http.Request) error { panic("secret") })
	ts := httptest.NewServer(s.middleware(h))
	defer ts.Close()
	resp, err := http.Get(ts.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 500 || strings.Contains(string(body), "secret") ||
		!strings.Contains(string(body), `"internal"`) {
		t.Errorf("%s %s %v", resp.Status, body, err)
	}
}

// TestEveryRouteHasAScope checks that every route requires a scope or is public, and that a read-only key changes
// nothing.
//
// mission: 6.10
func TestEveryRouteHasAScope(t *testing.T) {
	t.Parallel()
	everybody := []string{"GET " + api.Healthz, "GET " + api.Readyz, "GET " + api.OpenAPI, "GET " + api.Docs,
		"GET " + api.SignIn, "POST " + api.SignIn,
		"GET " + api.SignInOIDC, "GET " + api.SignInBack,
		"GET " + api.OAuthResource, "GET " + api.OAuthResourceMCP, "GET " + api.OAuthServer,
		"POST " + api.OAuthRegister, "GET " + api.OAuthAuthorize, "POST " + api.OAuthAuthorize,
		"POST " + api.OAuthToken, "POST " + api.OAuthRevoke}
	// Every browser may sign out. Tools change things by requests of their own, each with its own scope.
	reading := []string{"POST " + api.SignOut, "POST " + api.MCP}
	for _, rt := range New(t.Context(), Options{}).routes() {
		name := rt.Method + " " + rt.Path
		switch {
		case rt.Scope == "" && !slices.Contains(everybody, name):
			t.Errorf("%s has no scope", name)
		case rt.Scope == account.Read && rt.Method != http.MethodGet && !slices.Contains(reading, name):
			t.Errorf("%s changes something, and needs a key with the scope read only", name)
		}
	}
}
