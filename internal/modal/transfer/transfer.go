// Package transfer moves the content of files over HTTP: clients of Modal's protocol get URLs for it. A URL has a
// signed ticket, which says what may be done with it, for how long, and on whose behalf.
package transfer

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/blobs"
)

// BlockSize is the size of the blocks in which files of volumes are moved.
const BlockSize = 8 << 20

const (
	prefix   = "/transfer/"
	life     = 6 * time.Hour // of a URL
	patience = 2 * time.Minute
	most     = 64      // requests at a time
	longest  = 1 << 20 // bytes of a description of parts
)

// What a ticket allows.
const (
	PutPart  = "part"     // PUT of one part of an upload
	Complete = "complete" // POST with the parts of an upload
	GetBlob  = "blob"     // GET of a blob
	PutBlock = "block"    // PUT of a block for a file of a volume
	GetRange = "range"    // GET of a part of a file of a volume
)

// methods are the HTTP methods of tickets.
var methods = map[string]string{PutPart: http.MethodPut, Complete: http.MethodPost, GetBlob: http.MethodGet,
	PutBlock: http.MethodPut, GetRange: http.MethodGet}

// Ticket is the content of a URL. The caller of URL sets all fields that its Op needs, except Expires.
type Ticket struct {
	Account string `json:"a"`
	Key     string `json:"k"` // id of the key that made it; the URL ends with that key
	Op      string `json:"o"`
	Sum     string `json:"s,omitempty"` // of a blob or block
	Upload  string `json:"u,omitempty"`
	Part    int    `json:"n,omitempty"`
	Volume  string `json:"v,omitempty"`
	Path    string `json:"p,omitempty"`
	Stamp   string `json:"t,omitempty"` // of the file when the URL was made
	Offset  int64  `json:"f,omitempty"`
	Length  int64  `json:"l,omitempty"`
	Expires int64  `json:"e"`
}

// Options of a Server. All are required.
type Options struct {
	Key    []byte // signs tickets
	Blobs  *blobs.Store
	Blocks *blobs.Store
	// Admit checks the key of a ticket, and returns a context that ends with it.
	Admit func(ctx context.Context, account, key string) (context.Context, context.CancelFunc, error)
	// Range reads the part of a file that a ticket names, at most BlockSize bytes.
	Range func(ctx context.Context, t Ticket) ([]byte, error)
	// Done is called at the end of each request.
	Done func(ctx context.Context, t Ticket, address string, err error)
}

// Server serves the URLs. It is an http.Handler.
type Server struct {
	opts  Options
	slots chan struct{}
}

// New returns a Server.
func New(opts Options) *Server { return &Server{opts: opts, slots: make(chan struct{}, most)} }

// URL returns a URL for a ticket, at the server with the address base, such as "http://127.0.0.1:7783".
func (s *Server) URL(base string, t Ticket) (string, error) {
	t.Expires = time.Now().Add(life).Unix()
	text, err := json.Marshal(t)
	if err != nil {
		return "", errors.Wrapf(err, "encode a URL")
	}
	body := base64.RawURLEncoding.EncodeToString(text)
	return strings.TrimRight(base, "/") + prefix + body + "." + s.seal(body), nil
}

