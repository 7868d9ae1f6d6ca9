package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// TestOtherAccountsOnEveryRoute checks that every documented route that names an object answers another account as if
// the object did not exist, for every method.
// mission: A7, 6.3
func TestOtherAccountsOnEveryRoute(t *testing.T) {
	t.Parallel()
	w := startOn(t, withPorts)
	box := w.create()
	w.want(201, "POST", "/v1/volumes", `{"name":"mine"}`)
	_, body := w.do("POST", "/v1/keys", `{"name":"mine"}`)
	key := parse[api.NewKey](t, body)
	_, text := w.do("GET", api.OpenAPI, "")
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	// bodies has the fields that a request must have to be valid.
	bodies := map[string]string{
		"exec": `{"args":["true"]}`, "extend": `{"timeout_seconds":60}`, "network": `{"mode":"none"}`,
		"links": `{"port":80}`, "move": `{"from":"/a","to":"/b"}`, "mkdir": `{"path":"/a"}`,
		"messages": `{"prompt":"x"}`, "claude": `{"prompt":"x"}`, "answer": `{"id":"x","choices":["x"]}`,
	}
	acme := w.as(account.Request{Account: "acme", Role: account.Admin})
	asked := 0
	for path, methods := range doc.Paths {
		last := path[strings.LastIndex(path, "/")+1:]
		if !strings.Contains(path, "{") || strings.HasPrefix(path, "/v1/images/") ||
			strings.HasPrefix(path, "/v1/secrets/") {
			// all accounts share images, except those that an account has made, and secrets are created by their own
			// PUT: both have separate tests
			continue
		}
		for method := range methods {
			if method == "get" && (last == "exec" || last == "terminal" || last == "connect" || last == "ssh") {
				// WebSockets, which TestOtherAccountsSeeNothing, TestTerminal and TestOtherAccount of package ssh try
				continue
			}
			send := bodies[last]
			if send == "" && method == "post" {
				send = "{}"
			}
			ask := func(id, name, keyID string) (int, string) {
				t.Helper()
				if strings.HasPrefix(path, "/v1/keys/") {
					id = keyID
				}
				url := strings.NewReplacer("{id}", id, "{name}", name, "{port}", "80", "{path}", "x", "{link}",
					"lnk_x").Replace(path)
				resp, answer := acme.do(strings.ToUpper(method), url+"?path=/x&port=80", send, api.HeaderRequestID, "r")
				asked++
				return resp.StatusCode, strings.NewReplacer(id, "ID", name, "NAME").Replace(answer)
			}
			status, answer := ask(box.ID, "mine", key.ID)
			noStatus, noAnswer := ask("sbx_01arz3ndektsv4rrffq69g5fav", "none", "key_01arz3ndektsv4rrffq69g5fav")
			if status != noStatus || answer != noAnswer {
				t.Errorf("%s %s tells that it is there: %d %s, otherwise %d %s", method, path, status, answer,
					noStatus, noAnswer)
			}
			ours := strings.HasPrefix(path, "/v1/sandboxes/") || strings.HasPrefix(path, "/v1/volumes/") ||
				strings.HasPrefix(path, "/v1/keys/") || strings.HasPrefix(path, "/api/modal/")
			if unsupported := last == "snapshot"; ours && status != http.StatusNotFound &&
				!unsupported { // by the fake engine
				t.Errorf("%s %s: %d %s", method, path, status, answer)
			}
		}
	}
	if asked < 60 {
		t.Errorf("only %d requests", asked)
	}
	w.want(200, "GET", "/v1/sandboxes/"+box.ID, "")
	w.want(200, "GET", "/v1/volumes/mine/files/list?path=/", "")
}

// mission: 6.10
func TestKeysThatHaveEnded(t *testing.T) {
	t.Parallel()
	w := start(t)
	box := w.create()
	short := w.as(account.Request{Life: 10 * time.Second})
	short.want(200, "GET", "/v1/sandboxes/"+box.ID, "")
	made, secret, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "revoked"})
	if err != nil {
		t.Fatal(err)
	}
	revoked := &world{t: t, url: w.strict, headers: []string{"Authorization", "Bearer " + secret.Reveal()}}
	revoked.want(200, "GET", "/v1/sandboxes", "")
	w.want(204, "DELETE", "/v1/keys/"+made.ID, "")
	revoked.want(401, "GET", "/v1/sandboxes", "")
	for deadline := time.Now().Add(time.Minute); ; {
		resp, body := short.do("GET", "/v1/sandboxes", "")
		if resp.StatusCode == http.StatusUnauthorized && strings.Contains(body, "expired") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after its time: %s %s", resp.Status, body)
		}
		time.Sleep(50 * time.Millisecond)
	}
	short.want(401, "POST", "/v1/sandboxes/"+box.ID+"/exec", `{"args":["true"]}`)
}
