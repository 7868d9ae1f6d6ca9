package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/account/oidc"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/server"
)

// auditWalk sends requests with a canary wherever paths, queries, headers and bodies can have values, and finds their
// lines.
type auditWalk struct {
	*world
	n int
}

const auditCanary = "CANARY0audit0walk"

// line sends a request and returns its line, which is written after the answer.
func (a *auditWalk) line(as *world, method, path, body string, header ...string) (line api.AuditLine) {
	a.t.Helper()
	a.n++
	id := fmt.Sprintf("walk-%d", a.n)
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	resp, _ := as.do(method, path+sep+"value="+auditCanary, body, append(header, api.HeaderRequestID, id)...)
	testenv.Eventually(a.t, "the line of "+method+" "+path+", which was answered with "+resp.Status,
		func() (found bool) { line, found = a.lineOf(id); return found })
	if line.Status != resp.StatusCode {
		a.t.Errorf("%s %s: the line says %d, the answer was %s", method, path, line.Status, resp.Status)
	}
	return line
}

// lineOf returns the line of a request, by its ID.
func (w *world) lineOf(id string) (line api.AuditLine, found bool) {
	for text := range strings.Lines(w.audit.String()) {
		var l api.AuditLine
		if json.Unmarshal([]byte(text), &l) == nil && l.RequestID == id {
			return l, true
		}
	}
	return line, false
}

// withProvider is an option for a server with a provider of OpenID Connect, which has every route.
func withProvider(t *testing.T, issuer string) func(*server.Options) {
	t.Helper()
	provider, err := oidc.New(oidc.Options{Issuer: issuer, ClientID: "harvest", Secret: "the secret of the client",
		Scopes: []string{"openid", "email"}, Groups: "groups", Allow: []string{"@example.org=acme"}})
	if err != nil {
		t.Fatal(err)
	}
	return func(o *server.Options) { o.OIDC = provider }
}

var pathParameter = regexp.MustCompile(`\{[^}]*\}`)

// Every route of the router leaves a line for a change, for a command and for a refusal.
//
// mission: F6
func TestEveryRouteIsAudited(t *testing.T) {
	t.Parallel()
	w := start(t, withProvider(t, testenv.OIDCProvider(t)))
	a := &auditWalk{world: w}
	reader := w.as(account.Request{Scopes: []account.Scope{account.Read}})
	executor := w.as(account.Request{Scopes: []account.Scope{account.Exec}})
	member := w.as(account.Request{})
	stranger := &world{t: t, url: w.strict, headers: []string{"Authorization", "Bearer hv_" + auditCanary}}
	routes := server.Routes(w.server)
	if len(routes) < 100 {
		t.Fatalf("the router has only %d routes", len(routes))
	}
	body := `{"name":"` + auditCanary + `","` + auditCanary + `":1}`
	for _, rt := range routes {
		path := pathParameter.ReplaceAllString(rt.Path, "1")
		name := rt.Method + " " + rt.Path
		if rt.Scope != "" {
			l := a.line(stranger, rt.Method, path, body)
			if l.Account != "" || l.Address != "127.0.0.1" || l.Path != path || l.Status != 401 && l.Status != 429 {
				t.Errorf("%s with an unknown key: %+v", name, l)
			}
			limited := reader
			if rt.Scope == account.Read {
				limited = executor
			}
			if l := a.line(limited, rt.Method, path, body); l.Account != "personal" || l.KeyID == "" ||
				l.Status != 403 {
				t.Errorf("%s without the scope: %+v", name, l)
			}
		}
		if rt.Operator {
			if l := a.line(member, rt.Method, path, body); l.KeyID == "" || l.Status != 403 {
				t.Errorf("%s by a member: %+v", name, l)
			}
		}
		if rt.Changes {
			if l := a.line(w, rt.Method, path, body, "Content-Type", "application/json"); rt.Scope != "" &&
				l.Account != "personal" {
				t.Errorf("%s by the operator: %+v", name, l)
			}
		}
	}
	if audit := w.audit.String(); strings.Contains(audit, auditCanary) || strings.Contains(audit, "hv_") {
		t.Error("a value is in the audit log")
	}
}

// TestSignInsAreAudited checks that sign-ins have a line in the audit log, failed and successful ones, and that
// sign-outs have one too.
func TestSignInsAreAudited(t *testing.T) {
	t.Parallel()
	w := start(t, withProvider(t, testenv.OIDCProvider(t)))
	a := &auditWalk{world: w}
	s := w.stranger()
	for name, c := range map[string]struct {
		method, path string
		status       int
	}{
		"a wrong link, opened":       {"GET", api.SignIn + "?token=hvl_" + auditCanary, 401},
		"a wrong link, clicked":      {"POST", api.SignIn + "?token=hvl_" + auditCanary, 401},
		"the provider's wrong state": {"GET", api.SignInBack + "?state=x&code=" + auditCanary, 401},
	} {
		if l := a.line(s, c.method, c.path, ""); l.Status != c.status || l.Address != "127.0.0.1" ||
			strings.Contains(l.Path, "?") {
			t.Errorf("%s: %+v", name, l)
		}
	}
	link, err := server.SignInLink(w.ring, account.Local(), w.strict)
	if err != nil {
		t.Fatal(err)
	}
	path := strings.TrimPrefix(link, w.strict)
	resp, _ := s.do("POST", path, "", api.HeaderRequestID, "signed-in")
	if resp.StatusCode != http.StatusSeeOther || len(resp.Cookies()) != 1 {
		t.Fatalf("sign in: %s", resp.Status)
	}
	has := func(id, text string) {
		t.Helper()
		testenv.Eventually(t, "the line of "+id, func() bool {
			for l := range strings.Lines(w.audit.String()) {
				if strings.Contains(l, `"request_id":"`+id+`"`) && strings.Contains(l, text) {
					return true
				}
			}
			return false
		})
	}
	has("signed-in", `"account":"personal"`)
	cookie := resp.Cookies()[0]
	s.do("POST", api.SignOut, "", "Cookie", cookie.Name+"="+cookie.Value, "Origin", w.strict,
		api.HeaderRequestID, "signed-out")
	has("signed-out", `"account":"personal"`)
	if audit := w.audit.String(); strings.Contains(audit, auditCanary) || strings.Contains(audit, "token=") ||
		strings.Contains(audit, cookie.Value) {
		t.Error("a value is in the audit log")
	}
}
