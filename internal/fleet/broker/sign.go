package broker

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/binding"
)

// The names of AWS's signatures, version 4:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
const (
	algorithm     = "AWS4-HMAC-SHA256"
	algorithm4A   = "AWS4-ECDSA-P256-SHA256"
	contentHash   = "X-Amz-Content-Sha256"
	unsignedBody  = "UNSIGNED-PAYLOAD"
	streamed      = "STREAMING-"
	streamedPlain = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	emptyHash     = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// The keys of a pair of AWS end with these, after the same beginning.
const (
	keyID      = "ACCESS_KEY_ID"
	keySecret  = "SECRET_ACCESS_KEY"
	keySession = "SESSION_TOKEN"
)

// signature is a signature of AWS, version 4. The SDK's signer does not serve here: it chooses the headers and the
// encoding of the path itself, and those of other clients differ.
type signature struct {
	key                   string // id of the access key
	date, region, service string
	time                  string
	headers               []string // that are signed, in lower case
	value                 string   // in hexadecimal digits
	presigned             bool     // it is in the query

	payload string                // hash of the body, or the word for none
	path    func(*url.URL) string // in the form that is signed
	secret  string                // the key to sign with, after verify
}

// pathForms are the forms of a path that clients sign: S3's have each part encoded once, those of other services twice,
// and with or without dot segments. Servers expect the form that their clients sign.
var pathForms = []func(*url.URL) string{
	wirePath,
	func(u *url.URL) string { return encode(cmp.Or(u.Path, "/"), true) },
	func(u *url.URL) string { return encode(wirePath(u), true) },
	func(u *url.URL) string {
		clean := path.Clean(wirePath(u))
		if strings.HasSuffix(wirePath(u), "/") && clean != "/" {
			clean += "/"
		}
		return encode(clean, true)
	},
}

// wirePath returns the path as it is sent.
func wirePath(u *url.URL) string { return cmp.Or(u.EscapedPath(), "/") }

// verify checks the signature of a request that has one with a placeholder among the credentials, and refuses other
// uses of credentials that only sign. It returns the credentials that may be used.
func (e *exchange) verify(r *http.Request, lent []Credential) ([]Credential, *refusal) {
	s, ok := signatureOf(r)
	var prefix, secret string
	for _, c := range lent {
		switch {
		case !strings.HasSuffix(c.Key, keyID):
			continue
		case ok && s.key == c.Placeholder:
			if refused := e.verifyWith(r, s, c); refused != nil {
				return nil, refused
			}
			prefix, secret, e.signature = strings.TrimSuffix(c.Key, keyID), c.Secret, s
		default:
			if why := cannotSign(r, c.Placeholder); why != "" {
				return nil, &refusal{Credential: c, why: why}
			}
		}
	}
	var used []Credential
	for _, c := range lent {
		switch {
		case !e.onlySigns(c), e.signature != nil && c.Secret == secret &&
			(c.Key == prefix+keyID || c.Key == prefix+keySession):
			used = append(used, c)
		case c.Binding.Elsewhere != binding.Pass:
			return nil, &refusal{Credential: c, end: c.Binding.Elsewhere == binding.End, why: c.Key +
				" of the secret " +
				c.Secret + " is used only in signatures here, and the request has none that it belongs to"}
		}
	}
	return used, nil
}

// onlySigns reports whether the host takes a credential in signatures only. Below domains such as amazonaws.com are
// servers of anybody, who could read a value.
func (e *exchange) onlySigns(c Credential) bool {
	place, _ := c.Binding.Place(e.s.host.Name, e.s.port, !e.s.secure())
	return place.Inject.Form == binding.SigV4
}

// cannotSign returns why the signature with the id of a key cannot be made again, or "" if there is none.
func cannotSign(r *http.Request, id string) string {
	auth, query := r.Header.Get("Authorization"), r.URL.Query()
	scheme, rest, _ := strings.Cut(auth, " ")
	in := func(text string) bool { return strings.Contains(text, id) }
	switch {
	case scheme == algorithm4A && in(rest) || query.Get("X-Amz-Algorithm") == algorithm4A && in(query.Get(inQuery)):
		return "a signature of version 4A cannot be made again: set AWS_AUTH_SCHEME_PREFERENCE=sigv4, and use an " +
			"endpoint of one region"
	case scheme == "AWS" && in(rest) || in(query.Get("AWSAccessKeyId")):
		return "a signature of version 2 cannot be made again: set the client's signature version to 4, such as " +
			"s3.signature_version = s3v4"
	case scheme == algorithm && in(rest) || in(query.Get(inQuery)):
		return "the signature of the request cannot be read"
	}
	return ""
}

// refuseSigned answers a request that may have a signature as its client reads errors: in XML as S3 or another service
// does, or in JSON. Clients of AWS do not show text.
func refuseSigned(w http.ResponseWriter, r *http.Request, status int, why string) {
	auth, query := r.Header.Get("Authorization"), r.URL.Query()
	if !strings.HasPrefix(auth, "AWS") && !query.Has(inQuery) && !query.Has("AWSAccessKeyId") {
		refuse(w, status, why)
		return
	}
	const code = "AccessDenied"
	message := "Harvest: " + why + "."
	kind, text := "application/xml", "<Error><Code>"+code+"</Code><Message>"+xmlText(message)+"</Message></Error>"
	content := r.Header.Get("Content-Type")
	switch s, ok := signatureOf(r); {
	case !ok || strings.HasPrefix(s.service, "s3"):
	case strings.HasPrefix(content, "application/x-www-form-urlencoded"):
		text = "<ErrorResponse>" + text + "</ErrorResponse>"
	default:
		kind, text = "application/x-amz-json-1.1", `{"__type": "`+code+`", "message": "`+jsonText(message)+`"}`
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Harvest", "credentials")
	w.Header().Set("X-Amzn-ErrorType", code)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}

// verifyWith checks that a signature was made with the placeholders of a pair, whose id is c. The signature gets the
// key to sign with.
func (e *exchange) verifyWith(r *http.Request, s *signature, c Credential) *refusal {
	prefix := strings.TrimSuffix(c.Key, keyID)
	i := slices.IndexFunc(e.credentials, func(o Credential) bool {
		return o.Secret == c.Secret && o.Key == prefix+keySecret
	})
	if i < 0 {
		return &refusal{Credential: c, why: "the secret " + c.Secret + " has no " + prefix + keySecret +
			" to sign with"}
	}
	payloads, refused := e.payloads(r, s)
	if refused != nil {
		refused.Credential = c
		return refused
	}
	pair := e.credentials[i]
	for _, s.payload = range payloads {
		for _, s.path = range pathForms {
			if hmac.Equal([]byte(s.sum(r, pair.Placeholder)), []byte(s.value)) {
				place, _ := c.Binding.Place(e.s.host.Name, e.s.port, !e.s.secure())
				if place.Inject.Form == binding.SigV4 {
					s.service, s.region = cmp.Or(place.Inject.Name, s.service), cmp.Or(place.Inject.Key, s.region)
				}
				s.key, s.secret = strings.TrimSpace(c.Value.Reveal()), strings.TrimSpace(pair.Value.Reveal())
				return nil
			}
		}
	}
	return &refusal{Credential: c, why: "the signature of the request was not made with the sandbox's " + pair.Key +
		" of the secret " + c.Secret}
}

// payloads returns the hashes of the body with which a request may be signed.
func (e *exchange) payloads(r *http.Request, s *signature) ([]string, *refusal) {
	given := r.Header.Get(contentHash)
	if s.presigned {
		given = cmp.Or(given, r.URL.Query().Get(contentHash))
	}
	switch {
	case strings.HasPrefix(given, streamed) && given != streamedPlain:
		return nil, &refusal{why: "signatures of the parts of a body (" + given + ") cannot be made again: turn them " +
			"off in the client, such as chunkedEncodingEnabled(false) in Java, or UseChunkEncoding = false and " +
			"DisablePayloadSigning = true in .NET"}
	case given != "":
		return []string{given}, nil
	case s.presigned:
		return []string{unsignedBody, emptyHash}, nil
	case r.ContentLength == 0:
		return []string{emptyHash}, nil
	}
	// Only S3's clients send the hash. The signature is in the head, and needs the whole body.
	body, refused := e.hold(r, maxSigned)
	if refused != nil {
		return nil, refused
	}
	sum := sha256.Sum256(body)
	return []string{hex.EncodeToString(sum[:])}, nil
}

// Parameters of an address with a signature.
const (
	inQuery        = "X-Amz-Credential"
	signatureParam = "X-Amz-Signature"
)

// signatureOf returns the signature of a request. ok is false if it has none of version 4 that can be read.
func signatureOf(r *http.Request) (s *signature, ok bool) {
	query := r.URL.Query()
	if query.Has(signatureParam) {
		s, ok = newSignature(query.Get(inQuery), query.Get("X-Amz-SignedHeaders"), query.Get(signatureParam))
		if !ok || query.Get("X-Amz-Algorithm") != algorithm {
			return nil, false
		}
		s.time, s.presigned = query.Get("X-Amz-Date"), true
		return s, isTime(s.time)
	}
	if s, ok = parseAuthorization(r.Header.Get("Authorization")); ok {
		s.time = cmp.Or(r.Header.Get("X-Amz-Date"), r.Header.Get("Date"))
		ok = isTime(s.time)
	}
	return s, ok
}

// parseAuthorization parses the value of a header with a signature.
func parseAuthorization(value string) (s *signature, ok bool) {
	rest, ok := strings.CutPrefix(value, algorithm+" ")
	if !ok {
		return nil, false
	}
	parts := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if _, twice := parts[name]; twice {
			return nil, false
		}
		parts[name] = value
	}
	return newSignature(parts["Credential"], parts["SignedHeaders"], parts["Signature"])
}

// newSignature returns a signature of its parts. Without the host among the headers, it would be valid for any.
func newSignature(credential, headers, value string) (*signature, bool) {
	words := strings.Split(credential, "/")
	n := len(words) - 4 // an id may have slashes
	if n < 1 || words[n+3] != "aws4_request" || len(value) != 2*sha256.Size {
		return nil, false
	}
	s := &signature{key: strings.Join(words[:n], "/"), date: words[n], region: words[n+1], service: words[n+2],
		headers: strings.Split(headers, ";"), value: value}
	for i, name := range s.headers {
		if i > 0 && s.headers[i-1] >= name || name != strings.ToLower(name) { // none counts twice
			return nil, false
		}
	}
	return s, slices.Contains(s.headers, "host")
}

// isTime reports whether a text is a time as signatures have it: 20060102T150405Z.
func isTime(text string) bool {
	return len(text) == 16 && text[8] == 'T' && text[15] == 'Z' &&
		strings.Trim(text[:8]+text[9:15], "0123456789") == ""
}

// scope returns the scope of the signature.
func (s *signature) scope() string {
	return s.date + "/" + s.region + "/" + s.service + "/aws4_request"
}

// sum returns the signature of a request with a key.
func (s *signature) sum(r *http.Request, key string) string {
	text := sha256.Sum256([]byte(s.canonical(r)))
	mac := []byte("AWS4" + key)
	for _, part := range []string{s.date, s.region, s.service, "aws4_request",
		algorithm + "\n" + s.time + "\n" + s.scope() + "\n" + hex.EncodeToString(text[:])} {
		h := hmac.New(sha256.New, mac)
		h.Write([]byte(part))
		mac = h.Sum(nil)
	}
	return hex.EncodeToString(mac)
}

// canonical returns the text of a request that is signed.
func (s *signature) canonical(r *http.Request) string {
	lines := []string{r.Method, s.path(r.URL), canonicalQuery(r.URL.RawQuery)}
	for _, name := range s.headers {
		lines = append(lines, name+":"+canonicalHeader(r, name))
	}
	return strings.Join(append(lines, "", strings.Join(s.headers, ";"), s.payload), "\n")
}

// canonicalHeader returns the values of a header: without needless spaces, and joined.
func canonicalHeader(r *http.Request, name string) string {
	var values []string
	switch name {
	case "host":
		values = []string{r.Host}
	case "transfer-encoding":
		values = r.TransferEncoding
	case "content-length":
		if r.ContentLength >= 0 {
			values = []string{strconv.FormatInt(r.ContentLength, 10)}
		}
	default:
		values = r.Header.Values(name)
	}
	var all []string
	for _, v := range values {
		all = append(all, strings.Join(strings.FieldsFunc(v, func(c rune) bool { return c == ' ' }), " "))
	}
	return strings.Join(all, ",")
}

// canonicalQuery returns the parameters of a query but the signature, encoded and sorted.
func canonicalQuery(raw string) string {
	type param struct{ name, value string }
	var all []param
	for text := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(text, "=")
		if p := (param{recode(name), recode(value)}); text != "" && p.name != signatureParam {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b param) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.value, b.value))
	})
	var parts []string
	for _, p := range all {
		parts = append(parts, p.name+"="+p.value)
	}
	return strings.Join(parts, "&")
}

