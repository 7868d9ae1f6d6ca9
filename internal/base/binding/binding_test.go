package binding

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
)

func TestHosts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Host{
		"api.example.org":          {"api.example.org", 443, false},
		"API.Example.org.":         {"api.example.org", 443, false},
		"https://api.example.org":  {"api.example.org", 443, false},
		"api.example.org:8443":     {"api.example.org", 8443, false},
		"*.example.org":            {"*.example.org", 443, false},
		"http://api.example.org":   {"api.example.org", 80, true},
		"http://192.0.2.1:8080":    {"192.0.2.1", 8080, true},
		"2001:db8::1":              {"2001:db8::1", 443, false},
		"[2001:db8::1]:8443":       {"2001:db8::1", 8443, false},
		"http://[2001:db8::1]:443": {"2001:db8::1", 443, true},
	} {
		var got Host
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
		var again Host
		if err := again.UnmarshalText([]byte(got.String())); err != nil || again != got {
			t.Errorf("%s: written as %s, it is read as %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "*.", ":443", "a.example:0", "a.example:65536", "a.example:x", "a.example/path",
		"user@a.example", "ftp://a.example", "a b", "[::1", "[::1]x", "*", "a.*.example", strings.Repeat("a", 2000)} {
		if err := new(Host).UnmarshalText([]byte(text)); !errors.Is(err, errors.Invalid) || errors.RemedyOf(err) == "" {
			t.Errorf("%.80q: got %v, want Invalid", text, err)
		}
	}
}

func TestHostMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host, name string
		port       int
		plain      bool
		want       bool
	}{
		{"api.example.org", "api.example.org", 443, false, true},
		{"api.example.org", "api.example.org", 8443, false, false},
		{"api.example.org", "api.example.org", 443, true, false},
		{"api.example.org", "evil-api.example.org", 443, false, false},
		{"api.example.org", "api.example.org.evil.example", 443, false, false},
		{"*.example.org", "a.b.example.org", 443, false, true},
		{"*.example.org", "example.org", 443, false, false},
		{"*.example.org", "evilexample.org", 443, false, false},
		{"*.example.org", ".example.org", 443, false, false},
		{"http://a.example:8080", "a.example", 8080, true, true},
	} {
		var h Host
		if err := h.UnmarshalText([]byte(c.host)); err != nil {
			t.Fatal(err)
		}
		if got := h.Matches(c.name, c.port, c.plain); got != c.want {
			t.Errorf("%s matches %s:%d, plain %t: got %t", c.host, c.name, c.port, c.plain, got)
		}
	}
}

func TestInject(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Inject{
		"":                         {},
		"bearer":                   {Form: Bearer},
		"bearer API_TOKEN":         {Form: Bearer, Key: "API_TOKEN"},
		"basic x-access-token":     {Form: Basic, Name: "x-access-token"},
		"basic user PASS":          {Form: Basic, Name: "user", Key: "PASS"},
		"header X-Api-Key":         {Form: Header, Name: "X-Api-Key"},
		" query  key ":             {Form: Query, Name: "key"},
		"sigv4":                    {Form: SigV4},
		"sigv4 execute-api eu-w-1": {Form: SigV4, Name: "execute-api", Key: "eu-w-1"},
	} {
		var got Inject
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
		if want := strings.Join(strings.Fields(text), " "); got.String() != want {
			t.Errorf("%q: written as %q", text, got)
		}
	}
	for _, text := range []string{"cookie", "header", "query", "basic", "bearer A B", "header X: A", "header a b c",
		"header a\x00"} {
		if err := new(Inject).UnmarshalText([]byte(text)); !errors.Is(err, errors.Invalid) {
			t.Errorf("%q: got %v, want Invalid", text, err)
		}
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule, method, path string
		want               bool
	}{
		{"GET /repos/**", "GET", "/repos/o/r", true},
		{"GET /repos/**", "GET", "/repos", true},
		{"GET /repos/**", "GET", "/repos/", true},
		{"GET /repos/**", "POST", "/repos/o/r", false},
		{"GET /repos/**", "get", "/repos/o/r", false},
		{"GET /repos/**", "GET", "/user", false},
		{"GET /repos/**", "GET", "/reposx/o", false},
		{"GET /repos/**", "GET", "/repos/../user", false},
		{"GET /repos/**", "GET", "/repos/%2e%2e/user", false},
		{"GET /repos/**", "GET", "/repos/..%2fuser", false},
		{"GET /repos/**", "GET", "/repos/a//b", false},
		{"GET /repos/**", "GET", "/repos/..;/user", false},
		{"GET /repos/**", "GET", `/repos/..\user`, false},
		{"GET /repos/**", "GET", "/repos/%zz", false},
		{"GET /repos/**", "GET", "*", false},
		{"GET /repos/**", "GET", "/%72epos/o", true},
		{"GET,HEAD /a", "HEAD", "/a", true},
		{"GET /a", "GET", "/a/", false},
		{"* /**", "DELETE", "/anything/at/all", true},
		{"* /**", "GET", "/", true},
		{"* /", "GET", "/", true},
		{"* /", "GET", "/a", false},
		{"* /repos/*/issues/**", "GET", "/repos/r/issues/1", true},
		{"* /repos/*/issues/**", "GET", "/repos/r/x/issues/1", false},
		{"* /**/issues/**", "GET", "/repos/o/r/issues/1", true},
		{"* /**/a/**/b", "GET", "/a/x/a/b/c/b", true},
		{"* /**/a/**/b", "GET", "/b/a", false},
		{"* /v*-x*y", "GET", "/v1-xay", true},
		{"* /v*-x*y", "GET", "/v1-xa", false},
		{"* /*.json", "GET", "/.json", true},
		{"* /a*a", "GET", "/a", false},
	} {
		var r Rule
		if err := r.UnmarshalText([]byte(c.rule)); err != nil {
			t.Fatal(err)
		}
		if r.String() != c.rule {
			t.Errorf("%q is written as %q", c.rule, r)
		}
		if got := r.Matches(c.method, c.path); got != c.want {
			t.Errorf("%q, %s %s: got %t", c.rule, c.method, c.path, got)
		}
	}
	for _, text := range []string{"", "/a", "GET", "GET a", "get /a", "GET, /a", "GET /a b", "GET /a**", "GET /../a"} {
		if err := new(Rule).UnmarshalText([]byte(text)); !errors.Is(err, errors.Invalid) {
			t.Errorf("%q: got %v, want Invalid", text, err)
		}
	}
}

