package broker

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// withBody returns a binding to the host that has bodies, with rules.
func withBody(t testing.TB, rules ...string) binding.Binding {
	b := bound(t, host, rules...)
	b.Body = true
	return b
}

// bodyEcho answers with the length and the body of the request.
var bodyEcho = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream") // not masked
	b, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%d %s", r.ContentLength, b)
})

// post sends a body, whose length is not given for -1, and returns the status and the body of the answer.
func post(t testing.TB, c *http.Client, contentType, body string, length int64, head map[string]string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/",
		io.NopCloser(strings.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = length
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for name, v := range head {
		r.Header.Set(name, v)
	}
	return send(t, c, r)
}

func TestBodiesAreReplaced(t *testing.T) {
	t.Parallel()
	const special = `re"al<&>+ü value\`
	long := strings.Repeat("-", maxReplaced)
	for _, protocol := range []string{"h2", "http/1.1"} {
		for _, test := range []struct{ contentType, value, before, after, want string }{
			{"application/json; charset=utf-8", special, `{"a": "`, `"}`, `re\"al\u003c\u0026\u003e+ü value\\`},
			{"application/vnd.api+json", value, `{"a": "`, `"}`, value},
			{"application/x-www-form-urlencoded", special, "a=b&c=", "&d=e", "re%22al%3C%26%3E%2B%C3%BC+value%5C"},
			{"text/plain", special, "x", "y", special},
			{"text/xml", special, "<a>", "</a>", "re&#34;al&lt;&amp;&gt;+ü value\\"},
			{"multipart/form-data; boundary=b", special, "--b\r\n\r\n", "\r\n--b--\r\n", special},
			{"text/plain", value, long, "", value},
			{"text/plain", special, long, "", special},
			{"text/plain", special, long[:maxReplaced-len(placeholder)], "", special},
		} {
			w := newWorld(t, withBody(t))
			w.credentials[0].Value = config.Secret(test.value)
			w.serve(t, bodyEcho)
			body, want := test.before+placeholder+test.after, test.before+test.want+test.after
			length := int64(len(want))
			if len(body) > maxReplaced && len(want) != len(body) {
				length = -1
			}
			for _, given := range []int64{int64(len(body)), -1} {
				if given < 0 {
					length = -1
				}
				status, got := post(t, w.client(t, protocol), test.contentType, body, given, nil)
				if status != 200 || got != fmt.Sprintf("%d %s", length, want) {
					t.Errorf("%s, %s: got %d %.100q, want %d %.100q", protocol, test.contentType, status, got, length,
						want)
				}
			}
			if uses := w.reported(2); len(uses) != 2 || uses[0].Secret != "example" || uses[0].Status != 200 {
				t.Errorf("%s: got %+v", test.contentType, uses)
			}
		}
	}
}

// TestOtherBodiesStay checks the bodies that are sent as they are.
func TestOtherBodiesStay(t *testing.T) {
	t.Parallel()
	const text = "text/plain"
	body := "a " + placeholder + " b"
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, body)
	_ = z.Close()
	for name, test := range map[string]struct {
		binding     binding.Binding
		contentType string
		body        string
		head        map[string]string
	}{
		"without --body": {bound(t, host), text, body, nil},
		"another method": {withBody(t, "GET /**"), text, body, nil},
		"bytes":          {withBody(t), "application/octet-stream", body, nil},
		"gRPC":           {withBody(t), "application/grpc+proto", body, nil},
		"without a type": {withBody(t), "", body, nil},
		"invalid type":   {withBody(t), "text/plain; x", body, nil},
		"compressed":     {withBody(t), text, packed.String(), map[string]string{"Content-Encoding": "gzip"}},
		"checksum":       {withBody(t), text, body, map[string]string{"Content-MD5": "x"}},
		"digest":         {withBody(t), text, body, map[string]string{"Content-Digest": "sha-256=:x:"}},
		"hash of AWS":    {withBody(t), text, body, map[string]string{"X-Amz-Content-Sha256": hashOf(body)}},
		"none":           {withBody(t), text, "nothing to replace, but held", nil},
	} {
		w := newWorld(t, test.binding)
		w.credentials[0].Value += "longer"
		w.serve(t, bodyEcho)
		status, got := post(t, w.client(t), test.contentType, test.body, int64(len(test.body)), test.head)
		if status != 200 || got != fmt.Sprintf("%d %s", len(test.body), test.body) || len(w.taken()) != 0 {
			t.Errorf("%s: got %d %q; uses %+v", name, status, got, w.taken())
		}
	}
	b := bound(t, "other.example.org")
	b.Body = true
	w := newWorld(t, b)
	w.serve(t, bodyEcho)
	if _, got := post(t, w.client(t), text, body, int64(len(body)), nil); !strings.Contains(got, placeholder) {
		t.Errorf("at a host that is not bound: got %q", got)
	}
}

