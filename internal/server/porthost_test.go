package server_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server"
)

func withPorts(e *fake.Engine) engine.Engine { return fake.WithPorts{Engine: e} }

// serveInside starts a server in a sandbox that returns the request that it got, and tries to read cookies. It returns
// its port.
func serveInside(t *testing.T) string {
	t.Helper()
	port, _ := servePort(t, nil, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Add("Set-Cookie", "theirs=1; Domain=example.org; Path=/")
		w.Header().Add("Set-Cookie", "harvest-port=evil")
		w.Header().Set("Clear-Site-Data", "*")
		if r.URL.Path == "/away" {
			w.Header().Set("Location", "http://"+r.Host+"/there?x=1")
			w.WriteHeader(http.StatusFound)
			return
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "uri": r.RequestURI, "host": r.Host,
			"header": r.Header, "body": string(body)}); err != nil {
			t.Error(err)
		}
	}) // its WebSocket wants the origin to be the host
	return port
}

// servePort starts a server that stands for one in a sandbox: with the fake engine it runs on this machine. root
// answers all paths except /ws, which echoes a message of a WebSocket, and /events, which begins a stream.
func servePort(t *testing.T, accept *websocket.AcceptOptions, root http.HandlerFunc) (port string, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", root)
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, accept)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		kind, msg, err := conn.Read(r.Context())
		if err == nil {
			_ = conn.Write(r.Context(), kind, append([]byte("echo "), msg...))
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: first\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	inside := &http.Server{Handler: mux}
	go inside.Serve(l)
	end = func() { _ = inside.Close() }
	t.Cleanup(end)
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, end
}

// browser keeps cookies for one host name at a time, whose address is always the server's.
type browser struct {
	t      *testing.T
	w      *world
	host   string // with a port
	cookie string
}

