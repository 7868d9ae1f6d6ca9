package server_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// as returns a world in which requests come to the listener that needs a key, with a key of that kind.
func (w *world) as(req account.Request) *world {
	w.t.Helper()
	req.Name = fmt.Sprintf("k%d", time.Now().UnixNano())
	_, secret, err := w.ring.Create(w.t.Context(), account.Local(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	other := &world{t: w.t, url: w.strict, headers: []string{"Authorization", "Bearer " + secret.Reveal()}}
	return other
}

// stranger is a client without a key.
func (w *world) stranger() *world { return &world{t: w.t, url: w.strict} }

func (w *world) status(method, path, body string, header ...string) int {
	w.t.Helper()
	resp, text := w.do(method, path, body, header...)
	if resp.StatusCode >= 400 {
		if p := parse[api.Problem](w.t, text); p.Status != resp.StatusCode || p.Remedy == "" && resp.StatusCode != 500 {
			w.t.Errorf("%s %s: the problem is %s", method, path, text)
		}
	}
	return resp.StatusCode
}

func readCloser(text string) io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }

func (w *world) want(status int, method, path, body string, header ...string) {
	w.t.Helper()
	if got := w.status(method, path, body, header...); got != status {
		w.t.Errorf("%s %s: %d, want %d", method, path, got, status)
	}
}

// mission: 6.10, A7
func TestWithoutAKeyNothing(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	s := w.stranger()
	for _, r := range [][2]string{{"GET", "/v1/sandboxes"}, {"POST", "/v1/sandboxes"}, {"GET", "/v1/sandboxes/box"},
		{"DELETE", "/v1/sandboxes/box"},
		{"POST", "/v1/run"}, {"GET", "/v1/keys"}, {"POST", "/v1/keys"}, {"POST", "/v1/shutdown"},
		{"GET", "/v1/account"}} {
		s.want(401, r[0], r[1], "")
		s.want(401, r[0], r[1], "", "Authorization", "Bearer hv_"+strings.Repeat("a", 52))
		s.want(401, r[0], r[1], "", "Authorization", "Basic eDp5")
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/docs": 200, "/v1/openapi.json": 200,
		"/": 200, "/v1/nothing": 404} {
		s.want(want, "GET", path, "")
	}
	if _, body := s.do("GET", "/readyz", ""); strings.Contains(body, "pid") {
		t.Errorf("a stranger learns %s", body)
	}
	if resp, _ := s.do("GET", "/v1/account", ""); !strings.HasPrefix(resp.Header.Get("WWW-Authenticate"), "Bearer") {
		t.Error("401 without WWW-Authenticate")
	}
}

// mission: 6.3, 6.10, A7
func TestRolesAndScopes(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	read := w.as(account.Request{Scopes: []account.Scope{account.Read}})
	read.want(200, "GET", "/v1/sandboxes/box", "")
	read.want(403, "POST", "/v1/sandboxes", "{}")
	read.want(403, "DELETE", "/v1/sandboxes/box", "")
	read.want(403, "POST", "/v1/sandboxes/box/exec", `{"args":["true"]}`)
	read.want(403, "GET", "/v1/keys", "")
	exec := w.as(account.Request{Scopes: []account.Scope{account.Exec}})
	exec.want(200, "POST", "/v1/sandboxes/box/exec", `{"args":["true"]}`)
	exec.want(403, "GET", "/v1/sandboxes/box", "")
	member := w.as(account.Request{})
	member.want(403, "POST", "/v1/keys", `{"name":"x"}`)
	member.want(403, "POST", "/v1/shutdown", "")
	member.want(204, "DELETE", "/v1/sandboxes/box", "")
	member.want(410, "POST", "/v1/sandboxes/"+w.last+"/exec", `{"args":["true"]}`)
	admin := w.as(account.Request{Role: account.Admin, Account: "acme"})
	admin.want(201, "POST", "/v1/keys", `{"name":"x","scopes":["read"],"expires_in_seconds":60}`)
	admin.want(409, "POST", "/v1/keys", `{"name":"x"}`)
	admin.want(403, "POST", "/v1/keys", `{"name":"y","account":"personal"}`)
	admin.want(403, "POST", "/v1/shutdown", "")
	admin.want(403, "GET", "/v1/keys?all=true", "")
	for _, bad := range []string{`{}`, `{"name":"a b"}`, `{"name":"y","role":"root"}`, `{"name":"y","scopes":["all"]}`,
		`{"name":"y","expires_in_seconds":-1}`,
		`{"name":"y","expires_in_seconds":1e300}`, `{"name":"y","key":"hv_mine"}`} {
		admin.want(400, "POST", "/v1/keys", bad)
	}
	_, body := admin.do("GET", "/v1/account", "")
	if self := parse[api.Self](t, body); self.Account != "acme" || self.Role != "admin" ||
		!strings.HasPrefix(self.KeyID, "key_") {
		t.Errorf("self: %s", body)
	}
	_, body = admin.do("GET", "/v1/keys", "")
	keys := parse[api.List[api.Key]](t, body)
	if len(keys.Data) != 2 || strings.Contains(body, "hv_") || strings.Contains(body, "hash") {
		t.Errorf("keys: %s", body)
	}
	admin.want(204, "DELETE", "/v1/keys/x", "")
	admin.want(404, "DELETE", "/v1/keys/x", "")
	admin.want(204, "DELETE", "/v1/keys/"+keys.Data[1].ID, "") // its own
	admin.want(401, "GET", "/v1/account", "")
}

// TestOtherAccountsSeeNothing checks that each object with an id or a name answers another account with 404.
// mission: A7, 6.3
func TestOtherAccountsSeeNothing(t *testing.T) {
	t.Parallel()
	w := start(t)
	mine := w.create()
	w.want(201, "POST", "/v1/volumes", `{"name":"vol"}`)
	_, body := w.do("POST", "/v1/sandboxes/box/exec", `{"args":["sleep","100"],"detach":true}`)
	process := parse[api.Started](t, body).ProcessID
	_, body = w.do("POST", "/v1/keys", `{"name":"mine"}`)
	key := parse[api.NewKey](t, body)
	other := w.as(account.Request{Account: "acme", Role: account.Admin})
	for _, ref := range []string{mine.ID, "box", mine.ID[:12]} {
		for _, r := range [][3]string{
			{"GET", "", ""}, {"DELETE", "", ""}, {"POST", "/extend", `{"timeout_seconds":60}`},
			{"POST", "/exec", `{"args":["true"]}`}, {"GET", "/processes", ""},
			{"GET", "/archive?path=/", ""}, {"PUT", "/archive?path=/", "x"},
		} {
			other.want(404, r[0], "/v1/sandboxes/"+ref+r[1], r[2])
		}
	}
	conn, _, err := websocket.Dial(t.Context(), other.url+"/v1/sandboxes/box/exec",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {other.headers[1]}}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"process_id":"`+process+`"}`)); err != nil {
		t.Fatal(err)
	}
	if _, msg, err := conn.Read(t.Context()); err != nil || !strings.Contains(string(msg), "not_found") {
		t.Errorf("attached to another account's command: %s, %v", msg, err)
	}
	for _, r := range [][2]string{{"DELETE", ""}, {"GET", "/archive?path=/"}, {"PUT", "/archive?path=/"},
		{"GET", "/files/list?path=/"}, {"DELETE", "/files?path=/x"}} {
		other.want(404, r[0], "/v1/volumes/vol"+r[1], "")
	}
	other.want(404, "DELETE", "/v1/keys/"+key.ID, "")
	other.want(404, "DELETE", "/v1/keys/mine", "")
	other.want(403, "DELETE", "/v1/images/base", "")
	for _, path := range []string{"/v1/sandboxes?all=true", "/v1/volumes"} {
		if _, body := other.do("GET", path, ""); len(parse[api.List[json.RawMessage]](t, body).Data) != 0 {
			t.Errorf("%s: %s", path, body)
		}
	}
	// Each account has its own names.
	other.want(201, "POST", "/v1/volumes", `{"name":"vol"}`)
	other.want(201, "POST", "/v1/sandboxes", `{"name":"box"}`)
	if _, body := other.do("GET", "/v1/sandboxes/box", ""); parse[api.Sandbox](t, body).ID == mine.ID {
		t.Error("a name leads to another account")
	}
	other.want(204, "DELETE", "/v1/volumes/vol", "")
	// Only the operator sees, and ends, the sandboxes of all accounts.
	other.want(403, "GET", "/v1/sandboxes?everyone=true", "")
	other.want(403, "DELETE", "/v1/sandboxes/"+mine.ID+"?everyone=true", "")
	_, body = w.do("GET", "/v1/sandboxes?everyone=true", "")
	all := parse[api.List[api.Sandbox]](t, body)
	if len(all.Data) != 2 || all.Data[0].ID == mine.ID {
		t.Fatalf("everybody's: %s", body)
	}
	w.want(404, "DELETE", "/v1/sandboxes/"+all.Data[0].ID, "")
	w.want(204, "DELETE", "/v1/sandboxes/"+all.Data[0].ID+"?everyone=true", "")
	w.want(404, "DELETE", "/v1/sandboxes/sbx_none?everyone=true", "")
	w.want(200, "GET", "/v1/volumes/vol/files/list?path=/", "")
	w.want(200, "GET", "/v1/sandboxes/box", "")
}

// TestUsageOfAccounts checks that an account's usage is visible to that account only, and remains when its sandboxes
// are gone.
// mission: A12, A7
func TestUsageOfAccounts(t *testing.T) {
	t.Parallel()
	sessions := testdb.Open(t).Sessions()
	blocks, events := withBlocks(t)
	w := start(t, blocks, func(o *server.Options) {
		manager, err := session.Open(t.Context(), session.Options{Fleet: o.Fleet, Journal: events, Store: sessions,
			Agents: map[string]agent.Agent{"scripted": scripted.Agent{}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(manager.Close)
		o.Sessions = manager
	})
	for i, of := range []string{"acme", "other", "acme"} {
		past := storetest.FullSession(fmt.Sprintf("ses_%d", i))
		past.Account, past.Turns = of, i+1
		if err := sessions.PutSession(t.Context(), past); err != nil {
			t.Fatal(err)
		}
	}
	acme, other := w.as(account.Request{Account: "acme"}), w.as(account.Request{Account: "other"})
	usage := func(of *world) api.AccountUsage {
		t.Helper()
		_, body := of.do("GET", "/v1/account", "")
		return parse[api.Self](t, body).Usage
	}
	if got := usage(other); got != (api.AccountUsage{Sessions: 1, Turns: 2,
		Agents: api.Usage{InputTokens: 1, Cost: 0.5}}) {
		t.Errorf("without sandboxes: %+v", got)
	}
	acme.want(201, "POST", "/v1/sandboxes", `{"name":"a"}`)
	acme.want(201, "POST", "/v1/sandboxes", `{"name":"b"}`)
	other.want(201, "POST", "/v1/sandboxes", `{"name":"a"}`)
	acme.want(204, "DELETE", "/v1/sandboxes/a", "")
	before := usage(acme)
	if before.Sandboxes != 2 || before.SandboxSeconds <= 0 || before.SandboxCost <= 0 || before.Sessions != 2 ||
		before.Turns != 4 || before.Agents.Cost != 1 {
		t.Errorf("one ended, one not: %+v", before)
	}
	acme.want(204, "DELETE", "/v1/sandboxes/b", "")
	ended := usage(acme)
	if ended.Sandboxes != 2 || ended.SandboxSeconds < before.SandboxSeconds || ended != usage(acme) {
		t.Errorf("both ended: %+v, and before %+v", ended, before)
	}
	if got := usage(other); got.Sandboxes != 1 || got.Sessions != 1 || got.Turns != 2 {
		t.Errorf("the other: %+v", got)
	}
	if got := usage(w); got != (api.AccountUsage{}) {
		t.Errorf("the operator's own: %+v", got)
	}
}

// mission: 6.10
func TestSignIn(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) { o.URL = "http://harvest.example" })
	_, body := w.do("POST", "/v1/sign-in-links", "")
	link := parse[api.Link](t, body)
	token, ok := strings.CutPrefix(link.URL, "http://harvest.example/sign-in?token=")
	if !ok {
		t.Fatalf("the link is %s", link.URL)
	}
	s := w.stranger()
	// Previews of links, and other requests that only read, do not use up the link. Nor does another page.
	for range 2 {
		s.want(200, "HEAD", "/sign-in?token="+token, "")
		shown, page := s.do("GET", "/sign-in?token="+token, "")
		if shown.StatusCode != 200 || len(shown.Cookies()) > 0 || !strings.Contains(page, "<form method=\"post\">") ||
			strings.Contains(page, token) ||
			!strings.Contains(shown.Header.Get("Content-Security-Policy"), "form-action 'self'") ||
			shown.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("the link shows %s %v: %s", shown.Status, shown.Header, page)
		}
		s.want(403, "POST", "/sign-in?token="+token, "", "Sec-Fetch-Site", "cross-site", "Origin",
			"https://evil.example")
	}
	s.want(401, "GET", "/sign-in?token=x", "")
	resp, _ := s.do("POST", "/sign-in?token="+token, "", "Sec-Fetch-Site", "same-origin", "Origin", s.url)
	cookies := resp.Cookies()
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "./" || len(cookies) != 1 {
		t.Fatalf("sign in: %s %v", resp.Status, cookies)
	}
	c := cookies[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Name != "harvest" || c.Path != "/" || c.Domain != "" ||
		time.Until(c.Expires) > 8*24*time.Hour {
		t.Errorf("the cookie is %+v", c)
	}
	s.want(401, "POST", "/sign-in?token="+token, "")
	s.want(401, "POST", "/sign-in", "")
	cookie, origin := c.Name+"="+c.Value, s.url
	for name, r := range map[string]struct {
		want   int
		method string
		header []string
	}{
		"a page":               {200, "GET", nil},
		"our page reads":       {200, "GET", []string{"Sec-Fetch-Site", "same-origin"}},
		"our page writes":      {201, "POST", []string{"Sec-Fetch-Site", "same-origin"}},
		"by origin":            {201, "POST", []string{"Origin", origin}},
		"both":                 {201, "POST", []string{"Origin", origin, "Sec-Fetch-Site", "same-origin"}},
		"another page":         {403, "POST", []string{"Sec-Fetch-Site", "cross-site"}},
		"another port":         {403, "POST", []string{"Sec-Fetch-Site", "same-site"}},
		"another port reads":   {403, "GET", []string{"Sec-Fetch-Site", "same-site"}},
		"typed":                {403, "POST", []string{"Sec-Fetch-Site", "none"}},
		"another origin":       {403, "POST", []string{"Origin", "http://127.0.0.1:1"}},
		"another origin reads": {403, "GET", []string{"Origin", "http://evil.example"}},
		"no origin":            {403, "POST", []string{"Origin", "null"}},
		"contradiction": {403, "POST", []string{"Origin", "http://evil.example", "Sec-Fetch-Site",
			"same-origin"}},
		"neither":                  {403, "POST", nil},
		"a form":                   {403, "POST", []string{"Content-Type", "application/x-www-form-urlencoded"}},
		"https where there is not": {403, "POST", []string{"Origin", strings.Replace(origin, "http:", "https:", 1)}},
	} {
		body := map[string]string{"POST": `{"name":"v"}`}[r.method]
		if got := s.status(r.method, "/v1/volumes", body,
			append([]string{"Cookie", cookie}, r.header...)...); got != r.want {
			t.Errorf("%s: %d, want %d", name, got, r.want)
		}
	}
	// A WebSocket is a GET, but it does not only read.
	for origin, want := range map[string]int{s.url: 101, "http://evil.example": 403, "": 403} {
		header := http.Header{"Cookie": {cookie}}
		if origin != "" {
			header.Set("Origin", origin)
		}
		conn, resp, err := websocket.Dial(t.Context(), s.url+"/v1/run", &websocket.DialOptions{HTTPHeader: header})
		if resp == nil || resp.StatusCode != want {
			t.Errorf("a WebSocket of %q: %v, %v", origin, resp, err)
		}
		if conn != nil {
			conn.CloseNow()
		}
	}
	s.want(401, "GET", "/v1/volumes", "", "Authorization", "Bearer "+c.Value)
	resp, _ = s.do("POST", "/v1/sign-out", "", "Cookie", cookie, "Origin", origin)
	if resp.StatusCode != http.StatusNoContent || len(resp.Cookies()) != 1 || resp.Cookies()[0].Value != "" {
		t.Errorf("sign out: %s", resp.Status)
	}
	s.want(401, "GET", "/v1/volumes", "", "Cookie", cookie)
	w.want(400, "POST", "/v1/sign-out", "")
}

// TestHosts checks that a foreign name that points at this machine is refused (DNS rebinding).
func TestHosts(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) {
		o.Names = []string{"harvest.example.org"}
		o.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	member := w.as(account.Request{})
	for host, want := range map[string]int{
		"127.0.0.1:80": 200, "localhost": 200, "LOCALHOST:7777": 200, "[::1]:7777": 200, "10.1.2.3": 200,
		"harvest.example.org": 200, "Harvest.Example.org.:443": 200,
		"evil.example": 421, "harvest.example.org.evil.example": 421, "127.0.0.1.evil.example": 421, "": 421,
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", member.url+"/v1/account", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header.Set("Authorization", member.headers[1])
		if host == "" {
			req.Host = "x"
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%q: %d, want %d", host, resp.StatusCode, want)
		}
	}
	member.want(421, "GET", "/v1/account", "", "X-Forwarded-Host", "evil.example")
	member.want(200, "GET", "/v1/account", "", "X-Forwarded-Host", "harvest.example.org")
	// Behind a proxy that speaks TLS, the cookie is for TLS.
	link, err := w.ring.Link(account.Local())
	if err != nil {
		t.Fatal(err)
	}
	resp, _ := member.do("POST", "/sign-in?token="+link.Reveal(), "", "X-Forwarded-Proto", "https", "X-Forwarded-Host",
		"harvest.example.org")
	if c := resp.Cookies(); len(c) != 1 || !c[0].Secure || c[0].Name != "__Host-harvest" {
		t.Errorf("cookies: %v", c)
	}
}

// addresses returns the client addresses in the audit log, by request id.
func (w *world) addresses() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for text := range strings.Lines(w.audit.String()) {
		var line struct {
			Address   string
			RequestID string `json:"request_id"`
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			w.t.Fatal(err)
		}
		all[line.RequestID] = line.Address
	}
	return all
}

// TestChainOfProxies checks that behind several proxies, the client's address is the last one in the header that is not
// a trusted proxy's. The client may have written the entries before it.
// mission: F6
func TestChainOfProxies(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) {
		o.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"),
			netip.MustParsePrefix("2001:db8:1::/48")}
	})
	member := w.as(account.Request{})
	cases := [][2]string{ // the value of X-Forwarded-For, and the resulting address
		{"", "127.0.0.1"},
		{"203.0.113.7", "203.0.113.7"},
		{"203.0.113.7, 10.0.0.2, 10.0.0.1", "203.0.113.7"},
		{"203.0.113.7,2001:db8:1::2 ,10.0.0.1", "203.0.113.7"},
		{"2001:db8:2::7, 10.0.0.1", "2001:db8:2::7"},
		{"::ffff:203.0.113.7", "203.0.113.7"},
		{"10.0.0.9, 192.0.2.1, 203.0.113.7, 10.0.0.1", "203.0.113.7"}, // the client claims to be behind other proxies
		{"127.0.0.1, 203.0.113.7, 10.0.0.1", "203.0.113.7"},
		{"10.0.0.9, 10.0.0.1", "10.0.0.9"}, // a trusted proxy itself
		{"203.0.113.7, unknown, 10.0.0.1", "10.0.0.1"},
		{"nonsense", "127.0.0.1"},
	}
	for i, c := range cases {
		header := []string{"X-Request-ID", fmt.Sprint("chain-", i)}
		if c[0] != "" {
			header = append(header, "X-Forwarded-For", c[0])
		}
		member.want(201, "POST", "/v1/volumes", `{"name":"v"}`, header...)
	}
	found := w.addresses()
	for i, c := range cases {
		if got := found[fmt.Sprint("chain-", i)]; got != c[1] {
			t.Errorf("%q is %s, want %s", c[0], got, c[1])
		}
	}
}

// TestChainOfProxiesWithTLS checks that behind several proxies, the protocol that the outermost trusted proxy received
// counts, and entries before it do not.
// mission: F6
func TestChainOfProxiesWithTLS(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) {
		o.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}
	})
	member := w.as(account.Request{})
	for _, c := range []struct {
		from, proto string
		tls         bool
	}{
		{"203.0.113.7", "https", true},
		{"203.0.113.7", "HTTPS", true},
		{"203.0.113.7", "http", false},
		{"203.0.113.7, 10.0.0.1", "https, http", true},
		{"203.0.113.7, 10.0.0.1", "http,https", false},
		{"203.0.113.7, 10.0.0.2, 10.0.0.1", "https,http,http", true},
		{"203.0.113.7, 10.0.0.1", "https", true},              // the inner one has passed it on
		{"203.0.113.7, 10.0.0.1", "https, http, http", false}, // the client has begun it
		{"203.0.113.7", "https, http", false},
		{"192.0.2.1, 203.0.113.7", "https, http", false}, // and the addresses, too
		{"", "https", true},
		{"", "https, http", false},
		{"", "http, https", true},
		{"203.0.113.7", "ftp", false},
		{"203.0.113.7", ",", false},
	} {
		link, err := w.ring.Link(account.Local())
		if err != nil {
			t.Fatal(err)
		}
		header := []string{"X-Forwarded-Proto", c.proto}
		if c.from != "" {
			header = append(header, "X-Forwarded-For", c.from)
		}
		resp, _ := member.do("POST", "/sign-in?token="+link.Reveal(), "", header...)
		if cookies := resp.Cookies(); len(cookies) != 1 || cookies[0].Secure != c.tls {
			t.Errorf("%q from %q: %v, want TLS %t", c.proto, c.from, cookies, c.tls)
		}
	}
}

// TestStrangersAreNoProxies checks that a client that is not a trusted proxy cannot set its address, the server's name
// or the protocol.
// mission: F6
func TestStrangersAreNoProxies(t *testing.T) {
	t.Parallel()
	for name, proxies := range map[string][]netip.Prefix{"none": nil, "another": {netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("127.0.0.2/32")}} {
		w := start(t, func(o *server.Options) { o.Names, o.Proxies = []string{"harvest.example.org"}, proxies })
		member := w.as(account.Request{})
		member.want(201, "POST", "/v1/volumes", `{"name":"v"}`, "X-Request-ID", "mine", "X-Forwarded-For",
			"203.0.113.7, 10.0.0.1", "X-Forwarded-Host", "evil.example")
		if got := w.addresses()["mine"]; got != "127.0.0.1" {
			t.Errorf("%s: it came from %s", name, got)
		}
		req, err := http.NewRequestWithContext(t.Context(), "GET", member.url+"/v1/account", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "evil.example"
		req.Header.Set("Authorization", member.headers[1])
		req.Header.Set("X-Forwarded-Host", "harvest.example.org")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s: it called us by another name: %s", name, resp.Status)
		}
		link, err := w.ring.Link(account.Local())
		if err != nil {
			t.Fatal(err)
		}
		resp, _ = member.do("POST", "/sign-in?token="+link.Reveal(), "", "X-Forwarded-Proto", "https")
		if c := resp.Cookies(); len(c) != 1 || c[0].Secure || c[0].Name != "harvest" {
			t.Errorf("%s: cookies: %v", name, c)
		}
	}
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) { o.Rate = 2 })
	one, two := w.as(account.Request{}), w.as(account.Request{})
	limited := 0
	for range 20 {
		resp, body := one.do("GET", "/v1/account", "")
		if resp.StatusCode == http.StatusTooManyRequests {
			limited++
			if resp.Header.Get("Retry-After") == "" || !parse[api.Problem](t, body).Retryable {
				t.Errorf("limited: %v %s", resp.Header, body)
			}
		}
	}
	if limited == 0 {
		t.Error("20 requests at once, of 2 a second")
	}
	two.want(200, "GET", "/v1/account", "")
	for range 20 { // the owner of the machine is not limited
		w.want(200, "GET", "/v1/account", "")
	}
}

// mission: F6, 10.3
func TestAuditSaysWhoDidWhat(t *testing.T) {
	t.Parallel()
	w := start(t)
	member := w.as(account.Request{Account: "acme"})
	member.want(201, "POST", "/v1/volumes", `{"name":"CANARY-body"}`)
	member.want(200, "GET", "/v1/volumes?x=CANARY-query", "")
	member.want(403, "POST", "/v1/keys", `{"name":"x"}`)
	w.want(204, "DELETE", "/v1/sandboxes/"+w.create().ID, "", "X-Request-ID", "mine")
	type line struct {
		Account, Method, Path, Address string
		KeyID                          string `json:"key_id"`
		RequestID                      string `json:"request_id"`
		Status                         int
	}
	var lines []line
	for text := range strings.Lines(w.audit.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	// A line is written after its answer, so lines of different connections may be out of order.
	slices.SortStableFunc(lines, func(a, b line) int {
		order := []string{"/v1/volumes", "/v1/keys", "/v1/sandboxes"}
		return cmp.Compare(slices.Index(order, a.Path), slices.Index(order, b.Path))
	})
	if len(lines) == 4 && lines[0].Method == "DELETE" { // its path, with the id, is in no list
		lines = append(lines[1:], lines[0])
	}
	if len(lines) != 4 || lines[0].Account != "acme" || lines[0].Status != 201 ||
		!strings.HasPrefix(lines[0].KeyID, "key_") || lines[0].Address != "127.0.0.1" ||
		lines[1].Status != 403 || lines[3].Account != "personal" || lines[3].KeyID != "" ||
		lines[3].RequestID != "mine" || lines[3].Method != "DELETE" {
		t.Errorf("audit:\n%s", w.audit.String())
	}
	if strings.Contains(w.audit.String(), "CANARY") || strings.Contains(w.audit.String(), "hv_") {
		t.Errorf("more than who did what:\n%s", w.audit.String())
	}
}

// TestSlowClients checks that connections that send nothing, or too slowly, are closed and do not keep other clients
// out.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	w := start(t)
	addr := strings.TrimPrefix(w.strict, "http://")
	var conns []net.Conn
	for i := range 1000 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x"); err != nil {
				t.Fatal(err)
			}
		}
		conns = append(conns, conn)
	}
	w.stranger().want(200, "GET", "/healthz", "")
	if err := conns[0].SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conns[0]); err != nil { // the server hangs up
		t.Errorf("a header that never ends: %v", err)
	}
	long := strings.Repeat("a", 80<<10)
	req, err := http.NewRequestWithContext(t.Context(), "GET", w.strict+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", long)
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a header of 80 KB: %s", resp.Status)
		}
	}
}
