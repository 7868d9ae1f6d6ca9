package server_test

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

// TestRefusalsAreAudited checks that the audit log records refusals, also of read-only requests, and does not record
// successful reads.
func TestRefusalsAreAudited(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	executor := w.as(account.Request{Scopes: []account.Scope{account.Exec}})
	member := w.as(account.Request{})
	wrong := &world{t: t, url: w.strict, headers: []string{"Authorization", "Bearer hv_wrong"}}
	lines := func() string { return w.audit.String() }
	for name, c := range map[string]struct {
		w      *world
		path   string
		status string
	}{
		"no key":           {w.stranger(), "/v1/sandboxes?n=1", `"status":401`},
		"a wrong key":      {wrong, "/v1/volumes", `"status":401`},
		"without a scope":  {executor, "/v1/images", `"status":403`},
		"for the operator": {member, api.Doctor, `"status":403`},
	} {
		before := len(lines())
		c.w.do("GET", c.path, "")
		path, _, _ := strings.Cut(c.path, "?")
		testenv.Eventually(t, "a line of "+name,
			func() bool { return len(lines()) > before }) // it comes after the answer
		got := lines()[before:]
		if strings.Count(got, "\n") != 1 || !strings.Contains(got, c.status) ||
			!strings.Contains(got, `"path":"`+path+`"`) || !strings.Contains(got, `"address":"127.0.0.1"`) ||
			strings.Contains(got, "hv_") || strings.Contains(got, "n=1") {
			t.Errorf("%s: %q", name, got)
		}
	}
	before := lines()
	member.do("GET", "/v1/sandboxes", "")
	if got := lines(); got != before {
		t.Errorf("what is read is audited: %s", got[len(before):])
	}
}
