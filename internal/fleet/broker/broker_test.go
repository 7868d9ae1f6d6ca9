package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/authority"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/engine"
)

const (
	host        = "api.example.org"
	value       = "real-value-0123456789"
	placeholder = "held-value-9876543210" // as long as the value
	hostAddr    = "203.0.113.1"
)

// world is a broker, a sandbox, and the host of its credentials.
type world struct {
	*Broker
	sandbox Sandbox
	trusts  *x509.CertPool // of the sandbox
	signs   *authority.Authority
	upgrade func(*tls.Config) // of the host

	mu          sync.Mutex
	credentials []Credential           // guarded by mu
	uses        []Use                  // guarded by mu
	ended       []Use                  // guarded by mu
	hosts       map[string]string      // guarded by mu: real addresses by those that the sandbox knows
	dialed      map[netip.AddrPort]int // guarded by mu
}

func bound(t testing.TB, text string, more ...string) binding.Binding {
	t.Helper()
	var b binding.Binding
	host, inject, _ := strings.Cut(text, " ")
	b.Places = make([]binding.Place, 1)
	if err := b.Places[0].Host.UnmarshalText([]byte(host)); err != nil {
		t.Fatal(err)
	}
	if err := b.Places[0].Inject.UnmarshalText([]byte(inject)); err != nil {
		t.Fatal(err)
	}
	for _, rule := range more {
		var r binding.Rule
		if err := r.UnmarshalText([]byte(rule)); err != nil {
			t.Fatal(err)
		}
		b.Allow = append(b.Allow, r)
	}
	return b
}

func newAuthority(t testing.TB) *authority.Authority {
	t.Helper()
	a, err := authority.New("Test", authority.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func pool(a *authority.Authority) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM([]byte(a.PEM()))
	return p
}

// newWorld returns a world whose sandbox has one credential, with a binding.
func newWorld(t testing.TB, b binding.Binding) *world {
	t.Helper()
	inside, outside := newAuthority(t), newAuthority(t)
	w := &world{trusts: pool(inside), signs: outside, hosts: map[string]string{}, dialed: map[netip.AddrPort]int{},
		credentials: []Credential{{Secret: "example", Key: "API_TOKEN", Placeholder: placeholder, Value: value,
			Binding: b}}}
	dial := func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
		w.mu.Lock()
		real := w.hosts[a.String()]
		w.dialed[a]++
		w.mu.Unlock()
		if real == "" {
			return nil, net.ErrClosed
		}
		return new(net.Dialer).DialContext(ctx, "tcp", real)
	}
	w.Broker = New(t.Context(), Options{Roots: pool(outside), Dial: dial})
	w.sandbox = Sandbox{ID: "sb", Authority: inside,
		Credentials: func(context.Context) ([]Credential, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.credentials), nil
		},
		Report: func(u Use) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.uses = append(w.uses, u)
		},
		End: func(u Use) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = append(w.ended, u)
		}}
	t.Cleanup(func() {
		_ = w.Close()
		for begin := time.Now(); w.open() > 0; time.Sleep(time.Millisecond) {
			if time.Since(begin) > time.Minute {
				t.Errorf("%d connections are open after the end", w.open())
				return
			}
		}
	})
	return w
}

// serve starts the host with a handler. name is that in its certificate.
func (w *world) serve(t testing.TB, h http.Handler, names ...string) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	if len(names) == 0 {
		names = []string{host}
	}
	leaf, err := w.signs.Certificate(names...)
	if err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	if w.upgrade != nil {
		w.upgrade(s.TLS)
		s.EnableHTTP2 = false
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[hostAddr+":443"] = s.Listener.Addr().String()
	return s
}

// dial returns a connection of the sandbox that the broker serves.
func (w *world) dial(t testing.TB, i engine.Interception) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	w.Serve(w.sandbox, &engine.Intercepted{Conn: theirs, Interception: i})
	return ours
}

var intercepted = engine.Interception{Name: host, Addr: netip.MustParseAddrPort(hostAddr + ":443"), TLS: true}

// client returns a client of the sandbox. protocols limits those that it offers.
func (w *world) client(t testing.TB, protocols ...string) *http.Client {
	t.Helper()
	tr := &http.Transport{DisableCompression: true, ForceAttemptHTTP2: true,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			config := &tls.Config{RootCAs: w.trusts, ServerName: host, NextProtos: protocols}
			if len(protocols) == 0 {
				config.NextProtos = []string{"h2", "http/1.1"}
			}
			c := tls.Client(w.dial(t, intercepted), config)
			return c, c.HandshakeContext(ctx)
		},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return w.dial(t, engine.Interception{Name: host, Addr: netip.MustParseAddrPort(hostAddr + ":80")}), nil
		}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// open returns how many connections the broker counts.
