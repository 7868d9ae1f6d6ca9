package volsync

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
)

// strictServer is an S3 server with one process and one bucket. It keeps objects in memory under any key, checks the
// conditions of writes and deletions, and can be made to ignore them. It implements the requests of syncs.
type strictServer struct {
	mu      sync.Mutex
	objects map[string]*strictObject // guarded by mu
	uploads map[string]*strictUpload // guarded by mu
	next    int                      // guarded by mu
	ahead   time.Duration            // guarded by mu; of the server's clock
	lax     bool                     // conditions are ignored
	picky   bool                     // a deletion whose condition names an object fails if there is none
	hiding  bool                     // lists leave out the keys beneath an object, as MinIO's do
}

type strictObject struct {
	body   []byte
	etag   string
	header http.Header
	at     time.Time
}

type strictUpload struct {
	key    string
	header http.Header
	parts  map[int][]byte
}

// strictBucket opens a place on a new strict server.
func strictBucket(t *testing.T) *object.Bucket {
	t.Helper()
	return openBucket(t, strictLocation(t, &strictServer{}))
}

func strictLocation(t *testing.T, s *strictServer) s3.Location {
	t.Helper()
	loc := strictPlace(s)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	loc.Endpoint = server.URL
	return loc
}

// strictPlace is a place on a server that has nothing yet, without its address.
func strictPlace(s *strictServer) s3.Location {
	s.objects, s.uploads = map[string]*strictObject{}, map[string]*strictUpload{}
	return s3.Location{Bucket: "strict", Prefix: "work", PathStyle: true, Region: "us-east-1",
		Patience:    20 * time.Second,
		Credentials: s3.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}}
}

// ServeHTTP implements http.Handler.
func (s *strictServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	key := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/strict"), "/")
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method == http.MethodGet && q.Has("uploads"), r.Method == http.MethodGet && q.Has("uploadId"):
		answerXML(w, struct{ XMLName xml.Name }{xml.Name{Local: "ListMultipartUploadsResult"}})
	case r.Method == http.MethodGet && q.Has("tagging"):
		s.tagging(w, key)
	case r.Method == http.MethodGet && key == "":
		s.list(w, q)
	case r.Method == http.MethodPost && q.Has("delete"):
		s.deleteAll(w, body)
	case r.Method == http.MethodPost && q.Has("uploads"):
		s.next++
		id := strconv.Itoa(s.next)
		s.uploads[id] = &strictUpload{key, keptFields(r.Header), map[int][]byte{}}
		answerXML(w, struct {
			XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
			UploadID string   `xml:"UploadId"`
		}{UploadID: id})
	case r.Method == http.MethodPut && q.Has("uploadId"):
		n, _ := strconv.Atoi(q.Get("partNumber"))
		if u := s.uploads[q.Get("uploadId")]; u != nil {
			u.parts[n] = body
			w.Header().Set("ETag", quoted(body))
			return
		}
		xmlFault(w, http.StatusNotFound, "NoSuchUpload")
	case r.Method == http.MethodPost && q.Has("uploadId"):
		s.complete(w, r, q.Get("uploadId"))
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		delete(s.uploads, q.Get("uploadId"))
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPut:
		s.put(w, r, key, body)
	case r.Method == http.MethodDelete:
		o, match := s.objects[key], r.Header.Get("If-Match")
		if !s.lax && match != "" && (o != nil && match != o.etag || o == nil && s.picky) {
			xmlFault(w, http.StatusPreconditionFailed, "PreconditionFailed")
			return
		}
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	default:
		s.get(w, r, key)
	}
}

func answerXML(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(v)
}

