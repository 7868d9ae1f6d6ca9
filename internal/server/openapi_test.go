package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// TestOpenAPI checks that the document is valid OpenAPI 3.1, and that the server's answers match it.
// mission: F1
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	w := start(t)
	_, text := w.do("GET", api.OpenAPI, "")
	doc, err := libopenapi.NewDocument([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if ok, problems := v.ValidateDocument(); !ok {
		for _, p := range problems {
			t.Errorf("%s: %s", p.Message, p.Reason)
			for _, s := range p.SchemaValidationErrors {
				t.Errorf("  %s: %s", s.Location, s.Reason)
			}
		}
	}
	box := w.create().ID
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/sandboxes",
			`{"name":"a","env":{"A":"b"},"volumes":[{"name":"v","path":"/v"}],"cpu":0.5,"tags":{"x":"y"}}`},
		{"POST", "/v1/sandboxes", `{}`},
		{"GET", "/v1/sandboxes?limit=1&all=true", ""},
		{"GET", "/v1/sandboxes/" + box, ""},
		{"GET", "/v1/sandboxes/nosuch", ""},
		{"POST", "/v1/sandboxes/" + box + "/exec", `{"args":["true"],"terminal":{"rows":2,"cols":3}}`},
		{"POST", "/v1/sandboxes/" + box + "/extend", `{"timeout_seconds":60}`},
		{"GET", "/v1/sandboxes/" + box + "/processes", ""},
		{"POST", "/v1/run", `{"args":["true"],"sandbox":{}}`},
		{"POST", "/v1/volumes", `{"name":"v2"}`},
		{"GET", "/v1/volumes", ""},
		{"GET", "/v1/volumes/v2/files/list?path=/", ""},
		{"GET", "/v1/images", ""},
		{"GET", "/v1/images/base", ""},
		{"POST", "/v1/keys", `{"name":"k","scopes":["read"]}`},
		{"GET", "/v1/keys", ""},
		{"GET", "/v1/account", ""},
		{"GET", "/readyz", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, w.url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", api.TypeJSON)
		req.Header.Set("Authorization", "Bearer for-the-validator")
		if ok, problems := v.ValidateHttpRequestSync(req); !ok {
			t.Errorf("%s %s: the request: %v", c.method, c.path, problems[0])
		}
		resp, body := w.do(c.method, c.path, c.body)
		resp.Body = http.NoBody
		answer := &http.Response{StatusCode: resp.StatusCode, Header: resp.Header, Body: readCloser(body)}
		if ok, problems := v.ValidateHttpResponse(req, answer); !ok {
			t.Errorf("%s %s: the answer: %v\n%s", c.method, c.path, problems[0], body)
		}
	}
}