func (w *world) open() int {
	w.Broker.mu.Lock()
	defer w.Broker.mu.Unlock()
	return max(w.total, len(w.conns))
}

func (w *world) taken() []Use {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.uses)
}

// reported waits for so many uses: a report follows the answer.
func (w *world) reported(n int) []Use {
	for begin := time.Now(); len(w.taken()) < n && time.Since(begin) < time.Minute; {
		time.Sleep(time.Millisecond)
	}
	return w.taken()
}

// echo answers with the head of the request, one part in a line.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream") // not masked
	fmt.Fprintf(w, "%s %s %s\n", r.Proto, r.Method, r.URL.RequestURI())
	for _, name := range []string{"Authorization", "X-Api-Key", "X-Forwarded-For", "Cookie"} {
		fmt.Fprintf(w, "%s: %s\n", name, r.Header.Get(name))
	}
})

// get sends a request, and returns the status and the body of the answer.
func get(t testing.TB, c *http.Client, method, url string, head map[string]string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range head {
		r.Header.Set(name, v)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s %s: %v", method, url, err)
	}
	return resp.StatusCode, string(b)
}

func b64(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// mission: 9.1
func TestPlaceholdersAreReplaced(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http/1.1"} {
		w := newWorld(t, bound(t, host))
		w.serve(t, echo)
		c := w.client(t, protocol)
		for _, test := range []struct {
			path, name, value string
			want              string
		}{
			{"/a", "Authorization", "Bearer " + placeholder, "Authorization: Bearer " + value},
			{"/a", "Authorization", "token " + placeholder, "Authorization: token " + value},
			{"/a", "Authorization", "Basic " + b64("user:"+placeholder), "Authorization: Basic " + b64("user:"+value)},
			{"/a", "X-Api-Key", placeholder, "X-Api-Key: " + value},
			{"/a", "Cookie", "a=b; t=" + placeholder, "Cookie: a=b; t=" + value},
			{"/a?key=" + placeholder + "&x=%2f", "", "", "/a?key=" + value + "&x=%2f"},
			{"/bot" + placeholder + "/a%2fb", "", "", "/bot" + value + "/a%2fb"},
			{"/a%2Fb;c?x=1;2", "X-Forwarded-For", "192.0.2.1", "X-Forwarded-For: 192.0.2.1"},
			{"/a%2Fb;c?x=1;2", "", "", "GET /a%2Fb;c?x=1;2"},
		} {
			head := map[string]string{}
			if test.name != "" {
				head[test.name] = test.value
			}
			status, got := get(t, c, "GET", "https://"+host+test.path, head)
			if status != 200 || !strings.Contains(got, test.want) || strings.Contains(got, placeholder) {
				t.Errorf("%s, %s %s: got %d %q, want %q", protocol, test.path, test.name, status, got, test.want)
			}
			if proto := map[string]string{"h2": "HTTP/2.0", "http/1.1": "HTTP/1.1"}[protocol]; !strings.HasPrefix(got,
				proto) {
				t.Errorf("the host got %q, want %s", got, proto)
			}
		}
		uses := w.reported(7)
		if len(uses) != 7 {
			t.Errorf("%s: got %d uses: %+v", protocol, len(uses), uses)
		}
		if u := uses[0]; u.Secret != "example" || u.Key != "API_TOKEN" || u.Host != host || u.Method != "GET" ||
			u.Path != "/a" || u.Status != 200 || u.Refused != "" || time.Since(u.Time) > time.Hour {
			t.Errorf("got %+v", u)
		}
		for _, u := range uses {
			if strings.Contains(fmt.Sprintf("%+v", u), value) {
				t.Errorf("a use has the value: %+v", u)
			}
		}
	}
}