// TestBodyAndHead checks that a credential in the head and the body is one use.
func TestBodyAndHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBody(t))
	w.serve(t, bodyEcho)
	_, got := post(t, w.client(t), "text/plain", placeholder, int64(len(placeholder)), authorized)
	if !strings.HasSuffix(got, " "+value) {
		t.Errorf("got %q", got)
	}
	if uses := w.reported(1); len(uses) != 1 {
		t.Errorf("got %+v", uses)
	}
}

// TestSignedBodiesStay checks that the secret key of a pair is not put into bodies.
func TestSignedBodiesStay(t *testing.T) {
	t.Parallel()
	b := bound(t, host+" sigv4")
	b.Body = true
	w := newWorld(t, b)
	held := w.pairs(b, false)
	w.serve(t, bodyEcho)
	if _, got := post(t, w.client(t), "text/plain", held.SecretAccessKey, 40, nil); got != "40 "+held.SecretAccessKey {
		t.Errorf("got %q", got)
	}
	form := awsRequest{method: "POST", path: "/", service: "sts", region: "r",
		body: held.SecretAccessKey + held.AccessKeyID, head: map[string]string{"Content-Type": "text/plain"}}
	if status, got := send(t, w.client(t), form.sign(t, held)); status != 200 || got != "60 "+form.body {
		t.Errorf("got %d %q", status, got)
	}
}

// TestBodyIsReplacedAsItArrives checks that a body that is text is not delayed, and that a placeholder in two parts is
// replaced.
func TestBodyIsReplacedAsItArrives(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http/1.1"} {
		w := newWorld(t, withBody(t))
		w.credentials[0].Value += "longer"
		w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(rw).EnableFullDuplex()
			rw.Header().Set("Content-Type", "application/octet-stream")
			_ = http.NewResponseController(rw).Flush()
			for lines := bufio.NewScanner(r.Body); lines.Scan(); {
				_, _ = fmt.Fprintf(rw, "%s\n", lines.Text())
				_ = http.NewResponseController(rw).Flush()
			}
		}))
		in, out := io.Pipe()
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", in)
		r.Header.Set("Content-Type", "application/x-ndjson")
		resp, err := w.client(t, protocol).Do(r)
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		lines := bufio.NewReader(resp.Body)
		for _, parts := range [][]string{{"first\n"}, {placeholder, "\n"}, {placeholder[:7], placeholder[7:] + "\n"},
			{placeholder[:9] + "\n"}} {
			for _, part := range parts {
				_, _ = io.WriteString(out, part)
			}
			want := strings.ReplaceAll(strings.Join(parts, ""), placeholder, value+"longer")
			if got, err := lines.ReadString('\n'); err != nil || got != want {
				t.Errorf("%s: got %q, %v, want %q", protocol, got, err, want)
			}
		}
		_ = out.Close()
		if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
			t.Errorf("%s: got %q, %v at the end", protocol, rest, err)
		}
		_ = resp.Body.Close()
	}
}

