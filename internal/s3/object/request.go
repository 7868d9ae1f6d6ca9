package object

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	smithy "github.com/aws/smithy-go"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/object/wire"
)

// Request is one of the few frequent calls: an object or a part up or down. Other calls go through
// the SDK, which costs several times as much per call.
type Request struct {
	Method string
	Key    string // relative to the prefix
	Query  url.Values
	header http.Header
	Body   []byte
	Crc    *uint64 // of the body
	bare   bool    // the caller ignores the answer's header
}

// response is an answer, with the body read into buf.
type response struct {
	Header http.Header
	status int
	Body   []byte
}

// do sends r until it succeeds, is refused, or Patience ends. The body of the answer goes into buf,
// which is large enough or nil.
func (b *Bucket) do(ctx context.Context, r Request, buf []byte) (*response, error) {
	defer b.waits.begin()()
	end := time.Now().Add(b.loc.Patience)
	for attempt := 1; ; attempt++ {
		res, err := b.once(ctx, r, buf)
		if err == nil {
			return res, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if b.corrected(err) && attempt < 3 || garbled(err) && attempt < 5 {
			continue
		}
		if !b.retry.IsErrorRetryable(err) && !Cut(err) || netguard.Refusal(err) != nil {
			return nil, b.Explain(err)
		}
		delay, derr := b.retry.RetryDelay(attempt, err)
		if derr != nil || time.Now().Add(delay).After(end) {
			return nil, b.Explain(err)
		}
		if err := wait(ctx, delay); err != nil {
			return nil, err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// Cut reports whether a connection ended too early, or its data was damaged.
func Cut(err error) bool {
	var u *url.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, ErrDamaged) ||
		errors.Is(err, errSilent) || errors.As(err, &u)
}

// garbled reports whether the server received other bytes than were sent, since the checksums
// differ.
func garbled(err error) bool {
	var e *serverError
	return errors.As(err, &e) && (e.code == "BadDigest" || e.code == "XAmzContentChecksumMismatch")
}

// ErrDamaged reports data whose checksum differs from that of the stored data.
var ErrDamaged = errors.Newf(errors.Unavailable, "the content from S3 differs from the stored content")

// unsigned replaces the hash of the body in a signature. Bodies are protected by their CRC, which is
// signed, and by TLS.
const unsigned = "UNSIGNED-PAYLOAD"

// request makes an HTTP request without body, time and signature.
func (b *Bucket) request(ctx context.Context, r *Request) *http.Request {
	u := *b.base
	key := b.prefix + r.Key
	u.Path = strings.TrimSuffix(u.Path, "/") + "/" + key
	if u.RawPath = strings.TrimSuffix(b.base.EscapedPath(), "/") + "/" + escapeKey(key); u.RawPath == u.Path {
		u.RawPath = "" // nothing to escape; saves another look
	}
	if len(r.Query) > 0 {
		u.RawQuery = strings.ReplaceAll(r.Query.Encode(), "+", "%20")
	}
	req := (&http.Request{Method: r.Method, URL: &u, Host: bareHost(&u), Header: make(http.Header, len(r.header)+5),
		ContentLength: int64(len(r.Body)), ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
	for k, v := range r.header {
		req.Header[k] = v
	}
	if r.Crc != nil {
		req.Header[ChecksumHeader] = []string{encodeCRC(*r.Crc)}
	}
	req.Header["X-Amz-Content-Sha256"] = []string{unsigned}
	return req
}

func (b *Bucket) once(ctx context.Context, r Request, buf []byte) (*response, error) {
	creds, err := b.creds.Retrieve(ctx)
	if err != nil {
		return nil, noCredentials(err)
	}
	// A server that accepts a request and never answers counts as unavailable.
	ctx, cancel := context.WithTimeoutCause(ctx, b.silence+time.Duration(len(r.Body)+len(buf))*20*time.Microsecond,
		errSilent)
	defer cancel()
	req := b.request(ctx, &r)
	if creds.HasKeys() {
		now := time.Now().Add(time.Duration(b.skew.Load()))
		if err := b.signer.SignHTTP(ctx, creds, req, unsigned, "s3", b.region, now); err != nil {
			return nil, err
		}
	}
	send := b.http.Do
	var again func() io.ReadCloser
	if r.Body != nil {
		again = func() io.ReadCloser { return http.NoBody }
		switch n := int64(len(r.Body)); {
		case buffer.Weight(n) >= buffer.MapFrom:
			sent := &lease{b: r.Body}
			defer sent.end()
			again = func() io.ReadCloser { return &leased{lease: sent} }
		case n > 0: // net/http sends bytes in memory and the header in one write
			again = func() io.ReadCloser { return io.NopCloser(bytes.NewReader(r.Body)) }
		}
	}
	if r.bare && len(r.Body) <= wire.MaxBody && b.wire != nil && wire.OrdinaryHeader(req.Header) {
		send = func(req *http.Request) (*http.Response, error) { return b.wire.Do(req, r.Body) }
	} else if again != nil {
		req.Body, req.GetBody = again(), func() (io.ReadCloser, error) { return again(), nil }
	}
	res, err := b.follow(req, send, again)
	if err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			return nil, errSilent
		}
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 && res.StatusCode != http.StatusNotModified {
		return nil, refusal(res)
	}
	out := &response{Header: res.Header, status: res.StatusCode}
	if r.Method == http.MethodHead {
		return out, nil
	}
	if buf == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20))
		return out, err
	}
	if res.ContentLength > int64(len(buf)) {
		return nil, ErrChangedObject
	}
	n, err := io.ReadFull(res.Body, buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
		if res.ContentLength >= 0 && int64(n) < res.ContentLength {
			err = io.ErrUnexpectedEOF
		}
	}
	out.Body = buf[:n]
	return out, err
}

// lease lends a body for as long as its caller waits. A transport may read on after a server has
// answered early, when the memory holds another body or is freed.
type lease struct {
	mu    sync.Mutex
	b     []byte // guarded by mu
	ended bool   // guarded by mu
}

// end makes all later reads fail.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b, l.ended = nil, true
}