func TestInjection(t *testing.T) {
	t.Parallel()
	for inject, want := range map[string]string{
		"bearer":                "Authorization: Bearer " + value,
		"basic x-access-token":  "Authorization: Basic " + b64("x-access-token:"+value),
		"header X-Api-Key":      "X-Api-Key: " + value,
		"query key":             "?a=1&key=" + value,
		"bearer API_TOKEN":      "Authorization: Bearer " + value,
		"":                      "Authorization: \n",
		"bearer ANOTHER_TOKEN":  "Authorization: \n",
		"bearer API_TOKEN ":     "Authorization: Bearer " + value,
		"basic u API_TOKEN":     "Authorization: Basic " + b64("u:"+value),
		"header X-Api-Key OTHE": "X-Api-Key: \n",
	} {
		w := newWorld(t, bound(t, host+" "+inject))
		w.serve(t, echo)
		if _, got := get(t, w.client(t), "GET", "https://"+host+"/?a=1", nil); !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", inject, got, want)
		}
	}
	w := newWorld(t, bound(t, host+" bearer", "GET /read/**"))
	w.serve(t, echo)
	for _, test := range []struct{ method, path, auth, want string }{
		{"GET", "/read/a", "", "Authorization: Bearer " + value},
		{"POST", "/read/a", "", "Authorization: \n"},
		{"GET", "/write", "", "Authorization: \n"},
		{"GET", "/read/a", "Bearer own", "Authorization: Bearer own\n"},
		{"GET", "/read/a?X-Amz-Signature=x", "", "Authorization: \n"},
		{"GET", "/read/a?X-Amz-Signature=x", "Bearer " + placeholder, "Authorization: \n"},
	} {
		head := map[string]string{}
		if test.auth != "" {
			head["Authorization"] = test.auth
		}
		if _, got := get(t, w.client(t), test.method, "https://"+host+test.path, head); !strings.Contains(got,
			test.want) {
			t.Errorf("%s %s: got %q, want %q", test.method, test.path, got, test.want)
		}
	}
}

func TestElsewhere(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]binding.Binding{
		"another host":  bound(t, "other.example.org bearer"),
		"another port":  bound(t, host+":8443 bearer"),
		"plain":         bound(t, "http://"+host+" bearer"),
		"method":        bound(t, host+" bearer", "POST /**"),
		"path":          bound(t, host+" bearer", "GET /other/**"),
		"climbing path": bound(t, host+" bearer", "GET /a/**"),
	} {
		for _, elsewhere := range []binding.Elsewhere{"", binding.Pass, binding.End} {
			b.Elsewhere = elsewhere
			w := newWorld(t, b)
			w.serve(t, echo)
			path := "/x"
			if name == "climbing path" {
				path = "/a/..%2fx"
			}
			status, got := get(t, w.client(t), "GET", "https://"+host+path,
				map[string]string{"Authorization": "Bearer " + placeholder})
			if strings.Contains(got, value) {
				t.Errorf("%s: the host got the value", name)
			}
			uses := w.taken()
			switch {
			case elsewhere == binding.Pass:
				if status != 200 || !strings.Contains(got, placeholder) || len(uses) != 0 {
					t.Errorf("%s, pass: got %d %q, %+v", name, status, got, uses)
				}
			case status != 403 || !strings.Contains(got, "example") || len(uses) != 1 || uses[0].Refused == "":
				t.Errorf("%s: got %d %q, %+v", name, status, got, uses)
			}
			if (len(w.ended) == 1) != (elsewhere == binding.End) {
				t.Errorf("%s, %s: ended %+v", name, elsewhere, w.ended)
			}
		}
	}
}

// TestChangesHoldAtOnce checks that a new value, a loan that is interrupted, and the removal of a credential hold for
// the next request of an open connection.
func TestChangesHoldAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.serve(t, echo)
	c := w.client(t)
	ask := func() (int, string) {
		return get(t, c, "GET", "https://"+host+"/", map[string]string{"Authorization": "Bearer " + placeholder})
	}
	if _, got := ask(); !strings.Contains(got, value) {
		t.Errorf("got %q", got)
	}
	w.mu.Lock()
	w.credentials[0].Value = "another-value"
	w.mu.Unlock()
	if _, got := ask(); !strings.Contains(got, "another-value") {
		t.Errorf("after a change: got %q", got)
	}
	w.mu.Lock()
	w.credentials[0].Withheld = "is lent at other times"
	w.mu.Unlock()
	if status, got := ask(); status != 403 || !strings.Contains(got, "the secret example is lent at other times") {
		t.Errorf("while it is withheld: got %d %q", status, got)
	}
	w.mu.Lock()
	w.credentials[0].Binding.Places[0].Inject = binding.Inject{Form: binding.Bearer}
	w.mu.Unlock()
	if status, got := get(t, c, "GET", "https://"+host+"/", nil); status != 200 || strings.Contains(got, "another") {
		t.Errorf("without a placeholder, while it is withheld: got %d %q", status, got)
	}
	w.mu.Lock()
	w.credentials = nil
	w.mu.Unlock()
	if _, got := ask(); !strings.Contains(got, placeholder) {
		t.Errorf("after the removal: got %q", got)
	}
	if n := w.dialed[intercepted.Addr]; n != 1 {
		t.Errorf("%d connections to the host, want 1", n)
	}
}

