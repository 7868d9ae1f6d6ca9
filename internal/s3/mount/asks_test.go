package mount

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// asks has the requests that reach an S3 through a proxy, which may answer some of them itself.
type asks struct {
	*httptest.Server
	mu     sync.Mutex
	all    []ask                                             // guarded by mu
	answer func(w http.ResponseWriter, r *http.Request) bool // guarded by mu; true if it did
}

// ask is a request.
type ask struct {
	method, path, part string // the path is without the bucket; part is the range
	copies             string // the source of S3's copy, without the bucket
}

func (a ask) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s%s", a.method, a.path, a.part, a.copies))
}

// from is where the range begins.
func (a ask) from() (n int64) {
	_, _ = fmt.Sscanf(a.part, "bytes=%d-", &n)
	return n
}

// length is the number of requested bytes.
func (a ask) length() int64 {
	var from, to int64
	_, _ = fmt.Sscanf(a.part, "bytes=%d-%d", &from, &to)
	return to - from + 1
}

func newAsks(t *testing.T, behind string) *asks {
	t.Helper()
	target, err := url.Parse(behind)
	if err != nil {
		t.Fatal(err)
	}
	a := &asks{}
	proxy := httputil.NewSingleHostReverseProxy(target) // it keeps the signed host
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		withoutBucket := func(path string) string {
			_, path, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
			return "/" + path
		}
		one := ask{method: r.Method, path: withoutBucket(r.URL.Path), part: r.Header.Get("Range")}
		if from := r.Header.Get("X-Amz-Copy-Source"); from != "" {
			one.copies = "from " + withoutBucket(from)
		}
		a.mu.Lock()
		a.all = append(a.all, one)
		answer := a.answer
		a.mu.Unlock()
		if answer == nil || !answer(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(a.Close)
	return a
}

// of returns the recorded requests with a method for an object, by its key.
func (a *asks) of(method, path string) (found []ask) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.all {
		if one.method == method && one.path == path {
			found = append(found, one)
		}
	}
	return found
}

// keyPath is the path of the request for a key of a mount's.
func keyPath(key string) string { return "/work" + "/" + key }

// answers lets f answer requests from now on, unless f returns false.
func (a *asks) answers(f func(w http.ResponseWriter, r *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = f
}
