package github_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/session/github"
)

// stub is a GitHub server that answers by "METHOD /path", and records its requests.
func stub(t *testing.T, answers map[string]string) (api string, asked *[]*http.Request, bodies *[]string) {
	t.Helper()
	asked, bodies = &[]*http.Request{}, &[]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*asked, *bodies = append(*asked, r), append(*bodies, string(body))
		answer, ok := answers[r.Method+" "+r.URL.Path]
		if !ok {
			answer = `404 {"message":"Not Found"}`
		}
		code, text, _ := strings.Cut(answer, " ")
		status := 0
		fmt.Sscan(code, &status)
		if strings.Contains(text, "rate limit") {
			w.Header().Set("X-RateLimit-Remaining", "0")
		}
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked, bodies
}

// local is a client that may connect to stubs on this machine.
func local() *http.Client { return netguard.Rules{Loopback: true}.Client(github.Timeout) }

// The address of the API comes of a secret: it leads to the internet only, redirects included.
func TestAPIIsOnTheInternet(t *testing.T) {
	t.Parallel()
	api, asked, _ := stub(t, map[string]string{})
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, api,
			http.StatusFound)
	}))
	defer away.Close()
	allowed := netguard.Rules{Hosts: []string{strings.TrimPrefix(away.URL, "http://")}}.Client(github.Timeout)
	for at, client := range map[string]*http.Client{api: nil, away.URL: allowed} {
		if err := (&github.Client{API: at, Token: "t",
			HTTP: client}).Revoke(t.Context()); errors.KindOf(err) != errors.Denied || errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v", at, err)
		}
		if _, err := (&github.Client{API: at, Token: "t", HTTP: client}).OpenPull(t.Context(), "o/n",
			github.PullRequest{}); errors.KindOf(err) != errors.Denied {
			t.Errorf("%s: %v", at, err)
		}
	}
	if len(*asked) != 0 {
		t.Errorf("%d requests arrived", len(*asked))
	}
}

func TestAPI(t *testing.T) {
	t.Parallel()
	if got := github.API("GitHub.com") + " " +
		github.API("git.example.org"); got != "https://api.github.com https://git.example.org/api/v3" {
		t.Error(got)
	}
}

func TestOpenPull(t *testing.T) {
	t.Parallel()
	api, asked, bodies := stub(t, map[string]string{
		"GET /repos/o/n":        `200 {"default_branch":"trunk"}`,
		"POST /repos/o/n/pulls": `201 {"number":7,"html_url":"https://x/7","draft":true}`,
	})
	c := github.Client{API: api + "/", Token: "tok", HTTP: local()}
	got, err := c.OpenPull(t.Context(), "o/n", github.PullRequest{Title: "T", Body: "B",
		Head: "harvest/x", Draft: true})
	if err != nil || got != (github.Pull{Number: 7, URL: "https://x/7", Draft: true}) {
		t.Errorf("%+v, %v", got, err)
	}
	if (*bodies)[1] != `{"title":"T","body":"B","head":"harvest/x","base":"trunk","draft":true}` {
		t.Error(*bodies)
	}
	if h := (*asked)[1].Header; h.Get("Authorization") != "Bearer tok" || h.Get("X-Github-Api-Version") == "" {
		t.Error(h)
	}
}

// TestPullOfBranch checks that the open pull request of a branch can be found and changed.
func TestPullOfBranch(t *testing.T) {
	t.Parallel()
	api, asked, bodies := stub(t, map[string]string{
		"GET /repos/o/n/pulls":     `200 [{"number":3,"html_url":"https://x/3","title":"T","body":"B"}]`,
		"GET /repos/o/m/pulls":     `200 []`,
		"PATCH /repos/o/n/pulls/3": `200 {"number":3,"html_url":"https://x/3","title":"T","body":"C"}`,
	})
	c := github.Client{API: api, HTTP: local()}
	got, err := c.FindPull(t.Context(), "o/n", "b")
	if err != nil || got != (github.Pull{Number: 3, URL: "https://x/3", Title: "T", Body: "B"}) ||
		(*asked)[0].URL.Query().Get("head") != "o:b" || (*asked)[0].URL.Query().Get("state") != "open" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.FindPull(t.Context(), "o/m", "b"); err != nil || got.Number != 0 {
		t.Errorf("without one: %+v, %v", got, err)
	}
	if got, err = c.UpdatePull(t.Context(), "o/n", 3, github.PullChange{Body: "C"}); err != nil || got.Body != "C" ||
		(*bodies)[2] != `{"body":"C"}` {
		t.Errorf("%+v, %v, %q", got, err, *bodies)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]struct {
		kind errors.Kind
		text string
	}{
		`401 {"message":"Bad credentials"}`:         {errors.Denied, "revoked"},
		`403 {"message":"Resource not accessible"}`: {errors.Denied, "does not allow"},
		`403 {"message":"API rate limit exceeded"}`: {errors.Exhausted, "refuses requests"},
		`429 {}`:                      {errors.Exhausted, "429"},
		`404 {"message":"Not Found"}`: {errors.NotFound, "no such repository"},
		`422 {"message":"V","errors":[{"field":"base","code":"invalid"}]}`: {errors.Conflict, "V; base invalid"},
		`422 {"message":"Draft pull requests are not supported"}`:          {errors.Conflict, "Draft"},
		`500 oops`: {errors.Unavailable, "500"},
		`200 oops`: {errors.Unavailable, "not understood"},
		"400 {\"message\":\"" + strings.Repeat("x", 1000) + "\"}": {errors.Unavailable, "xxx"},
	} {
		api, _, _ := stub(t, map[string]string{"POST /repos/o/n/pulls": answer})
		_, err := (&github.Client{API: api, Token: "sekrit-token", HTTP: local()}).OpenPull(t.Context(), "o/n",
			github.PullRequest{Base: "main", Draft: true})
		if errors.KindOf(err) != want.kind || !strings.Contains(err.Error(), want.text) ||
			strings.Contains(err.Error(), "sekrit") || len(err.Error()) > 700 {
			t.Errorf("%s: %v", answer, err)
		}
	}
	for api, kind := range map[string]errors.Kind{"http://127.0.0.1:1": errors.Unavailable, ":": errors.Invalid,
		"https://@127.0.0.1:1/#/api/v3": errors.Invalid, "https://a:b@x/api/v3": errors.Invalid,
		"https://x/?/api/v3":         errors.Invalid,
		github.API("@127.0.0.1:1/#"): errors.Invalid, github.API("x?"): errors.Invalid, "ftp://x": errors.Invalid} {
		_, err := (&github.Client{API: api, HTTP: local()}).OpenPull(t.Context(), "o/n", github.PullRequest{})
		if errors.KindOf(err) != kind {
			t.Errorf("%s: %v", api, err)
		}
	}
	if all := github.Templates(); all[0] != ".github/pull_request_template.md" || len(all) != 18 {
		t.Error(all)
	}
}