// get requests a path of the browser's host and stores the cookie of the answer.
func (b *browser) get(method, path, body string, header ...string) (*http.Response, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.w.strict+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Host = b.host
	if b.cookie != "" {
		req.Header.Set("Cookie", b.cookie)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp, string(text)
}

func (b *browser) want(status int, method, path string, header ...string) string {
	b.t.Helper()
	resp, body := b.get(method, path, "", header...)
	if resp.StatusCode != status {
		b.t.Errorf("%s %s of %s: %d, want %d: %s", method, path, b.host, resp.StatusCode, status, body)
	}
	return body
}

// open opens a link as a browser does.
func (b *browser) open(link, from string) {
	b.t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		b.t.Fatal(err)
	}
	b.host = u.Host
	resp, body := b.get("GET", "//evil.example/a%2Fb?x=1&"+u.RawQuery, "", "Sec-Fetch-Site", "cross-site",
		"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	cookies := resp.Cookies()
	if resp.StatusCode != http.StatusSeeOther ||
		resp.Header.Get("Location") != "http://"+u.Host+"//evil.example/a%2Fb?x=1" || len(cookies) != 1 {
		b.t.Fatalf("%s: the link leads to %s %v %s", from, resp.Status, resp.Header, body)
	}
	c := cookies[0]
	if !c.HttpOnly || c.Domain != "" || c.Path != "/" || c.SameSite != http.SameSiteLaxMode || c.Expires.IsZero() ||
		resp.Header.Get("Referrer-Policy") != "no-referrer" {
		b.t.Errorf("the cookie is %+v", c)
	}
	b.cookie = c.Name + "=" + c.Value
}

// portWorld is a server with host names for ports below ports.example, and a sandbox.
func portWorld(t *testing.T) (w, user *world, box api.Sandbox) {
	t.Helper()
	w = startOn(t, withPorts, func(o *server.Options) { o.PortDomain = "ports.example" })
	box = w.create()
	return w, w.as(account.Request{}), box
}

func (w *world) link(path, body string) api.NewPortLink {
	w.t.Helper()
	resp, text := w.do("POST", path, body)
	if resp.StatusCode != http.StatusCreated || resp.Header.Get("Cache-Control") != "no-store" {
		w.t.Fatalf("a link: %s %s", resp.Status, text)
	}
	return parse[api.NewPortLink](w.t, text)
}

// mission: A6, F1
func TestPortsHaveHostNames(t *testing.T) {
	t.Parallel()
	w, user, box := portWorld(t)
	port := serveInside(t)
	links := "/v1/sandboxes/box/links"
	made := user.link(links, `{"port":`+port+`,"expires_in_seconds":60}`)
	u, err := url.Parse(made.URL)
	if err != nil {
		t.Fatal(err)
	}
	host := port + "-sbx-" + strings.TrimPrefix(box.ID, "sbx_") + ".ports.example"
	if u.Hostname() != host || u.Port() == "" || made.SandboxID != box.ID ||
		made.Expires.Sub(made.Created).Seconds() != 60 {
		t.Errorf("the link is %+v", made)
	}
	b := &browser{t: t, w: w, host: u.Host}
	b.want(401, "GET", "/")
	b.want(401, "GET", "/?harvest-link=hvp_"+strings.Repeat("a", 52))
	b.want(401, "POST", "/?"+u.RawQuery) // a link is opened, not posted to
	b.open(made.URL, "elsewhere")

	// The request as the server inside sees it, and the answer.
	resp, body := b.get("POST", "/a%2Fb/c?x=1&y", "the body", "Cookie", b.cookie+"; theirs=2", "Origin",
		"http://"+u.Host, "Authorization", "Basic eDp5", "Idempotency-Key", "k")
	var got struct {
		Method, URI, Host, Body string
		Header                  http.Header
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if got.Method != "POST" || got.URI != "/a%2Fb/c?x=1&y" || got.Body != "the body" || got.Host != "localhost:"+port ||
		got.Header.Get("Origin") != "http://localhost:"+port ||
		got.Header.Get("Authorization") != "Basic eDp5" || got.Header.Get("Idempotency-Key") != "k" ||
		got.Header.Get("X-Forwarded-Host") != u.Host || got.Header.Get("X-Forwarded-Prefix") != "" {
		t.Errorf("passed on: %s", body)
	}
	if strings.Contains(body, "hvp_") || got.Header.Get("Cookie") != "theirs=2" {
		t.Errorf("the sandbox sees the link: %s", body)
	}
	if c := resp.Header.Values("Set-Cookie"); len(c) != 1 || c[0] != "theirs=1; Path=/" ||
		resp.Header.Get("Clear-Site-Data") != "" || resp.Header.Get("Content-Security-Policy") != "" {
		t.Errorf("the answer has %v", resp.Header)
	}
	if resp, _ := b.get("GET", "/away", ""); resp.Header.Get("Location") != "http://"+u.Host+"/there?x=1" {
		t.Errorf("a redirect leads to %s", resp.Header.Get("Location"))
	}
	b.streams()

	// Pages of other origins cannot use the cookie, and a followed link can.
	for name, c := range map[string]struct {
		want   int
		method string
		header []string
	}{
		"its own page":      {200, "POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://" + u.Host}},
		"another sandbox":   {403, "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}},
		"another sandbox's": {403, "POST", []string{"Origin", "http://1-" + host[len(port)+1:]}},
		"a form elsewhere": {403, "POST", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate",
			"Sec-Fetch-Dest", "document"}},
		"a frame elsewhere": {403, "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate",
			"Sec-Fetch-Dest", "iframe"}},
		"a link to it": {200, "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate",
			"Sec-Fetch-Dest", "document"}},
		"no browser":         {200, "GET", nil},
		"the server's route": {200, "GET", []string{"X-Path", "/v1/account"}},
	} {
		if got := b.want(c.want, c.method, "/v1/account", c.header...); c.want == 200 &&
			strings.Contains(got, "personal") {
			t.Errorf("%s: the API answers at a port's name: %s", name, got)
		}
	}
	// The link is for that port of that sandbox.
	for _, other := range []string{"1" + host[len(port):], "81-sbx-" + strings.Repeat("0", 26) + ".ports.example"} {
		elsewhere := &browser{t: t, w: w, host: other, cookie: b.cookie}
		elsewhere.want(401, "GET", "/")
		elsewhere.want(401, "GET", "/?"+u.RawQuery)
	}
	if _, body := user.do("GET", links, ""); strings.Contains(body, "hvp_") ||
		len(parse[api.List[api.PortLink]](t, body).Data) != 1 ||
		parse[api.List[api.PortLink]](t, body).Data[0].LastUsed.IsZero() {
		t.Errorf("links: %s", body)
	}
	user.want(204, "DELETE", links+"/"+made.ID, "")
	user.want(404, "DELETE", links+"/"+made.ID, "")
	b.want(401, "GET", "/")
	if strings.Contains(w.audit.String(), "hvp_") {
		t.Error("a link is in the audit log")
	}
	// When the sandbox has ended, so have its links.
	b.open(user.link(links, `{"port":`+port+`}`).URL, "a second link")
	w.want(204, "DELETE", "/v1/sandboxes/box", "")
	b.want(410, "GET", "/")
	user.want(410, "POST", "/v1/sandboxes/"+box.ID+"/links", `{"port":80}`)
}