func (s *Server) seal(text string) string {
	mac := hmac.New(sha256.New, s.opts.Key)
	mac.Write([]byte("transfer " + text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// ticket checks the path of a URL.
func (s *Server) ticket(path string) (t Ticket, err error) {
	body, mac, _ := strings.Cut(strings.TrimPrefix(path, prefix), ".")
	bad := errors.Newf(errors.Denied, "the URL is invalid, or has expired")
	if !hmac.Equal([]byte(s.seal(body)), []byte(mac)) {
		return t, bad
	}
	text, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil || json.Unmarshal(text, &t) != nil || time.Now().After(time.Unix(t.Expires, 0)) {
		return Ticket{}, bad
	}
	return t, nil
}

// statusOf maps kinds of errors to HTTP statuses. Clients try again after 503.
var statusOf = map[errors.Kind]int{
	errors.Invalid: http.StatusBadRequest, errors.Unauthenticated: http.StatusUnauthorized,
	errors.Denied: http.StatusForbidden, errors.NotFound: http.StatusNotFound, errors.Conflict: http.StatusConflict,
	errors.Exhausted: http.StatusInsufficientStorage, errors.Unavailable: http.StatusServiceUnavailable,
	errors.Canceled: 499, errors.Timeout: http.StatusRequestTimeout,
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, prefix) {
		http.NotFound(w, r)
		return
	}
	t, err := s.ticket(r.URL.Path)
	if err == nil {
		err = s.serve(w, r, t)
	}
	s.opts.Done(r.Context(), t, r.RemoteAddr, err)
	if err == nil {
		return
	}
	status := statusOf[errors.KindOf(err)]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Connection", "close") // the rest of a body is not read
	http.Error(w, errors.Message(err), status)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, t Ticket) error {
	if methods[t.Op] != r.Method {
		return errors.Newf(errors.NotFound, "this URL is not for %.20q", r.Method)
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	ctx, stop, err := s.opts.Admit(r.Context(), t.Account, t.Key)
	if err != nil {
		return err
	}
	defer stop()
	body := idle{ctx, http.NewResponseController(w), r.Body}
	defer context.AfterFunc(ctx, body.end)()
	switch t.Op {
	case PutPart:
		etag, err := s.opts.Blobs.WritePart(ctx, t.Account, t.Upload, t.Part, body)
		if err == nil {
			w.Header().Set("ETag", `"`+etag+`"`)
		}
		return err
	case Complete:
		return s.complete(ctx, w, body, t)
	case PutBlock:
		err := s.opts.Blocks.Put(ctx, t.Account, t.Sum, BlockSize, body)
		if err == nil {
			_, err = io.WriteString(w, t.Sum)
		}
		return err
	case GetBlob:
		f, err := s.opts.Blobs.Open(t.Account, t.Sum)
		if err != nil {
			return err
		}
		defer f.Close()
		defer context.AfterFunc(ctx, body.cut)()
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r.WithContext(ctx), "", time.Time{}, f)
		return nil
	}
	data, err := s.opts.Range(ctx, t)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_ = body.out.SetWriteDeadline(time.Now().Add(patience)) // without it, a slow client keeps the data in memory
	defer context.AfterFunc(ctx, body.cut)()
	_, _ = w.Write(data) // the client has gone
	return nil
}

// complete ends an upload in parts, with S3's description of the parts.
func (s *Server) complete(ctx context.Context, w http.ResponseWriter, body io.Reader, t Ticket) error {
	var parts struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Parts   []struct {
			PartNumber int
			ETag       string
		} `xml:"Part"`
	}
	if err := xml.NewDecoder(io.LimitReader(body, longest)).Decode(&parts); err != nil {
		return errors.Explainf(err, errors.Invalid, "the body does not list the parts of the upload")
	}
	var etags []string
	for i, p := range parts.Parts {
		if p.PartNumber != i+1 {
			return errors.Newf(errors.Invalid, "the parts are not listed in their order")
		}
		etags = append(etags, strings.Trim(p.ETag, `"`))
	}
	whole, err := s.opts.Blobs.Complete(ctx, t.Account, t.Upload, t.Sum, etags)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/xml")
	_, err = io.WriteString(w,
		"<CompleteMultipartUploadResult><ETag>\""+whole+"\"</ETag></CompleteMultipartUploadResult>\n")
	return err
}

// idle reads a body whose client may be slow, but not silent. Reading ends with ctx.
type idle struct {
	ctx  context.Context
	out  *http.ResponseController
	body io.Reader
}

func (i idle) Read(p []byte) (int, error) {
	_ = i.out.SetReadDeadline(time.Now().Add(patience)) // every server of net/http can
	if i.ctx.Err() != nil {                             // after the deadline was set: end sets another one
		return 0, context.Cause(i.ctx)
	}
	n, err := i.body.Read(p)
	if err != nil && err != io.EOF && i.ctx.Err() != nil {
		err = context.Cause(i.ctx)
	}
	return n, err
}

// end makes reads fail, including one in progress.
func (i idle) end() { _ = i.out.SetReadDeadline(time.Unix(1, 0)) }

// cut makes writes fail, including one in progress.
func (i idle) cut() { _ = i.out.SetWriteDeadline(time.Unix(1, 0)) }