// TestAnswersAreMasked checks that a host that repeats a request does not give the value away.
func TestAnswersAreMasked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		auth := r.Header.Get("Authorization")
		rw.Header().Set("X-Echo", auth)
		text := fmt.Sprintf(`{"auth": %q, "basic": %q}`, auth, b64("user:"+value))
		rw.Header().Set("Content-Type", "application/json; charset=utf-8")
		if r.URL.Path == "/whole" {
			rw.Header().Set("Content-Length", fmt.Sprint(len(text)))
		}
		for i := range text { // every split
			_, _ = io.WriteString(rw, text[i:i+1])
			if r.URL.Path == "/parts" {
				_ = http.NewResponseController(rw).Flush()
			}
		}
	}))
	for _, protocol := range []string{"h2", "http/1.1"} {
		for _, path := range []string{"/whole", "/parts"} {
			c := w.client(t, protocol)
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+path, nil)
			r.Header.Set("Authorization", "Bearer "+placeholder)
			resp, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			want := fmt.Sprintf(`{"auth": "Bearer %s", "basic": "`, placeholder)
			if err != nil || !strings.HasPrefix(string(b), want) || strings.Contains(string(b), b64(value)[:20]) ||
				resp.Header.Get("X-Echo") != "Bearer "+placeholder {
				t.Errorf("%s %s: got %q, %q, %v", protocol, path, b, resp.Header.Get("X-Echo"), err)
			}
		}
	}
}

// TestRepeatedCredentialsStayUsable checks that a client can use the credential that a host repeats, as servers of Git
// LFS do for the addresses of files.
func TestRepeatedCredentialsStayUsable(t *testing.T) {
	t.Parallel()
	const other = "held-user-9876543210"
	for _, test := range []struct {
		inject, want string
		send         map[string]string
	}{
		{"", "user:" + placeholder, map[string]string{"Authorization": "Basic " + b64("user:"+placeholder)}},
		{"", other + ":" + placeholder, map[string]string{"Authorization": "Basic " + b64(other+":"+placeholder)}},
		{" basic user", "user:" + placeholder, nil},
	} {
		w := newWorld(t, bound(t, host+test.inject))
		w.credentials = append(w.credentials, Credential{Secret: "example", Key: "USER", Placeholder: other,
			Value: "real-user-0123456789", Binding: bound(t, host)})
		w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(rw, `{"Authorization": %q}`, r.Header.Get("Authorization"))
		}))
		want := fmt.Sprintf(`{"Authorization": "Basic %s"}`, b64(test.want))
		if status, got := get(t, w.client(t), "GET", "https://"+host+"/", test.send); status != 200 || got != want {
			t.Errorf("%+v: got %d %s, want %s", test, status, got, want)
		}
	}
}

// TestValuesWithSpaceAreMasked checks values that end in a line break, which headers cannot have.
func TestValuesWithSpaceAreMasked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.credentials[0].Value = value + "\n"
	w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(rw, r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"))
	}))
	for _, send := range []string{"Bearer " + placeholder, "Basic " + b64("user:"+placeholder)} {
		_, got := get(t, w.client(t), "GET", "https://"+host+"/",
			map[string]string{"Authorization": send, "X-Api-Key": placeholder})
		if strings.Contains(got, value) || strings.Contains(got, b64("user:" + value)[8:30]) {
			t.Errorf("the host got %s, and the sandbox gets %q", send, got)
		}
	}
}

func TestMask(t *testing.T) {
	t.Parallel()
	pairs := []maskPair{{[]byte("aab"), []byte("***")}, {[]byte("bc"), []byte("##")}}
	for text, want := range map[string]string{"": "", "aab": "***", "aaab": "a***", "aa": "aa", "bbc": "b##",
		"aabc":     "***c",
		"xaaby bc": "x***y ##"} {
		for size := 1; size <= len(text)+1; size++ {
			m := &masked{body: io.NopCloser(&byParts{[]byte(text), size}), pairs: pairs}
			var got bytes.Buffer
			if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{m}, make([]byte,
				2)); err != nil ||
				got.String() != want {
				t.Errorf("%q in parts of %d: got %q, %v, want %q", text, size, got.String(), err, want)
			}
		}
	}
}

// byParts is a reader that returns so many bytes at once.
type byParts struct {
	left []byte
	size int
}

func (b *byParts) Read(p []byte) (int, error) {
	if len(b.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.left[:min(b.size, len(b.left))])
	b.left = b.left[n:]
	return n, nil
}
