package authorize

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

func TestRedirects(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		"https://app.example/cb":                        true,
		"https://app.example:8443/cb?x=1":               true,
		"http://127.0.0.1/cb":                           true,
		"http://127.0.0.1:3000/cb":                      true,
		"http://localhost:3000/cb":                      true,
		"http://[::1]:3000/cb":                          true,
		cursorRedirect:                                  true,
		"http://app.example/cb":                         false,
		"http://127.0.0.1.evil.example/cb":              false,
		"http://localhost.evil.example/cb":              false,
		"http://10.0.0.1/cb":                            false,
		"https://user@app.example/cb":                   false,
		"https://app.example/cb#x":                      false,
		"https://app.example/cb#":                       false,
		"https:///cb":                                   false,
		"https:app.example":                             false,
		"https://a;script-src *;/cb":                    false,
		"https://a;script-src/cb":                       false,
		"https://a,b/cb":                                false,
		"https://*/cb":                                  false,
		"https://app.example/a b":                       false,
		"https://app.example\\@evil.example/":           false,
		"https://app.example/\r\nSet-Cookie:x":          false,
		"https://[::1]evil/cb":                          false,
		"//app.example/cb":                              false,
		"/cb":                                           false,
		"":                                              false,
		"javascript:alert(1)":                           false,
		"data:text/html,x":                              false,
		"file:///etc/passwd":                            false,
		"cursor://anysphere.cursor-mcp/oauth/callback2": false,
		"vscode://x/y":                                  false,
		"https://app.example/" + strings.Repeat("a", redirectSize): false,
	} {
		if goodRedirect(text) != good {
			t.Errorf("%q: want %t", text, good)
		}
	}
	c := client{Redirects: []string{"http://localhost:1/cb?a=b", "http://[::1]:1/cb", "https://app.example:1/cb"}}
	for text, may := range map[string]bool{
		"http://localhost:1/cb?a=b": true, "http://localhost:2/cb?a=b": true, "http://localhost/cb?a=b": true,
		"http://[::1]:9/cb": true, "https://app.example:1/cb": true,
		"http://localhost:2/cb": false, "http://localhost:2/cb?a=c": false, "http://127.0.0.1:1/cb?a=b": false,
		"http://localhost:2/CB?a=b": false, "https://localhost:1/cb?a=b": false, "https://app.example:2/cb": false,
		"http://x@localhost:2/cb?a=b": false, "http://localhost:2/cb?a=b#": false, "": false,
	} {
		if c.mayRedirect(text) != may {
			t.Errorf("%q: want %t", text, may)
		}
	}
}