// recode returns a part of a query in the encoding of signatures.
func recode(text string) string {
	if plain, err := url.QueryUnescape(text); err == nil {
		text = plain
	}
	return encode(text, false)
}

// encode encodes all but unreserved characters (RFC 3986), and slashes if they are kept.
func encode(text string, slashes bool) string {
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 ||
			slashes && c == '/' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteString(strings.ToUpper(hex.EncodeToString([]byte{c})))
		}
	}
	return b.String()
}

// again signs a request with the real key. The same headers are signed, which have the values by now.
func (s *signature) again(r *http.Request) {
	credential := s.key + "/" + s.scope()
	if s.presigned {
		r.URL.RawQuery = setParam(r.URL.RawQuery, inQuery, credential)
		r.URL.RawQuery = setParam(r.URL.RawQuery, signatureParam, s.sum(r, s.secret))
		return
	}
	r.Header.Set("Authorization", algorithm+" Credential="+credential+", SignedHeaders="+strings.Join(s.headers, ";")+
		", Signature="+s.sum(r, s.secret))
}

// setParam replaces the value of a parameter.
func setParam(raw, name, value string) string {
	parts := strings.Split(raw, "&")
	for i, part := range parts {
		if has, _, _ := strings.Cut(part, "="); recode(has) == name {
			parts[i] = name + "=" + encode(value, false)
		}
	}
	return strings.Join(parts, "&")
}

// lowerMeta writes the names of S3's metadata in lower case, as S3 does. Clients of HTTP/1.1 take them as they are.
type lowerMeta struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (m lowerMeta) WriteHeader(status int) {
	head := m.Header()
	for name, values := range head {
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			delete(head, name)
			head[strings.ToLower(name)] = values
		}
	}
	m.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (m lowerMeta) Unwrap() http.ResponseWriter { return m.ResponseWriter }
