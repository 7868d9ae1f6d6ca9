package server_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
)

// TestModalRoutes checks that the server implements the document's section 6, line by line.
func TestModalRoutes(t *testing.T) {
	t.Parallel()
	w := start(t)
	user := w.as(account.Request{Account: "acme"})
	const route = "/api/modal/sandbox"
	type answer struct {
		ID      string `json:"sandbox_id"`
		Status  string `json:"status"`
		Account string `json:"account_id"`
		Created string `json:"created_at"`
		Volume  string `json:"volume_name"`
		Path    string `json:"volume_mount_path"`
	}
	get := func(method, path, body string) (int, answer) {
		t.Helper()
		resp, text := user.do(method, path, body)
		var a answer
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return resp.StatusCode, a
	}
	// mission: 6.1, 6.2, 6.3, 6.9
	status, made := get("POST", route,
		`{"image_base":"base","volume_name":"work","volume_mount_path":"/data","environment":{"A":"b"},`+
			`"timeout_seconds":600}`)
	if status != 200 || !strings.HasPrefix(made.ID, "sbx_") || made.Status != "running" || made.Created == "" ||
		made.Account != "acme" ||
		made.Volume != "work" || made.Path != "/data" {
		t.Errorf("6.1: %d %+v", status, made)
	}
	if status, other := get("POST", route, ``); status != 200 || other.ID == made.ID {
		t.Errorf("6.1, without anything: %d %+v", status, other)
	}
	// mission: 6.5, 5.7, 1.7
	if status, got := get("GET", route+"/"+made.ID, ""); status != 200 || got.ID != made.ID || got.Status != "running" {
		t.Errorf("6.5: %d %+v", status, got)
	}
	// mission: 6.6, 6.7
	user.want(400, "POST", route+"/"+made.ID+"/claude", `{}`)
	user.want(404, "POST", route+"/sbx_none/claude", `{"prompt":"hello"}`)
	user.want(501, "POST", route+"/"+made.ID+"/claude", `{"prompt":"hello"}`)
	// mission: 6.4, 5.1
	if status, ended := get("DELETE", route+"/"+made.ID, ""); status != 200 || ended.Status != "terminated" ||
		ended.ID != made.ID {
		t.Errorf("6.4: %d %+v", status, ended)
	}
	if status, again := get("DELETE", route+"/"+made.ID, ""); status != 200 || again.Status != "terminated" {
		t.Errorf("6.4, again: %d %+v", status, again)
	}
	// mission: 6.8, 1.6
	for body, want := range map[string]int{
		`{`: 400, `{"image":1}`: 400, `{"volume_mount_path":"/x"}`: 400,
		`{"volume_name":"a","volume_mount_path":"x"}`: 400, `{"workdir":"x"}`: 400,
		`{"s3_bucket_name":"b"}`: 501 /* this server has no S3 */, `{"environment":{"A=B":"c"}}`: 400,
	} {
		user.want(want, "POST", route, body)
	}
	// A sandbox without a place in S3, on a server without one.
	_, plain := get("POST", route, "")
	user.want(400, "DELETE", "/v1/sandboxes/"+plain.ID+"?sync=odd", "")
	user.want(501, "POST", "/v1/sandboxes/"+plain.ID+"/sync", `{"direction":"up"}`)
	user.want(204, "DELETE", "/v1/sandboxes/"+plain.ID+"?sync=true", "")
	user.want(404, "GET", route+"/sbx_none", "")
	user.want(404, "DELETE", route+"/sbx_none", "")
	w.want(404, "GET", route+"/"+made.ID, "")
	w.engine.FailNext(fake.OpCreate, errors.Errorf("a secret path /var/lib/x"))
	resp, text := user.do("POST", route, "")
	if resp.StatusCode != 500 || strings.Contains(text, "/var/lib") || !strings.Contains(text, `"stage":"create"`) {
		t.Errorf("6.8: %s %s", resp.Status, text)
	}
	// mission: 5.5
	_, failing := get("POST", route, "")
	w.engine.FailNext(fake.OpDestroy, errors.Errorf("planned"))
	user.want(500, "DELETE", route+"/"+failing.ID, "")
	if status, got := get("GET", route+"/"+failing.ID, ""); status != 200 || got.Status != "error" {
		t.Errorf("5.5: %d %+v", status, got)
	}
	// mission: 6.10
	for _, r := range [][2]string{{"POST", route}, {"GET", route + "/" + made.ID}, {"DELETE", route + "/" + made.ID},
		{"POST", route + "/" + made.ID + "/claude"}} {
		w.stranger().want(401, r[0], r[1], "")
	}
	w.as(account.Request{Account: "acme", Scopes: []account.Scope{account.Read}}).want(403, "POST", route, "")
}