func quoted(body []byte) string {
	sum := md5.Sum(body)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// keptFields are the fields of a request that an object keeps.
func keptFields(h http.Header) http.Header {
	out := http.Header{}
	for name, v := range h {
		switch {
		case strings.HasPrefix(name, "X-Amz-Meta-"), name == object.ChecksumHeader, name == "X-Amz-Tagging",
			slices.Contains([]string{"Content-Type", "Cache-Control", "Content-Disposition", "Content-Encoding",
				"Content-Language", "Expires"}, name):
			out[name] = v
		}
	}
	return out
}

// allowed reports whether the conditions of a write hold, and answers if not.
func (s *strictServer) allowed(w http.ResponseWriter, r *http.Request, key string) bool {
	o := s.objects[key]
	match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	switch {
	case s.lax:
	case match != "" && o == nil:
		return !xmlFault(w, http.StatusNotFound, "NoSuchKey")
	case match != "" && match != o.etag, none == "*" && o != nil:
		return !xmlFault(w, http.StatusPreconditionFailed, "PreconditionFailed")
	}
	return true
}

func (s *strictServer) put(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	if !s.allowed(w, r, key) {
		return
	}
	o := &strictObject{body, quoted(body), keptFields(r.Header), time.Now().Add(s.ahead)}
	if source := r.Header.Get("X-Amz-Copy-Source"); source != "" {
		path, _ := url.PathUnescape(source)
		from := s.objects[strings.TrimPrefix(strings.TrimPrefix(path, "/"), "strict/")]
		if match := r.Header.Get("X-Amz-Copy-Source-If-Match"); from == nil || match != "" && match != from.etag {
			xmlFault(w, http.StatusPreconditionFailed, "PreconditionFailed")
			return
		}
		o.body, o.etag = from.body, from.etag
		if r.Header.Get("X-Amz-Metadata-Directive") != "REPLACE" {
			o.header = from.header
		} else if tags := from.header["X-Amz-Tagging"]; tags != nil {
			o.header["X-Amz-Tagging"] = tags
		}
		answerXML(w, struct {
			XMLName xml.Name `xml:"CopyObjectResult"`
			ETag    string
		}{ETag: o.etag})
	}
	w.Header().Set("ETag", o.etag)
	s.objects[key] = o
}

func (s *strictServer) complete(w http.ResponseWriter, r *http.Request, id string) {
	u := s.uploads[id]
	if u == nil {
		xmlFault(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	if !s.allowed(w, r, u.key) {
		return
	}
	delete(s.uploads, id)
	var body []byte
	for n := 1; u.parts[n] != nil; n++ {
		body = append(body, u.parts[n]...)
	}
	etag := strings.TrimSuffix(quoted(body), `"`) + fmt.Sprintf(`-%d"`, len(u.parts))
	s.objects[u.key] = &strictObject{body, etag, u.header, time.Now().Add(s.ahead)}
	answerXML(w, struct {
		XMLName xml.Name `xml:"CompleteMultipartUploadResult"`
		ETag    string
	}{ETag: etag})
}

func (s *strictServer) get(w http.ResponseWriter, r *http.Request, key string) {
	o := s.objects[key]
	if o == nil {
		xmlFault(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	if match := r.Header.Get("If-Match"); match != "" && match != o.etag {
		xmlFault(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	for name, v := range o.header {
		if name != "X-Amz-Tagging" {
			w.Header()[name] = v
		}
	}
	if tags := o.header.Get("X-Amz-Tagging"); tags != "" {
		w.Header().Set("X-Amz-Tagging-Count", strconv.Itoa(strings.Count(tags, "&")+1))
	}
	w.Header().Set("ETag", o.etag)
	if r.Header.Get("Range") == "" {
		w.Header().Set("Content-Length", strconv.Itoa(len(o.body)))
	}
	http.ServeContent(w, r, "", o.at, strings.NewReader(string(o.body)))
}

func (s *strictServer) tagging(w http.ResponseWriter, key string) {
	type tag struct{ Key, Value string }
	var out struct {
		XMLName xml.Name `xml:"Tagging"`
		TagSet  struct{ Tag []tag }
	}
	if o := s.objects[key]; o != nil {
		tags, _ := url.ParseQuery(o.header.Get("X-Amz-Tagging"))
		for k, v := range tags {
			out.TagSet.Tag = append(out.TagSet.Tag, tag{k, v[0]})
		}
	}
	answerXML(w, out)
}

type listedObject struct {
	Key, ETag    string
	Size         int
	LastModified string
}

func (s *strictServer) list(w http.ResponseWriter, q url.Values) {
	out := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		EncodingType          string
		Contents              []listedObject
	}{EncodingType: "url"}
	keys := make([]string, 0, len(s.objects))
	for key := range s.objects {
		if strings.HasPrefix(key, q.Get("prefix")) && key > q.Get("continuation-token") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if s.hiding {
		keys = slices.DeleteFunc(keys, func(key string) bool {
			for i, c := range key {
				if c == '/' && s.objects[key[:i]] != nil {
					return true
				}
			}
			return false
		})
	}
	limit := 1000
	if n, err := strconv.Atoi(q.Get("max-keys")); err == nil {
		limit = min(limit, n)
	}
	if len(keys) > limit {
		keys = keys[:limit]
		out.IsTruncated, out.NextContinuationToken = true, keys[limit-1]
	}
	for _, key := range keys {
		o := s.objects[key]
		out.Contents = append(out.Contents, listedObject{url.QueryEscape(key), o.etag, len(o.body),
			o.at.UTC().Format(time.RFC3339)})
	}
	answerXML(w, out)
}

func (s *strictServer) deleteAll(w http.ResponseWriter, body []byte) {
	var in struct {
		Object []struct{ Key, ETag string }
	}
	_ = xml.Unmarshal(body, &in)
	type refused struct{ Key, Code string }
	var out struct {
		XMLName xml.Name `xml:"DeleteResult"`
		Error   []refused
	}
	for _, d := range in.Object {
		if o := s.objects[d.Key]; o != nil && !s.lax && d.ETag != "" && d.ETag != o.etag {
			out.Error = append(out.Error, refused{d.Key, "PreconditionFailed"})
			continue
		}
		delete(s.objects, d.Key)
	}
	answerXML(w, out)
}