// leased reads a lease from its beginning.
type leased struct {
	*lease
	at int
}

// Read implements io.Reader.
func (l *leased) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended:
		return 0, io.ErrClosedPipe
	case l.at == len(l.b):
		return 0, io.EOF
	}
	n := copy(p, l.b[l.at:])
	l.at += n
	return n, nil
}

// Close implements io.Closer.
func (l *leased) Close() error { return nil }

// ErrChangedObject reports an object that differs from the one planned for.
var ErrChangedObject = errors.Newf(errors.Conflict, "another program changed it in the bucket meanwhile")

// errSilent reports a server that does not answer.
var errSilent = errors.Newf(errors.Unavailable, "S3 does not answer")

// escapeKey encodes a key as S3's signatures require: everything but unreserved characters and
// slashes.
func escapeKey(key string) string {
	i := 0
	for i < len(key) && unreserved(key[i]) {
		i++
	}
	if i == len(key) {
		return key
	}
	var b strings.Builder
	b.WriteString(key[:i])
	for ; i < len(key); i++ {
		if c := key[i]; unreserved(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' ||
		c == '~' || c == '/'
}

// serverError is an error answer of a server.
type serverError struct {
	status int
	code   string
	text   string
	region string // the bucket's region, according to the server
	date   time.Time
}

func (e *serverError) Error() string {
	return fmt.Sprintf("S3 answered %d %s: %s", e.status, e.code, e.text)
}

// HTTPStatusCode and the other methods are the interface of the SDK's retry rules.
func (e *serverError) HTTPStatusCode() int           { return e.status }
func (e *serverError) ErrorCode() string             { return e.code }
func (e *serverError) ErrorMessage() string          { return e.text }
func (e *serverError) ErrorFault() smithy.ErrorFault { return smithy.FaultUnknown }

func refusal(res *http.Response) error {
	e := &serverError{status: res.StatusCode, code: http.StatusText(res.StatusCode),
		region: res.Header.Get("X-Amz-Bucket-Region")}
	e.date, _ = http.ParseTime(res.Header.Get("Date"))
	body, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	var doc struct{ Code, Message, Region string }
	if xml.Unmarshal(body, &doc) == nil && doc.Code != "" {
		e.code, e.text = doc.Code, doc.Message
		if doc.Region != "" {
			e.region = doc.Region
		}
	}
	return e
}

// corrected detects a clock that is off, and corrects for it.
func (b *Bucket) corrected(err error) bool {
	var e *serverError
	if !errors.As(err, &e) || e.date.IsZero() {
		return false
	}
	off := time.Until(e.date) - time.Duration(b.skew.Load())
	// The error of a HEAD has no body. S3 tolerates a skew of 15 minutes.
	if wordless := e.status == http.StatusForbidden && e.text == "" &&
		off.Abs() > 10*time.Minute; e.code != "RequestTimeTooSkewed" && !wordless {
		return false
	}
	b.skew.Store(int64(time.Until(e.date)))
	return true
}

// Put stores an object and returns its ETag.
func (b *Bucket) Put(ctx context.Context, key string, body []byte, crc uint64, header http.Header) (string, error) {
	res, err := b.Send(ctx, Request{Method: http.MethodPut, Key: key, header: header, Body: body, Crc: &crc,
		bare: true})
	if err != nil {
		return "", err
	}
	return b.Tagged(res.Header.Get("ETag"))
}

// Tagged returns an ETag of an answer without its quotes, or an error if there is none.
func (b *Bucket) Tagged(etag string) (string, error) {
	if etag = Unquote(etag); etag == "" {
		return "", noETags(b.base.Host)
	}
	return etag, nil
}

// Get reads length bytes of an object into buf, beginning at offset. If etag is not "", the object
// must have it. A whole object is checked against the server's checksum, if there is one.
func (b *Bucket) Get(ctx context.Context, key, etag string, offset, length, size int64, buf []byte) (*response, error) {
	return b.GetKnown(ctx, key, etag, offset, length, size, buf, nil)
}

// GetKnown is get for bytes with a known checksum: the server need not look one up, and the bytes
// are checked only once. The answer may lack its header.
func (b *Bucket) GetKnown(ctx context.Context, key, etag string, offset, length, size int64, buf []byte,
	known *uint64) (*response, error) {
	r := Request{Method: http.MethodGet, Key: key, header: make(http.Header, 2), bare: known != nil}
	asked := known == nil && length == size // servers have no checksum of a range
	if asked {
		r.header["X-Amz-Checksum-Mode"] = []string{"ENABLED"}
	}
	if etag != "" {
		r.header["If-Match"] = []string{`"` + etag + `"`}
	}
	if length == 0 && size > 0 {
		return &response{Header: http.Header{}}, nil
	}
	if length != size {
		r.header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-"+strconv.FormatInt(offset+length-1, 10))
	}
	end := time.Now().Add(b.loc.Patience)
	for attempt := 1; ; attempt++ {
		res, err := b.do(ctx, r, buf[:length])
		if err != nil {
			return nil, err
		}
		if int64(len(res.Body)) != length {
			return nil, ErrChangedObject
		}
		var damaged error
		switch {
		case known != nil && *known != crc64nvme.Checksum(res.Body):
			damaged = ErrDamaged
		case asked:
			damaged = b.Sound(ctx, key, size, res.Header, bytes.NewReader(res.Body))
		}
		if !errors.Is(damaged, ErrDamaged) {
			return res, damaged
		}
		if attempt == 3 || time.Now().After(end) {
			return nil, ErrDamaged
		}
	}
}

// Head requests the headers of an object. It returns NotFound if the object does not exist.
func (b *Bucket) Head(ctx context.Context, key string) (*response, error) {
	return b.do(ctx, Request{Method: http.MethodHead, Key: key,
		header: http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}}, nil)
}

// Unquote returns an ETag of a header without its quotes and without the mark of a weak one.
func Unquote(etag string) string { return strings.Trim(strings.TrimPrefix(etag, "W/"), `"`) }
