package object

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object/wire"
)

// shelf is a server that stores objects. It heeds If-None-Match, and loses the answers of stored objects in whose keys
// there is "lost", once for each.
type shelf struct {
	mu      sync.Mutex
	objects map[string][]byte // guarded by mu
	puts    map[string]int    // guarded by mu; requests for each key
	agents  []string          // guarded by mu; of the requests with a body
}

// ServeHTTP implements http.Handler.
func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	s.mu.Lock()
	defer s.mu.Unlock()
	have, found := s.objects[key]
	switch {
	case r.Method == http.MethodPut && key == ProbeKey: // its condition cannot hold
		w.WriteHeader(http.StatusPreconditionFailed)
		fmt.Fprint(w, "<Error><Code>PreconditionFailed</Code></Error>")
	case r.Method == http.MethodPut:
		s.puts[key]++
		s.agents = append(s.agents, r.UserAgent())
		if found && r.Header.Get("If-None-Match") == "*" {
			w.WriteHeader(http.StatusPreconditionFailed)
			fmt.Fprint(w, "<Error><Code>PreconditionFailed</Code></Error>")
			return
		}
		s.objects[key] = body
		w.Header().Set("ETag", etagOf(body))
		if strings.Contains(key, "lost") && s.puts[key] == 1 {
			panic(http.ErrAbortHandler)
		}
	case !found:
		w.WriteHeader(http.StatusNotFound)
	default:
		w.Header().Set("ETag", etagOf(have))
		_, _ = w.Write(have)
	}
}

func etagOf(body []byte) string {
	sum := md5.Sum(body)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// shelved returns a bucket on a shelf, which it reaches through the wire or through net/http.
func shelved(t *testing.T, direct bool) (*Bucket, *shelf) {
	t.Helper()
	s := &shelf{objects: map[string][]byte{}, puts: map[string]int{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	b := opened(t, s3.Location{Bucket: "bucket", Endpoint: server.URL, PathStyle: true, Patience: 20 * time.Second,
		Credentials: s3.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}})
	if b.wire == nil {
		t.Fatal("a server without a proxy is not reached through the wire")
	}
	b.silence = 20 * time.Second // of a server that waits for a body that is not sent
	if !direct {
		b.wire.Close()
		b.wire = nil
	}
	return b, s
}

// TestPutStoresBodies checks that objects of all sizes are stored with their content, and that Put returns the ETag.
// Only small ones go through the wire.
func TestPutStoresBodies(t *testing.T) {
	t.Parallel()
	for _, direct := range []bool{true, false} {
		b, s := shelved(t, direct)
		for _, n := range []int{0, 1, 5000, wire.MaxBody, wire.MaxBody + 1} {
			key, body := fmt.Sprint("object", n), bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n]
			etag, err := b.PutAs(t.Context(), key, body, crc64nvme.Checksum(body), http.Header{},
				Condition{Absent: true})
			if err != nil || etag != Unquote(etagOf(body)) {
				t.Fatalf("wire %v, %d bytes: ETag %q, %v", direct, n, etag, err)
			}
			s.mu.Lock()
			if got, found := s.objects[key]; !found || !bytes.Equal(got, body) || s.puts[key] != 1 {
				t.Errorf("wire %v, %d bytes: %d bytes are stored with %d requests", direct, n, len(got), s.puts[key])
			}
			if small := s.agents[len(s.agents)-1] == "harvest"; small != (direct && n <= wire.MaxBody) {
				t.Errorf("wire %v, %d bytes: sent by %q", direct, n, s.agents)
			}
			s.mu.Unlock()
		}
	}
}

// TestPutWithLostAnswers checks that an object whose answer is lost is stored once more, with the same content. If that
// depends on a condition, the caller learns that there is an object now, and has to look at it: it may be its own. The
// wire does that as net/http does, on new connections and on those that it uses again.
// mission: A8, D1
func TestPutWithLostAnswers(t *testing.T) {
	t.Parallel()
	body := []byte("content")
	for _, direct := range []bool{true, false} {
		for _, reused := range []bool{false, true} {
			b, s := shelved(t, direct)
			put := func(key string, c Condition) (string, error) {
				return b.PutAs(t.Context(), key, body, crc64nvme.Checksum(body), http.Header{}, c)
			}
			if reused {
				_, err := put("first", Condition{})
				must(t, err)
			}
			etag, err := put("lost", Condition{})
			if err != nil || etag != Unquote(etagOf(body)) {
				t.Errorf("wire %v, reused %v: ETag %q, %v", direct, reused, etag, err)
			}
			if _, err = put("lost, absent", Condition{Absent: true}); !errors.Is(err, ErrChangedObject) {
				t.Errorf("wire %v, reused %v: a repeated conditional request: %v", direct, reused, err)
			}
			if err := b.Holds(t.Context(), "lost, absent", Condition{ETag: Unquote(etagOf(body))}); err != nil {
				t.Errorf("wire %v, reused %v: then there is another object: %v", direct, reused, err)
			}
			s.mu.Lock()
			for _, key := range []string{"lost", "lost, absent"} {
				if !slices.Equal(s.objects[key], body) || s.puts[key] != 2 {
					t.Errorf("wire %v, reused %v: %s has %q after %d requests", direct, reused, key, s.objects[key],
						s.puts[key])
				}
			}
			s.mu.Unlock()
		}
	}
}