// streams tries a WebSocket and a stream of events.
func (b *browser) streams() {
	b.t.Helper()
	header := http.Header{"Cookie": {b.cookie}, "Origin": {"http://" + b.host}}
	conn, resp, err := websocket.Dial(b.t.Context(), b.w.strict+"/ws", &websocket.DialOptions{HTTPHeader: header,
		Host: b.host})
	if err != nil {
		b.t.Fatalf("%v %v", resp, err)
	}
	defer conn.CloseNow()
	if err := conn.Write(b.t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		b.t.Fatal(err)
	}
	if _, msg, err := conn.Read(b.t.Context()); err != nil || string(msg) != "echo hello" {
		b.t.Errorf("WebSocket: %q, %v", msg, err)
	}
	header.Set("Origin", "http://evil.example")
	if _, resp, err := websocket.Dial(b.t.Context(), b.w.strict+"/ws", &websocket.DialOptions{HTTPHeader: header,
		Host: b.host}); err == nil || resp == nil || resp.StatusCode != 403 {
		b.t.Errorf("a WebSocket of another page: %v, %v", resp, err)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), "GET", b.w.strict+"/events", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Host, req.Header = b.host, http.Header{"Cookie": {b.cookie}}
	events, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer events.Body.Close()
	buf := make([]byte, 100)
	if n, err := events.Body.Read(buf); err != nil || string(buf[:n]) != "data: first\n\n" {
		b.t.Errorf("events: %q, %v", buf[:n], err)
	}
}