// TestRulesAreFast checks that a hostile path does not cost exponential time.
func TestRulesAreFast(t *testing.T) {
	t.Parallel()
	r := Rule{Path: strings.Repeat("/**/a", 100) + "/b"}
	if r.Matches("GET", strings.Repeat("/a", 2000)) {
		t.Error("matches a path without the last part")
	}
	r.Path = "/" + strings.Repeat("a*", 100) + "b"
	if r.Matches("GET", "/"+strings.Repeat("a", 10000)) {
		t.Error("matches a part without the last letter")
	}
}

func TestBindings(t *testing.T) {
	t.Parallel()
	for _, name := range Presets() {
		b, err := Preset(name)
		if err == nil {
			err = b.Check()
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		var again Binding
		if err := json.Unmarshal(text, &again); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(b, again); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
	if _, err := Preset("nothing"); !errors.Is(err, errors.Invalid) || !strings.Contains(errors.RemedyOf(err),
		"github") {
		t.Errorf("an unknown preset: %v", err)
	}
	for name, b := range map[string]Binding{
		"no place":       {},
		"an empty place": {Places: []Place{{}}},
		"elsewhere":      {Places: []Place{{Host: Host{Name: "a.example"}}}, Elsewhere: "maybe"},
		"many places":    {Places: make([]Place, 65)},
	} {
		if err := b.Check(); !errors.Is(err, errors.Invalid) {
			t.Errorf("%s: got %v, want Invalid", name, err)
		}
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	b, err := Preset("github")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"github.com": "basic x-access-token", "api.github.com": "bearer",
		"raw.githubusercontent.com": "bearer", "objects.githubusercontent.com": ""} {
		if p, ok := b.Place(name, 443, false); !ok || p.Inject.String() != want {
			t.Errorf("%s: got %q, %t, want %q", name, p.Inject, ok, want)
		}
	}
	if _, ok := b.Place("github.com", 80, true); ok {
		t.Error("values go to a server without TLS")
	}
	if b.Allow = append(b.Allow, Rule{Methods: []string{"GET"}, Path: "/**"}); b.Allows("POST", "/a") ||
		!b.Allows("GET", "/a") {
		t.Error("the rules do not limit the requests")
	}
}

// FuzzRule checks that a path that a server may read differently never matches.
func FuzzRule(f *testing.F) {
	f.Add("GET /repos/**", "/repos/../user")
	f.Fuzz(func(t *testing.T, rule, path string) {
		var r Rule
		if r.UnmarshalText([]byte(rule)) != nil || !r.Matches("GET", path) {
			return
		}
		if strings.Contains(path, "/../") || strings.Contains(path, "\\") || strings.Contains(path, "//") {
			t.Errorf("%q matches %q", rule, path)
		}
	})
}
