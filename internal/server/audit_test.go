package server_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server"
)

// TestAuditCanBeListed checks that the audit log can be listed: the operator sees all of it, other callers see the
// entries of their account. Damaged lines are skipped.
// mission: F6
func TestAuditCanBeListed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	w := start(t, func(o *server.Options) { o.AuditFile = file })
	if _, body := w.do("GET", api.Audit, ""); len(parse[api.List[api.AuditLine]](t, body).Data) != 0 {
		t.Errorf("without a file: %s", body)
	}
	log, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	other := w.as(account.Request{Account: "other"})
	w.create()
	other.want(201, "POST", api.Volumes, `{"name":"theirs"}`)
	w.want(204, "DELETE", api.Path(api.Sandboxed, w.last), "")
	if _, err := io.WriteString(log, `ed_at":"half a line"}`+"\n"+strings.TrimSuffix(w.audit.String(),
		"\n")+"\n{\"time\":"); err != nil {
		t.Fatal(err)
	}

	_, body := w.do("GET", api.Audit, "")
	all := parse[api.List[api.AuditLine]](t, body).Data
	if len(all) != 3 || all[0].Method != "DELETE" || all[1].Account != "other" || all[2].Path != api.Sandboxes ||
		all[0].RequestID == "" {
		t.Errorf("the operator sees %s", body)
	}
	_, body = other.do("GET", api.Audit, "")
	if own := parse[api.List[api.AuditLine]](t, body).Data; len(own) != 1 || own[0].Path != api.Volumes ||
		own[0].Status != 201 || own[0].KeyID == "" {
		t.Errorf("others see %s", body)
	}
	_, body = w.do("GET", api.Audit+"?limit=2", "")
	page := parse[api.List[api.AuditLine]](t, body)
	_, body = w.do("GET", api.Audit+"?limit=2&cursor="+page.NextCursor, "")
	if rest := parse[api.List[api.AuditLine]](t, body).Data; len(page.Data) != 2 || len(rest) != 1 ||
		rest[0] != all[2] {
		t.Errorf("by pages: %+v %+v", page, rest)
	}
	w.want(400, "GET", api.Audit+"?limit=x", "")
	w.stranger().want(401, "GET", api.Audit, "")
	start(t).want(501, "GET", api.Audit, "")
}

// TestDoctorOverHTTP checks that the operator can run the doctor's checks of the machine over HTTP.
func TestDoctorOverHTTP(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) {
		o.Doctor = func(context.Context) []api.Finding {
			return []api.Finding{{Name: "disk", Detail: "full", Remedy: "free some", Needed: true}}
		}
	})
	_, body := w.do("GET", api.Doctor, "")
	if found := parse[api.List[api.Finding]](t, body).Data; len(found) != 1 || found[0].Name != "disk" ||
		found[0].Remedy != "free some" || !found[0].Needed {
		t.Errorf("%s", body)
	}
	w.as(account.Request{Account: "other"}).want(403, "GET", api.Doctor, "")
	start(t).want(501, "GET", api.Doctor, "")
}