// TestKeysAtPortHosts checks that keys also work at a port's name, and give no access to another account's sandbox.
// mission: A7
func TestKeysAtPortHosts(t *testing.T) {
	t.Parallel()
	w, user, box := portWorld(t)
	port := serveInside(t)
	host := port + "-" + strings.ReplaceAll(box.ID, "_", "-") + ".ports.example"
	b := &browser{t: t, w: w, host: host}
	if body := b.want(200, "GET", "/", "Authorization", user.headers[1]); strings.Contains(body, "hv_") {
		t.Errorf("the sandbox sees the key: %s", body)
	}
	b.open(user.link("/v1/sandboxes/"+box.ID+"/links", `{"port":`+port+`}`).URL, "elsewhere")
	if body := b.want(200, "GET", "/", "Authorization", "Bearer hva_"+strings.Repeat("a", 52)); strings.Contains(body,
		"hva_") {
		t.Errorf("the sandbox sees a token: %s", body)
	}
	b = &browser{t: t, w: w, host: host}
	acme := w.as(account.Request{Account: "acme", Role: account.Admin})
	b.want(404, "GET", "/", "Authorization", acme.headers[1])
	b.want(403, "GET", "/", "Authorization", w.as(account.Request{Scopes: []account.Scope{account.Read}}).headers[1])
	b.want(401, "GET", "/", "Authorization", "Bearer hv_"+strings.Repeat("a", 52))
	links := "/v1/sandboxes/" + box.ID + "/links"
	acme.want(404, "POST", links, `{"port":80}`)
	acme.want(404, "GET", links, "")
	acme.want(404, "DELETE", links+"/lnk_x", "")
	// Neither the server's own cookie nor a link for the server is accepted there.
	token, err := w.ring.Link(account.Local())
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err := w.ring.SignIn(t.Context(), token.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	b.want(401, "GET", "/", "Cookie", "harvest="+secret.Reveal())
	b.want(401, "GET", "/", "Cookie", "harvest-port="+secret.Reveal())
	made := user.link(links, `{"port":80}`)
	u, err := url.Parse(made.URL)
	if err != nil {
		t.Fatal(err)
	}
	w.stranger().want(401, "GET", "/v1/account", "", "Cookie", "harvest="+u.Query().Get("harvest-link"))
	w.stranger().want(401, "GET", "/v1/account?"+u.RawQuery, "")
	// Only names of ports are accepted (DNS rebinding).
	for name, want := range map[string]int{
		"ports.example": 421, "x.ports.example": 421, "0" + host: 421, "a." + host: 421,
		"70000" + host[len(port):]: 421, host + ".evil.example": 421, host + ".": 401, strings.ToUpper(host): 401,
	} {
		(&browser{t: t, w: w, host: name}).want(want, "GET", "/healthz")
	}
}

func TestPortLinkRequests(t *testing.T) {
	t.Parallel()
	w, user, box := portWorld(t)
	for _, bad := range []string{`{}`, `{"port":0}`, `{"port":65536}`, `{"port":"80"}`,
		`{"port":80,"expires_in_seconds":-1}`, `{"port":80,"expires_in_seconds":2592001}`, `{"port":80,"to":"x"}`} {
		user.want(400, "POST", "/v1/sandboxes/box/links", bad)
	}
	user.want(404, "POST", "/v1/sandboxes/none/links", `{"port":80}`)
	w.as(account.Request{Scopes: []account.Scope{account.Write}}).want(403, "POST", "/v1/sandboxes/box/links",
		`{"port":80}`)
	w.want(501, "POST", "/v1/sandboxes/box/links", `{"port":80}`) // over the socket of a server that no browser reaches
	// A link ends with the key that made it.
	if made := w.as(account.Request{Life: 60e9}).link("/v1/sandboxes/box/links",
		`{"port":80}`); made.Expires.Sub(made.Created).Seconds() > 61 {
		t.Errorf("the link outlives its key: %+v", made)
	}
	// Names below localhost work on this machine only.
	local := start(t, func(o *server.Options) { o.PortDomain, o.URL = "localhost", "https://127.0.0.1:7777" })
	box = local.create()
	if made := local.link("/v1/sandboxes/box/links", `{"port":80}`); !strings.HasPrefix(made.URL,
		"https://80-"+strings.ReplaceAll(box.ID, "_", "-")+".localhost:7777/?harvest-link=hvp_") {
		t.Errorf("on loopback: %s", made.URL)
	}
	public := start(t, func(o *server.Options) { o.PortDomain, o.URL = "localhost", "https://harvest.example.org" })
	public.create()
	public.want(501, "POST", "/v1/sandboxes/box/links", `{"port":80}`)
	none := start(t, func(o *server.Options) { o.URL = "https://harvest.example.org" })
	none.create()
	none.want(501, "POST", "/v1/sandboxes/box/links", `{"port":80}`)
}

// TestPortsInFrames checks that Harvest's own page can show a port in a frame, with a cookie that only such frames get.
// Other pages cannot.
// mission: F2
func TestPortsInFrames(t *testing.T) {
	t.Parallel()
	w, user, _ := portWorld(t)
	port := serveInside(t)
	made := user.link("/v1/sandboxes/box/links", `{"port":`+port+`}`)
	u, err := url.Parse(made.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, w: w, host: u.Host}
	framed := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}
	resp, body := b.get("GET", "/?"+u.RawQuery, "", framed...)
	cookies := resp.Cookies()
	if resp.StatusCode != http.StatusSeeOther || len(cookies) != 1 || cookies[0].Name != "harvest-frame" ||
		resp.Header.Get("Referrer-Policy") != "origin" {
		t.Fatalf("%s %v %s", resp.Status, resp.Header, body)
	}
	b.cookie = "harvest-frame=" + cookies[0].Value
	for _, c := range []struct {
		from string
		want int
	}{
		{"http://127.0.0.1:7777/", 200}, {"http://localhost:7777/", 200}, {"https://evil.example/", 403}, {"", 403},
		{"http://81-sbx-" + strings.Repeat("0", 26) + ".ports.example/", 403},
		{"http://" + u.Host + "/", 403}, {"http://%zz/", 403},
	} {
		b.want(c.want, "GET", "/", append(slices.Clone(framed), "Referer", c.from)...)
	}
	b.want(200, "GET", "/a", "Sec-Fetch-Site", "same-origin")
	if resp, body := b.get("GET", "/", "", "Cookie", b.cookie); resp.StatusCode != 200 ||
		strings.Contains(body, "hvp_") {
		t.Errorf("the sandbox sees the cookie: %s %s", resp.Status, body)
	}

	// The page may belong to another site than the port. Then the cookie must allow that.
	local := startOn(t, withPorts, func(o *server.Options) { o.PortDomain = "localhost" })
	local.create()
	made = local.as(account.Request{}).link("/v1/sandboxes/box/links", `{"port":`+port+`}`)
	if u, err = url.Parse(made.URL); err != nil {
		t.Fatal(err)
	}
	b = &browser{t: t, w: local, host: u.Host}
	resp, _ = b.get("GET", "/?"+u.RawQuery, "", framed...)
	if c := resp.Cookies(); len(c) != 1 || c[0].SameSite != http.SameSiteNoneMode || !c[0].Secure ||
		!c[0].Partitioned || !c[0].HttpOnly {
		t.Errorf("%+v", c)
	}
}

