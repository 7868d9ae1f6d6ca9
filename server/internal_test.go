package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
)

func TestTables(t *testing.T) {
	t.Parallel()
	for _, kind := range errors.Kinds {
		if statuses[kind] == 0 {
			t.Errorf("%s has no status", kind)
		}
	}
}

// TestHalfAnAnswer checks that a failure after the beginning of an answer breaks the answer off, so that clients do not
// take a part for the whole.
func TestHalfAnAnswer(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]handler{
		"error": func(w http.ResponseWriter, _ *http.Request) error {
			io.WriteString(w, "half")
			return errors.Errorf("late")
		},
		"panic": func(w http.ResponseWriter, _ *http.Request) error {
			io.WriteString(w, "half")
			panic("late")
		},
	} {
		for _, proto := range []int{1, 2} {
			s := New(t.Context(), Options{})
			ts := httptest.NewUnstartedServer(s.middleware(s.handle(h)))
			ts.EnableHTTP2 = proto == 2
			ts.StartTLS()
			resp, err := ts.Client().Get(ts.URL)
			if err == nil {
				if resp.ProtoMajor != proto {
					t.Errorf("%s: %s", name, resp.Proto)
				}
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if err == nil {
				t.Errorf("%s, HTTP/%d: the answer seems to be whole", name, proto)
			}
			ts.Close()
		}
	}
}

// mission: 10.4
func TestTimesThatNobodyNames(t *testing.T) {
	t.Parallel()
	if o := New(t.Context(), Options{}).opts; o.Heartbeat != 15*time.Second || o.Patience != time.Minute {
		t.Errorf("a heartbeat comes every %s, patience lasts %s", o.Heartbeat, o.Patience)
	}
}

func TestPanicIsInternal(t *testing.T) {
	t.Parallel()
	s := New(t.Context(), Options{})
	ts := httptest.NewServer(s.middleware(s.handle(func(http.ResponseWriter, *http.Request) error { panic("secret") })))
	defer ts.Close()
	resp, err := http.Get(ts.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 500 || strings.Contains(string(body), "secret") ||
		!strings.Contains(string(body), `"internal"`) {
		t.Errorf("%s %s %v", resp.Status, body, err)
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	told := 0
	w := newWindow(func(n int) { told += n })
	if err := w.add(make([]byte, api.Window)); err != nil {
		t.Fatal(err)
	}
	if err := w.add([]byte{1}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("more than fits: %v", err)
	}
	read := 0
	for buf := make([]byte, 1000); read < api.Window; {
		n, err := w.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		read += n
		if told > read || read-told >= api.Window/4+len(buf) {
			t.Fatalf("told %d of %d", told, read)
		}
	}
	w.end()
	if n, err := w.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
	if err := w.add([]byte{1}); err != nil {
		t.Errorf("input after its end, which is passed over: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `{"args":["a"],"terminal":{"rows":1}}`, `{"code":1}`, `[`,
		`{"sandbox":{"cpu":"x"}}`, `{"x":1}`, `null`, `{} {}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var exec api.ExecRequest
		if err := decode(data, &exec); err != nil && errors.KindOf(err) != errors.Invalid {
			t.Errorf("decode: %v", err)
		}
		if _, err := decodeRun(data); err != nil && errors.KindOf(err) != errors.Invalid &&
			errors.KindOf(err) != errors.Unsupported {
			t.Errorf("decodeRun: %v", err)
		}
	})
}

func FuzzPartial(f *testing.F) {
	f.Add([]byte("a\xc3"))
	f.Add([]byte("\xf0\x9f\x98"))
	f.Add([]byte("\xff\x80\x80\x80\x80"))
	f.Fuzz(func(t *testing.T, data []byte) {
		n := partial(data)
		if n < 0 || n >= utf8.UTFMax || n > len(data) {
			t.Fatalf("%d of %d bytes", n, len(data))
		}
		if n > 0 && utf8.FullRune(data[len(data)-n:]) {
			t.Errorf("%q is held back although it is complete", data[len(data)-n:])
		}
	})
}

// TestEveryRouteHasAScope checks that every route requires a scope or is public, and that a read-only key changes
// nothing.
//
// mission: 9.1
func TestEveryRouteHasAScope(t *testing.T) {
	t.Parallel()
	everybody := []string{"GET " + api.Healthz, "GET " + api.Readyz, "GET " + api.OpenAPI, "GET " + api.Docs,
		"GET " + api.SignIn, "POST " + api.SignIn,
		"GET " + api.SignInOIDC, "GET " + api.SignInBack}
	for _, rt := range New(t.Context(), Options{}).routes() {
		name := rt.method + " " + rt.path
		switch {
		case rt.scope == "" && !slices.Contains(everybody, name):
			t.Errorf("%s has no scope", name)
		case rt.scope == account.Read && rt.method != http.MethodGet &&
			name != "POST "+api.SignOut: // which every browser may do
			t.Errorf("%s changes something, and needs a key with the scope read only", name)
		}
	}
}