func key(t *testing.T) (*rsa.PrivateKey, config.Secret, config.Secret) {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	eight, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	one := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})
	return private, config.Secret(one), config.Secret(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: eight}))
}

// TestInstallation checks that an App proves its identity with a JWT that its public key verifies, and gets a token for
// one repository.
// mission: E7
func TestInstallation(t *testing.T) {
	t.Parallel()
	private, one, eight := key(t)
	api, asked, bodies := stub(t, map[string]string{
		"GET /repos/o/n/installation":              `200 {"id":42}`,
		"POST /app/installations/42/access_tokens": `201 {"token":"ghs_x","expires_at":"2030-01-02T03:04:05Z"}`,
		"POST /app/installations/43/access_tokens": `201 {}`,
	})
	for _, i := range []github.Installation{{API: api, App: "123", Key: one, HTTP: local()},
		{API: api, App: "123", Key: eight, ID: "42", HTTP: local()}} {
		got, err := i.Token(t.Context(), "o/n")
		if err != nil || got.Value.Reveal() != "ghs_x" ||
			!got.Expires.Equal(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if (*bodies)[1] != `{"permissions":{"contents":"write","pull_requests":"write"},"repositories":["n"]}` ||
		len(*asked) != 3 {
		t.Error(*bodies)
	}
	parts := strings.Split(strings.TrimPrefix((*asked)[0].Header.Get("Authorization"), "Bearer "), ".")
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err := rsa.VerifyPKCS1v15(&private.PublicKey, crypto.SHA256, digest[:], signature); err != nil {
		t.Error(err)
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		IAT, EXP int64
		ISS      string
	}
	if err := json.Unmarshal(text, &claims); err != nil || claims.ISS != "123" || claims.EXP-claims.IAT != 600 {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := (github.Installation{API: api, App: "1", Key: one, ID: "../x", HTTP: local()}).Token(t.Context(),
		"o/n"); errors.KindOf(err) != errors.Invalid {
		t.Errorf("an id that is not a number: %v", err)
	}
	if err := (&github.Client{API: api, Token: "t",
		HTTP: local()}).Revoke(t.Context()); errors.KindOf(err) != errors.NotFound {
		t.Error(err)
	}
	if _, err := (github.Installation{API: api, App: "1", Key: one, HTTP: local()}).Token(t.Context(),
		"o/other"); errors.KindOf(err) != errors.NotFound || !strings.Contains(err.Error(), "not installed") {
		t.Error(err)
	}
	if _, err := (github.Installation{API: api, App: "1", Key: one, ID: "44", HTTP: local()}).Token(t.Context(),
		"o/n"); errors.KindOf(err) != errors.NotFound {
		t.Error(err)
	}
	if _, err := (github.Installation{API: api, App: "1", Key: one, ID: "43", HTTP: local()}).Token(t.Context(),
		"o/n"); errors.KindOf(err) != errors.Unavailable {
		t.Error(err)
	}
}

func TestBadKeys(t *testing.T) {
	t.Parallel()
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"", "sekrit",
		"-----BEGIN RSA PRIVATE KEY-----\nc2Vrcml0\n-----END RSA PRIVATE KEY-----\n",
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))} {
		_, err := (github.Installation{App: "1", Key: config.Secret(k)}).Token(t.Context(), "o/n")
		if errors.KindOf(err) != errors.Invalid || strings.Contains(err.Error(), "sekrit") ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%q: %v", k, err)
		}
	}
}