// TestRequestTrailers checks that the trailer of a request arrives after a body with a value.
func TestRequestTrailers(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http/1.1"} {
		w := newWorld(t, withBody(t))
		w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			rw.Header().Set("Content-Type", "application/octet-stream")
			fmt.Fprintf(rw, "%s %s", b, r.Trailer.Get("X-Sum"))
		}))
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/",
			io.NopCloser(strings.NewReader(placeholder)))
		r.ContentLength = -1
		r.Header.Set("Content-Type", "text/plain")
		r.Trailer = http.Header{"X-Sum": {"sum"}}
		if status, got := send(t, w.client(t, protocol), r); status != 200 || got != value+" sum" {
			t.Errorf("%s: got %d %q", protocol, status, got)
		}
	}
}

// TestEscapedValuesAreMasked checks that an answer that repeats a body has no value, however it is written.
func TestEscapedValuesAreMasked(t *testing.T) {
	t.Parallel()
	const special = `re"al<&>+value\'0123`
	for _, contentType := range []string{"application/json", "application/x-www-form-urlencoded", "text/plain",
		"text/xml",
		"multipart/form-data; boundary=b"} {
		w := newWorld(t, withBody(t))
		w.credentials[0].Value = special
		w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", contentType)
			_, _ = io.Copy(rw, r.Body)
		}))
		_, got := post(t, w.client(t), contentType, "a"+placeholder+"b", int64(len(placeholder)+2), nil)
		if escape, ok := escapes(contentType); !ok || strings.Contains(got, "al") || len(got) != len(escape(special))+
			2 {
			t.Errorf("%s: got %q", contentType, got)
		}
	}
}

// TestBrokenBody checks a body that is shorter than its length.
func TestBrokenBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBody(t))
	w.credentials[0].Value += "longer"
	reached := make(chan struct{}, 1)
	w.serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	c := tls.Client(w.dial(t, intercepted), &tls.Config{RootCAs: w.trusts, ServerName: host})
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+host+
		"\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\nshort")
	_ = c.CloseWrite()
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && resp.StatusCode != 400 {
		t.Errorf("got %d", resp.StatusCode)
	}
	_ = c.Close()
	if len(reached) > 0 {
		t.Error("the host got the request")
	}
}

// swaps are placeholders that overlap, and begin like one another.
var swaps = map[string]string{"ab": "1", "abc": "", "bcd": "three", "aab": "ab", "ccc": "ccc"}

func newLentBody(body io.Reader) *lentBody {
	b := &lentBody{body: io.NopCloser(body)}
	for from, to := range swaps {
		b.swaps = append(b.swaps, &swap{from: []byte(from), to: []byte(to)})
	}
	slices.SortFunc(b.swaps, func(x, y *swap) int { return len(y.from) - len(x.from) })
	return b
}

// replacedWhole is the model: the first placeholder counts, and of those that begin at the same place the longest.
func replacedWhole(text string) string {
	var out strings.Builder
	for len(text) > 0 {
		longest := ""
		for from := range swaps {
			if strings.HasPrefix(text, from) && len(from) > len(longest) {
				longest = from
			}
		}
		if longest == "" {
			out.WriteByte(text[0])
			text = text[1:]
			continue
		}
		out.WriteString(swaps[longest])
		text = text[len(longest):]
	}
	return out.String()
}

func FuzzLentBody(f *testing.F) {
	for _, text := range []string{"", "ab", "abc", "abcd", "aabcd", "xabxcccc", "aaab", "bcbcd", "a", "ccabccbc"} {
		for size := range 4 {
			f.Add(text, uint8(size))
		}
	}
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		b := newLentBody(&byParts{[]byte(text), int(size) + 1})
		got, err := io.ReadAll(struct{ io.Reader }{b})
		if want := replacedWhole(text); err != nil || string(got) != want {
			t.Errorf("%q in parts of %d: got %q, %v, want %q", text, size+1, got, err, want)
		}
	})
}