func TestRegistrations(t *testing.T) {
	t.Parallel()
	const metadata, redirect = "invalid_client_metadata", "invalid_redirect_uri"
	many := `{"redirect_uris":[` + strings.Repeat(`"https://a.example/",`, 10) + `"https://a.example/"]}`
	for text, code := range map[string]string{
		`{"redirect_uris":["https://a.example/"]}`:                                          "",
		`{"redirect_uris":["https://a.example/"],"grant_types":["authorization_code","x"]}`: "",
		`{"redirect_uris":["https://a.example/"],"grant_types":["client_credentials"]}`:     metadata,
		`{"redirect_uris":["https://a.example/"],"response_types":["token"]}`:               metadata,
		`{"redirect_uris":"https://a.example/"}`:                                            metadata,
		`{"redirect_uris":["https://a.example/"],"client_name":1}`:                          metadata,
		"{\"redirect_uris\":[\"https://a.example/\"],\"client_name\":\"\xff\"}":             metadata,
		``:                     metadata,
		`[]`:                   metadata,
		`{`:                    metadata,
		`{}`:                   redirect,
		`{"redirect_uris":[]}`: redirect,
		`{"redirect_uris":["https://a.example/","javascript:x"]}`: redirect,
		`{"redirect_uris":["javascript:\"ü\\"]}`:                  redirect,
		many: redirect,
	} {
		_, err := decodeClient([]byte(text))
		var f *failure
		if code == "" && err != nil || code != "" && (!errors.As(err, &f) || f.Code != code || f.Description == "") {
			t.Errorf("%s: %v", text, err)
		}
		if f != nil && strings.ContainsFunc(f.Description, func(r rune) bool {
			return r == '"' || r == '\\' || r < ' ' || r > '~'
		}) {
			t.Errorf("%s: the description is %q", text, f.Description)
		}
	}
	for name, want := range map[string]string{"Claude Code": "Claude Code", " a\u202eb\n\x00c ": "abc",
		strings.Repeat("é", 100): strings.Repeat("é", 40)} {
		if got := shownName(name); got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}

// TestIDsAreSigned checks that the ID of a client cannot be changed, and that those of another server are unknown.
func TestIDsAreSigned(t *testing.T) {
	t.Parallel()
	s, other := &Service{Key: []byte("key")}, &Service{Key: []byte("another")}
	want := client{Name: "c", Redirects: []string{"https://a.example/"}, Issued: 1, Unique: []byte("u")}
	id := s.seal(want)
	if got, err := s.open(id); err != nil || got.Name != "c" || got.Redirects[0] != want.Redirects[0] {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := other.open(id); err == nil {
		t.Error("another server knows the client")
	}
	for i := range id {
		changed := []byte(id)
		changed[i] ^= 1
		if _, err := s.open(string(changed)); err == nil {
			t.Errorf("changed at %d", i)
		}
	}
	for _, text := range []string{"", idPrefix, id[:len(id)-1], id + "A", id + "\n", strings.TrimPrefix(id, idPrefix)} {
		if _, err := s.open(text); err == nil {
			t.Errorf("%q is known", text)
		}
	}
}

// TestErrorsOfTheStoreAreNotInvalidGrant checks that a client does not drop its tokens because a disk is full.
func TestErrorsOfTheStoreAreNotInvalidGrant(t *testing.T) {
	t.Parallel()
	var f *failure
	for _, kind := range []errors.Kind{errors.Exhausted, errors.Denied, errors.Internal} {
		if err := asGrant(errors.Newf(kind, "write the record")); errors.As(err, &f) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if err := asGrant(errors.Newf(errors.Unauthenticated, "revoked")); !errors.As(err, &f) ||
		f.Code != "invalid_grant" {
		t.Errorf("%v", err)
	}
}

// TestIDsHaveALimit checks that every client that is registered can send its ID.
func TestIDsHaveALimit(t *testing.T) {
	t.Parallel()
	s := &Service{Key: []byte("key")}
	for fill, want := range map[string]int{"&": http.StatusCreated, `\"`: http.StatusBadRequest} {
		one := `"https://a.example/` + strings.Repeat(fill, redirectSize-18) + `"`
		body := `{"redirect_uris":[` + strings.Repeat(one+",", redirectsAtMost-1) + one + `]}`
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/oauth/register", strings.NewReader(body))
		if err := s.register(w, r); err != nil {
			t.Fatal(err)
		}
		var got struct {
			ID    string `json:"client_id"`
			Error string `json:"error"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != want || len(got.ID) > largest ||
			want == http.StatusBadRequest && got.Error != "invalid_client_metadata" {
			t.Errorf("%s: %d %.300s, %v", fill, w.Code, w.Body, err)
		}
	}
}

// TestUsedCodesAreLimited checks that an account cannot fill the memory with used codes, and that these are small.
func TestUsedCodesAreLimited(t *testing.T) {
	t.Parallel()
	s := &Service{}
	what := allowed{by: account.Principal{Account: "a"}, clientID: "c"}
	for range usedAtMost {
		text, err := s.keep(what)
		if err != nil {
			t.Fatal(err)
		}
		c, got, err := s.take(t.Context(), text)
		if err != nil || got.clientID != "c" || c.allowed != nil {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if _, err := s.keep(what); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("one more: %v", err)
	}
	what.by.Account = "b"
	if _, err := s.keep(what); err != nil {
		t.Errorf("another account: %v", err)
	}
}

func FuzzRegistration(f *testing.F) {
	f.Add([]byte(`{"client_name":"a","redirect_uris":["http://127.0.0.1:1/cb"]}`))
	f.Add([]byte(`{"redirect_uris":["https://a.example/?x=%2e","cursor://anysphere.cursor-mcp/oauth/callback"]}`))
	s := &Service{Key: []byte("key")}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeClient(data)
		if err != nil {
			return
		}
		got, err := s.open(s.seal(c))
		if err != nil || got.Name != c.Name {
			t.Fatalf("%+v: %+v, %v", c, got, err)
		}
		for _, text := range c.Redirects {
			u, err := url.Parse(text)
			if err != nil || !got.mayRedirect(text) {
				t.Fatalf("%q: %v", text, err)
			}
			q := &question{in: values{"state": {"s"}}, client: c, redirect: u}
			back, err := url.Parse(q.back("https://i.example", url.Values{"code": {"c"}}))
			if err != nil || back.Scheme != u.Scheme || back.Host != u.Host || back.Query().Get("code") != "c" ||
				back.Query().Get("iss") != "https://i.example" || strings.ContainsAny(back.String(), "\r\n #\\") {
				t.Fatalf("%q leads to %v, %v", text, back, err)
			}
			if strings.ContainsAny(q.target(), " ;,'*") {
				t.Fatalf("%q makes the policy %q", text, q.target())
			}
		}
	})
}

func FuzzClientID(f *testing.F) {
	s := &Service{Key: []byte("key")}
	known := s.seal(client{Redirects: []string{"https://a.example/"}})
	f.Add(known)
	f.Add("hvc_")
	f.Fuzz(func(t *testing.T, id string) {
		if c, err := s.open(id); err == nil && id != known {
			t.Fatalf("%q is %+v", id, c)
		}
	})
}
