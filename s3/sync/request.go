package sync

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
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

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/netguard"
)

// request is one of the few frequent calls: an object or a part up or down. Other calls go through
// the SDK, which costs several times as much per call.
type request struct {
	method string
	key    string // relative to the prefix
	query  url.Values
	header http.Header
	body   []byte
	crc    *uint64 // of the body
	bare   bool    // the caller ignores the answer's header
}

// response is an answer, with the body read into buf.
type response struct {
	header http.Header
	status int
	body   []byte
}

// do sends r until it succeeds, is refused, or Patience ends. The body of the answer goes into buf,
// which is large enough or nil.
func (b *Bucket) do(ctx context.Context, r request, buf []byte) (*response, error) {
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
		if !b.retry.IsErrorRetryable(err) && !cut(err) || netguard.Refusal(err) != nil {
			return nil, b.explain(err)
		}
		delay, derr := b.retry.RetryDelay(attempt, err)
		if derr != nil || time.Now().Add(delay).After(end) {
			return nil, b.explain(err)
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

// cut reports whether a connection ended too early, or its data was damaged.
func cut(err error) bool {
	var u *url.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, errDamaged) ||
		errors.Is(err, errSilent) || errors.As(err, &u)
}

// garbled reports whether the server received other bytes than were sent, since the checksums
// differ.
func garbled(err error) bool {
	var e *serverError
	return errors.As(err, &e) && (e.code == "BadDigest" || e.code == "XAmzContentChecksumMismatch")
}

// errDamaged reports data whose checksum differs from that of the stored data.
var errDamaged = errors.Newf(errors.Unavailable, "S3 sent other bytes than were stored")

// request makes an HTTP request without body, time and signature.
func (b *Bucket) request(ctx context.Context, r *request) *http.Request {
	u := *b.base
	key := b.prefix + r.key
	u.Path = strings.TrimSuffix(u.Path, "/") + "/" + key
	if u.RawPath = strings.TrimSuffix(b.base.EscapedPath(), "/") + "/" + escapeKey(key); u.RawPath == u.Path {
		u.RawPath = "" // nothing to escape; saves another look
	}
	if len(r.query) > 0 {
		u.RawQuery = strings.ReplaceAll(r.query.Encode(), "+", "%20")
	}
	host := u.Host // default ports are neither sent nor signed
	switch u.Scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	req := (&http.Request{Method: r.method, URL: &u, Host: host, Header: make(http.Header, 16),
		ContentLength: int64(len(r.body)), ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
	for k, v := range r.header {
		req.Header[k] = v
	}
	if r.crc != nil {
		req.Header[checksumHeader] = []string{encodeCRC(*r.crc)}
	}
	req.Header["X-Amz-Content-Sha256"] = []string{unsigned}
	return req
}

func (b *Bucket) once(ctx context.Context, r request, buf []byte) (*response, error) {
	creds, err := b.creds.Retrieve(ctx)
	if err != nil {
		return nil, noCredentials(err)
	}
	// A server that accepts a request and never answers counts as unavailable.
	ctx, cancel := context.WithTimeoutCause(ctx, b.silence+time.Duration(len(r.body)+len(buf))*20*time.Microsecond,
		errSilent)
	defer cancel()
	req := b.request(ctx, &r)
	again := func() io.ReadCloser { return http.NoBody }
	switch n := int64(len(r.body)); {
	case weight(n) >= mapFrom:
		sent := &lease{b: r.body}
		defer sent.end()
		again = func() io.ReadCloser { return &leased{lease: sent} }
	case n > 0: // net/http sends bytes in memory and the header in one write
		again = func() io.ReadCloser { return io.NopCloser(bytes.NewReader(r.body)) }
	}
	if r.body != nil {
		req.Body, req.GetBody = again(), func() (io.ReadCloser, error) { return again(), nil }
	}
	if creds.HasKeys() {
		b.signer.sign(req, creds, b.region, time.Now().Add(time.Duration(b.skew.Load())))
	}
	send := b.http.Do
	if r.bare && r.body == nil && b.wire != nil && ordinaryHeader(req.Header) {
		send = b.wire.do
	}
	res, err := send(req)
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
	out := &response{header: res.Header, status: res.StatusCode}
	if r.method == http.MethodHead {
		return out, nil
	}
	if buf == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20))
		return out, err
	}
	if res.ContentLength > int64(len(buf)) {
		return nil, errChangedObject
	}
	n, err := io.ReadFull(res.Body, buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
		if res.ContentLength >= 0 && int64(n) < res.ContentLength {
			err = io.ErrUnexpectedEOF
		}
	}
	out.body = buf[:n]
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

// errChangedObject reports an object that differs from the one planned for.
var errChangedObject = errors.Newf(errors.Conflict, "somebody else changed it in the bucket meanwhile")

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

func encodeCRC(crc uint64) string {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], crc)
	return base64.StdEncoding.EncodeToString(raw[:])
}

func decodeCRC(text string) (uint64, bool) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(raw), true
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

// put stores an object and returns its ETag.
func (b *Bucket) put(ctx context.Context, key string, body []byte, crc uint64, header http.Header) (string, error) {
	res, err := b.send(ctx, request{method: http.MethodPut, key: key, header: header, body: body, crc: &crc})
	if err != nil {
		return "", err
	}
	return unquote(res.header.Get("ETag")), nil
}

// get reads length bytes of an object into buf, beginning at offset. If etag is not "", the object
// must have it. A whole object is checked against the server's checksum, if there is one.
func (b *Bucket) get(ctx context.Context, key, etag string, offset, length, size int64, buf []byte) (*response, error) {
	return b.getKnown(ctx, key, etag, offset, length, size, buf, nil)
}

// getKnown is get for bytes with a known checksum: the server need not look one up, and the bytes
// are checked only once. The answer may lack its header.
func (b *Bucket) getKnown(ctx context.Context, key, etag string, offset, length, size int64, buf []byte,
	known *uint64) (*response, error) {
	r := request{method: http.MethodGet, key: key, header: make(http.Header, 2), bare: known != nil}
	asked := known == nil && length == size // servers have no checksum of a range
	if asked {
		r.header["X-Amz-Checksum-Mode"] = []string{"ENABLED"}
	}
	if etag != "" {
		r.header["If-Match"] = []string{`"` + etag + `"`}
	}
	if length == 0 && size > 0 {
		return &response{header: http.Header{}}, nil
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
		if int64(len(res.body)) != length {
			return nil, errChangedObject
		}
		var damaged error
		switch {
		case known != nil && *known != crc64nvme.Checksum(res.body):
			damaged = errDamaged
		case asked:
			damaged = b.sound(ctx, key, size, res.header, bytes.NewReader(res.body))
		}
		if !errors.Is(damaged, errDamaged) {
			return res, damaged
		}
		if attempt == 3 || time.Now().After(end) {
			return nil, errDamaged
		}
	}
}

// head requests the headers of an object. It returns NotFound if there is none.
func (b *Bucket) head(ctx context.Context, key string) (*response, error) {
	return b.do(ctx, request{method: http.MethodHead, key: key,
		header: http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}}, nil)
}

func unquote(etag string) string { return strings.Trim(strings.TrimPrefix(etag, "W/"), `"`) }
