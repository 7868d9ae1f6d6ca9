package server_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/server"
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

// TestRefusedHostsAndRatesAreAudited checks that a request to a foreign host name, and requests beyond the rate of a
// key and of an address without one, have a line in the audit log.
//
// mission: F6
func TestRefusedHostsAndRatesAreAudited(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) {
		o.Rate, o.Proxies = 1, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	a := &auditWalk{world: w}
	for _, path := range []string{"/", api.Healthz, api.Account} {
		line := a.line(w.stranger(), "GET", path, "", "X-Forwarded-Host", "evil.example")
		if line.Status != http.StatusMisdirectedRequest || line.Address != "127.0.0.1" || line.Account != "" {
			t.Errorf("%s of a foreign host: %+v", path, line)
		}
	}
	member := w.as(account.Request{Account: "acme"})
	for name, c := range map[string]struct {
		w       *world
		account string
		others  int // status of requests within the rate
	}{
		"a key": {member, "acme", http.StatusOK}, "an address": {w.stranger(), "", http.StatusUnauthorized},
	} {
		limited := ""
		for n := 0; limited == "" && n < 1000; n++ {
			id := strings.ReplaceAll(fmt.Sprint(name, n), " ", "-")
			resp, _ := c.w.do("GET", api.Account, "", api.HeaderRequestID, id)
			switch resp.StatusCode {
			case http.StatusTooManyRequests:
				limited = id
			case c.others:
			default:
				t.Fatalf("%s: %s", name, resp.Status)
			}
		}
		var line api.AuditLine
		testenv.Eventually(t, "the line of a request beyond the rate of "+name,
			func() (found bool) { line, found = w.lineOf(limited); return found })
		if line.Status != http.StatusTooManyRequests || line.Account != c.account ||
			(line.KeyID != "") != (c.account != "") || line.Address != "127.0.0.1" {
			t.Errorf("%s: %+v", name, line)
		}
	}
}

// TestAuditHidesKnownSecrets checks that a secret that the server knows, and a key of Harvest, are hidden in the audit
// log where a caller sends them as a part of the path.
//
// mission: F6
func TestAuditHidesKnownSecrets(t *testing.T) {
	t.Parallel()
	const known = "CANARY-known-secret-of-audit"
	defer logf.Redact(known)()
	w := start(t)
	a := &auditWalk{world: w}
	key := "hv_" + strings.Repeat("a2", 26)
	for _, value := range []string{known, key} {
		line := a.line(w, "DELETE", api.Path(api.VolumeNamed, "x-"+value), "")
		if line.Path != api.Path(api.VolumeNamed, "x-")+logf.Hidden || line.Method != "DELETE" {
			t.Errorf("%s: %+v", value, line)
		}
	}
	if audit := w.audit.String(); strings.Contains(audit, known) || strings.Contains(audit, key) {
		t.Error("a value is in the audit log")
	}
}