// TestPortsWithTLS checks that requests to a port whose protocol is https are encrypted, whatever its certificate is.
func TestPortsWithTLS(t *testing.T) {
	t.Parallel()
	w := startOn(t, withPorts, func(o *server.Options) { o.PortDomain = "ports.example" })
	inside := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(rw, r, "https://"+r.Host+"/there", http.StatusFound)
			return
		}
		if r.TLS.ServerName != "localhost" {
			t.Errorf("the handshake names %q", r.TLS.ServerName)
		}
		_, _ = io.WriteString(rw, r.Host+" "+r.Header.Get("Origin"))
	}))
	t.Cleanup(inside.Close)
	port := inside.Listener.Addr().(*net.TCPAddr).Port
	box, err := w.fleet.Create(t.Context(), account.Personal, spec.Request{Ports: []int{port},
		PortDetails: []spec.PortDetail{{Port: port, Label: "Web", Protocol: "https"}}})
	if err != nil {
		t.Fatal(err)
	}
	text := strconv.Itoa(port)
	if _, body := w.do("GET", "/v1/sandboxes/"+box.ID, ""); !strings.Contains(body,
		`"port_details":[{"port":`+text+`,"label":"Web","protocol":"https"}]`) {
		t.Errorf("the sandbox is %s", body)
	}
	if resp, body := w.do("GET", "/v1/sandboxes/"+box.ID+"/ports/"+text+"/", ""); resp.StatusCode != 200 ||
		body != "localhost:"+text+" " {
		t.Errorf("%s %s", resp.Status, body)
	}
	made := w.as(account.Request{}).link("/v1/sandboxes/"+box.ID+"/links", `{"port":`+text+`}`)
	u, err := url.Parse(made.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, w: w, host: u.Host}
	b.open(made.URL, "elsewhere")
	if got := b.want(200, "GET", "/", "Origin", "http://"+u.Host); got != "localhost:"+text+" https://localhost:"+text {
		t.Errorf("the server inside got %q", got)
	}
	if resp, _ := b.get("GET", "/away", ""); resp.Header.Get("Location") != "http://"+u.Host+"/there" {
		t.Errorf("a redirect leads to %s", resp.Header.Get("Location"))
	}
}