// TestOpenAPIHasEveryRoute checks that the document has the parts that a generated client needs.
func TestOpenAPIHasEveryRoute(t *testing.T) {
	t.Parallel()
	w := start(t)
	_, text := w.do("GET", api.OpenAPI, "")
	var doc struct {
		Paths map[string]map[string]struct {
			ID       string                       `json:"operationId"`
			Security []map[string]json.RawMessage `json:"security"`
			Answers  map[string]map[string]any    `json:"responses"`
			Fields   []struct{ Name, In string }  `json:"parameters"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any `json:"properties"`
				Required   []string       `json:"required"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	stranger := w.stranger()
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if ids[op.ID] {
				t.Errorf("two operations are %s", op.ID)
			}
			ids[op.ID] = true
			for _, f := range op.Fields {
				if f.In == "query" && strings.Trim(f.Name, "abcdefghijklmnopqrstuvwxyz_") != "" {
					t.Errorf("%s %s: odd parameter %q", method, path, f.Name)
				}
			}
			// Exactly the routes that the document lists as public are public.
			url := strings.NewReplacer("{id}", "x", "{name}", "x", "{port}", "1", "{path}", "x").Replace(path)
			if strings.HasPrefix(path, "/oauth/") { // errors in the form of OAuth
				resp, _ := stranger.do(strings.ToUpper(method), url, "")
				if resp.StatusCode != http.StatusBadRequest {
					t.Errorf("%s %s: %s", method, path, resp.Status)
				}
				continue
			}
			got := stranger.status(strings.ToUpper(method), url, "")
			if open := op.Security != nil; open == (got == http.StatusUnauthorized ||
				got == http.StatusTooManyRequests) && path != api.SignIn {
				t.Errorf("%s %s: %d, open %t", method, path, got, open)
			}
		}
	}
	for _, route := range []string{api.Sandboxes, api.Sandboxed, api.SandboxExec, api.Volumes, api.Images, api.Keys} {
		if doc.Paths[route] == nil {
			t.Errorf("%s is not in the document", route)
		}
	}
	for _, name := range []string{"SandboxRequest", "ExecRequest", "RunRequest"} {
		if s := doc.Components.Schemas[name]; len(s.Properties) == 0 || len(s.Required) > 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	_, page := stranger.do("GET", api.Docs, "")
	for path := range doc.Paths {
		if !strings.Contains(page, path) && !strings.Contains(page, strings.TrimSuffix(path, "}")+"...}") {
			t.Errorf("%s is not on the page", path)
		}
	}
	if strings.Contains(page, "https://") || strings.Contains(page, "<script") {
		t.Error("the page loads something from elsewhere")
	}
}

// mission: F1
func TestIdempotency(t *testing.T) {
	t.Parallel()
	w := start(t)
	const key = "Idempotency-Key"
	resp, first := w.do("POST", "/v1/sandboxes", `{"name":"once"}`, key, "a-1")
	if resp.StatusCode != 201 || resp.Header.Get("Idempotency-Replayed") != "" {
		t.Fatalf("%s %s", resp.Status, first)
	}
	for range 2 {
		resp, again := w.do("POST", "/v1/sandboxes", `{"name":"once"}`, key, "a-1")
		if resp.StatusCode != 201 || again != first || resp.Header.Get("Idempotency-Replayed") != "true" ||
			resp.Header.Get("Content-Type") != api.TypeJSON {
			t.Errorf("again: %s %s", resp.Status, again)
		}
	}
	w.want(422, "POST", "/v1/sandboxes", `{"name":"other"}`, key, "a-1")
	w.want(422, "POST", "/v1/volumes", `{"name":"once"}`, key, "a-1")
	w.want(400, "POST", "/v1/volumes", `{"name":"v"}`, key, "a b")
	w.want(400, "POST", "/v1/volumes", `{"name":"v"}`, key, strings.Repeat("a", 256))
	// A permanent refusal is stored, too.
	resp, refused := w.do("POST", "/v1/sandboxes", `{"name":"once"}`, key, "a-2")
	w.want(204, "DELETE", "/v1/sandboxes/once", "")
	if again, body := w.do("POST", "/v1/sandboxes", `{"name":"once"}`, key, "a-2"); again.StatusCode != 409 ||
		resp.StatusCode != 409 || body != refused {
		t.Errorf("refused: %s, again: %s", refused, body)
	}
	// Keys of another account are separate.
	member := w.as(account.Request{Account: "acme"})
	if resp, body := member.do("POST", "/v1/sandboxes", `{"name":"once"}`, key, "a-1"); resp.StatusCode != 201 ||
		body == first {
		t.Errorf("another account: %s", body)
	}
	// Concurrent requests wait for the first one.
	w.create()
	results := make(chan string, 8)
	for range 8 {
		go func() {
			resp, body := w.do("POST", "/v1/sandboxes/box/exec",
				`{"args":["sh","-c","echo x >> count; sleep 0.2; cat count"]}`, key, "a-3")
			results <- resp.Status + body
		}()
	}
	one := <-results
	for range 7 {
		if other := <-results; other != one {
			t.Errorf("%s, and %s", one, other)
		}
	}
	if !strings.Contains(one, `"stdout":"x\n"`) {
		t.Errorf("it ran more than once: %s", one)
	}
	// A secret is shown once.
	resp, made := w.do("POST", "/v1/keys", `{"name":"k"}`, key, "a-4")
	if resp.StatusCode != 201 || !strings.Contains(made, "hv_") {
		t.Errorf("key: %s %s", resp.Status, made)
	}
	w.want(409, "POST", "/v1/keys", `{"name":"k"}`, key, "a-4")
	// Events are replayed unchanged.
	_, events := w.do("POST", "/v1/sandboxes/box/exec", `{"args":["echo","out"]}`, key, "a-5", "Accept", api.TypeEvents)
	if resp, again := w.do("POST", "/v1/sandboxes/box/exec", `{"args":["echo","out"]}`, key, "a-5", "Accept",
		api.TypeEvents); again != events ||
		resp.Header.Get("Content-Type") != api.TypeEvents || !strings.Contains(again, "event: exit") {
		t.Errorf("events: %q, again: %q", events, again)
	}
}

// mission: F1
func TestCursors(t *testing.T) {
	t.Parallel()
	w := start(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		w.want(201, "POST", "/v1/volumes", `{"name":"`+name+`"}`)
	}
	pages := func(path string) (cursors []string, names string) {
		cursor := ""
		for range 10 {
			_, body := w.do("GET", path+"&cursor="+cursor, "")
			page := parse[api.List[api.Volume]](t, body)
			for _, v := range page.Data {
				names += v.Name
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
			cursors = append(cursors, cursor)
		}
		return cursors, names
	}
	cursors, names := pages("/v1/volumes?limit=2")
	if names != "abcde" || len(cursors) != 2 {
		t.Errorf("pages: %s %v", names, cursors)
	}
	if strings.Contains(cursors[0], "b") && strings.HasSuffix(cursors[0], "b") {
		t.Error("a cursor can be read")
	}
	w.want(204, "DELETE", "/v1/volumes/b", "")
	if _, body := w.do("GET", "/v1/volumes?limit=2&cursor="+cursors[0], ""); !strings.Contains(body, `"c"`) ||
		strings.Contains(body, `"a"`) {
		t.Errorf("the page after one that is gone: %s", body)
	}
	member := w.as(account.Request{Account: "acme"})
	member.want(400, "GET", "/v1/volumes?cursor="+cursors[0], "")
	for _, from := range []string{"/v1/sandboxes?cursor=", "/v1/keys?cursor=", "/v1/images?cursor=",
		"/v1/volumes/a/files/list?path=/&cursor=", "/v1/volumes?x=y&cursor="} {
		w.want(400, "GET", from+cursors[0], "")
	}
	for _, made := range []string{"x", "sbx_01", "YWJj", cursors[0] + "x", cursors[0][1:], "%00"} {
		w.want(400, "GET", "/v1/volumes?cursor="+made, "")
		w.want(400, "GET", "/v1/sandboxes?cursor="+made, "")
	}
	for _, limit := range []string{"0", "-1", "1001", "x", "1e3"} {
		w.want(400, "GET", "/v1/volumes?limit="+limit, "")
	}
}
