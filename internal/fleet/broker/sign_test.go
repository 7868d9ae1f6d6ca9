package broker

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// The keys of the tests: those of AWS's documentation.
const (
	realID      = "AKIAIOSFODNN7EXAMPLE"
	realSecret  = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	realSession = "real-session-token/with+signs==0123456789"
)

// pairs adds a pair of AWS to a world, and returns its placeholders. Without a session token, there is none.
func (w *world) pairs(b binding.Binding, session bool) aws.Credentials {
	held := map[string]string{}
	w.credentials = nil
	for key, value := range map[string]string{"AWS_ACCESS_KEY_ID": realID, "AWS_SECRET_ACCESS_KEY": realSecret,
		"AWS_SESSION_TOKEN": realSession} {
		if key == "AWS_SESSION_TOKEN" && !session {
			continue
		}
		held[key] = binding.Placeholder([]byte("seed"), key, value)
		w.credentials = append(w.credentials, Credential{Secret: "aws", Key: key, Placeholder: held[key],
			Value: config.Secret(value), Binding: b})
	}
	return aws.Credentials{AccessKeyID: held["AWS_ACCESS_KEY_ID"], SecretAccessKey: held["AWS_SECRET_ACCESS_KEY"],
		SessionToken: held["AWS_SESSION_TOKEN"]}
}

func realKeys(session bool) aws.Credentials {
	c := aws.Credentials{AccessKeyID: realID, SecretAccessKey: realSecret}
	if session {
		c.SessionToken = realSession
	}
	return c
}

func hashOf(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// checkSigned answers with "ok BODY" to requests that the SDK's signer signs the same with the real keys.
type checkSigned struct {
	service, region string
	session         bool
}

// ServeHTTP implements http.Handler.
func (c checkSigned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/octet-stream") // not masked
	query := r.URL.Query()
	signed := query.Get("X-Amz-SignedHeaders")
	presigned := signed != ""
	if !presigned {
		_, signed, _ = strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
		signed, _, _ = strings.Cut(signed, ",")
	}
	again := r.Clone(r.Context())
	again.URL.Scheme, again.URL.Host, again.Header, again.ContentLength = "https", r.Host, http.Header{}, 0
	for _, name := range strings.Split(signed, ";") {
		if v := r.Header.Values(name); len(v) > 0 {
			again.Header[http.CanonicalHeaderKey(name)] = v
		}
		if name == "content-length" {
			again.ContentLength = r.ContentLength
		}
	}
	hash := r.Header.Get("X-Amz-Content-Sha256")
	if hash == "" {
		hash = hashOf(string(body))
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")+query.Get("X-Amz-Date"))
	if err != nil {
		fmt.Fprintf(w, "time: %v", err)
		return
	}
	single := func(o *v4.SignerOptions) { o.DisableURIPathEscaping = c.service == "s3" }
	got, want := r.Header.Get("Authorization"), ""
	if presigned {
		if c.service == "s3" {
			hash = "UNSIGNED-PAYLOAD"
		}
		got = query.Get("X-Amz-Signature")
		query.Del("X-Amz-Signature")
		again.URL.RawQuery = query.Encode()
		var address string
		address, _, err = v4.NewSigner(single).PresignHTTP(r.Context(), realKeys(c.session), again, hash, c.service,
			c.region,
			at)
		if u, err := url.Parse(address); err == nil {
			want = u.Query().Get("X-Amz-Signature")
		}
	} else {
		err = v4.NewSigner(single).SignHTTP(r.Context(), realKeys(c.session), again, hash, c.service, c.region, at)
		want = again.Header.Get("Authorization")
	}
	if err != nil || got != want || got == "" {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, "got %q, want %q, %v", got, want, err)
		return
	}
	fmt.Fprintf(w, "ok %s", body)
}

// awsRequest is a request that a test signs.
type awsRequest struct {
	method, path, service, region, body, hash string
	head                                      map[string]string
	presigned                                 bool
}

// sign returns the request, signed with keys.
func (a awsRequest) sign(t testing.TB, keys aws.Credentials) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), a.method, "https://"+host+a.path, strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range a.head {
		r.Header.Set(name, v)
	}
	hash := a.hash
	switch {
	case hash != "":
		r.Header.Set("X-Amz-Content-Sha256", hash)
	case a.presigned && a.service == "s3":
		hash = "UNSIGNED-PAYLOAD"
	default:
		hash = hashOf(a.body)
	}
	single := func(o *v4.SignerOptions) { o.DisableURIPathEscaping = a.service == "s3" }
	if !a.presigned {
		err = v4.NewSigner(single).SignHTTP(t.Context(), keys, r, hash, a.service, a.region, time.Now())
	} else {
		var address string
		var u *url.URL
		if address, _, err = v4.NewSigner(single).PresignHTTP(t.Context(), keys, r, hash, a.service, a.region,
			time.Now()); err == nil {
			u, err = url.Parse(address)
			r.URL = u
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// send sends a request, and returns the status and the body of the answer.
func send(t testing.TB, c *http.Client, r *http.Request) (int, string) {
	t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(b)
}

// signedForms are the forms of signatures that clients make.
var signedForms = map[string]awsRequest{
	"hash": {method: "PUT", path: "/bucket/a%20b/c%2Bd%28e%29", service: "s3", body: "text", hash: hashOf("text"),
		head: map[string]string{"Content-Type": "text/plain", "X-Amz-Meta-A": "  two  spaces "}},
	"unsigned": {method: "PUT", path: "/bucket/key?partNumber=2&uploadId=a%2Fb", service: "s3", body: "text",
		hash: "UNSIGNED-PAYLOAD"},
	"no body":   {method: "GET", path: "/?list-type=2&prefix=a%20b%2Fc&delimiter=", service: "s3", hash: hashOf("")},
	"any bytes": {method: "GET", path: "/bucket//%FF/../x%2Fy", service: "s3", hash: hashOf("")},
	"trailer": {method: "PUT", path: "/bucket/key", service: "s3", hash: "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
		body: "4\r\ntext\r\n0\r\nx-amz-checksum-crc32:O8Ba+w==\r\n\r\n",
		head: map[string]string{"Content-Encoding": "aws-chunked", "X-Amz-Decoded-Content-Length": "4",
			"X-Amz-Trailer": "x-amz-checksum-crc32"}},
	"hash of the body": {method: "POST", path: "/", service: "sts", body: "Action=GetCallerIdentity&Version=2011-06-15",
		head: map[string]string{"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}},
	"double encoding": {method: "GET", path: "/tags/arn%3Aaws%3Alambda%3Aus-east-1%3A1%3Afunction%3Af",
		service: "lambda"},
	"presigned": {method: "GET", path: "/bucket/a%20b?X-Amz-Expires=60", service: "s3", presigned: true},
	"presigned upload": {method: "PUT", path: "/bucket/key?X-Amz-Expires=60", service: "s3", presigned: true,
		body: "text"},
	"presigned service": {method: "GET", path: "/?Action=GetCallerIdentity", service: "sts", presigned: true},
}

func TestSignaturesAreMadeAgain(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http/1.1"} {
		for name, form := range signedForms {
			for _, session := range []bool{false, true} {
				for inject, want := range map[string]string{"": "us-west-2", " sigv4": "us-west-2",
					" sigv4 " + form.service: "us-west-2", " sigv4 " + form.service + " eu-central-1": "eu-central-1"} {
					w := newWorld(t, binding.Binding{})
					held := w.pairs(bound(t, host+inject), session)
					w.serve(t, checkSigned{form.service, want, session})
					form.region = "us-west-2"
					status, got := send(t, w.client(t, protocol), form.sign(t, held))
					if status != 200 || got != "ok "+form.body {
						t.Errorf("%s, %s, %q: got %d %q", protocol, name, inject, status, got)
					}
					uses := 1
					if session {
						uses++
					}
					if all := w.reported(uses); len(all) != uses || all[0].Secret != "aws" || all[0].Status != 200 {
						t.Errorf("%s, %s: uses %+v", protocol, name, all)
					}
				}
			}
		}
	}
}

// TestOtherServiceThanSigned checks that the binding decides on the service, too.
func TestOtherServiceThanSigned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binding.Binding{})
	held := w.pairs(bound(t, host+" sigv4 execute-api eu-west-1"), false)
	w.serve(t, checkSigned{"execute-api", "eu-west-1", false})
	form := awsRequest{method: "POST", path: "/prod", service: "other", region: "xx-1", body: "text"}
	if status, got := send(t, w.client(t), form.sign(t, held)); status != 200 || got != "ok text" {
		t.Errorf("got %d %q", status, got)
	}
}

// TestRefusedSignatures checks that nothing but a signature with the placeholders of the sandbox gets one.
func TestRefusedSignatures(t *testing.T) {
	t.Parallel()
	form := signedForms["hash"]
	form.region = "us-west-2"
	edit := func(name, from, to string) func(*http.Request, aws.Credentials) {
		return func(r *http.Request, _ aws.Credentials) {
			r.Header.Set(name, strings.ReplaceAll(r.Header.Get(name), from, to))
		}
	}
	for name, test := range map[string]struct {
		change func(*http.Request, aws.Credentials)
		want   string
	}{
		"another body":   {edit("X-Amz-Content-Sha256", "9", "8"), "AWS_SECRET_ACCESS_KEY of the secret aws."},
		"another header": {edit("X-Amz-Meta-A", "two", "too"), "was not made with"},
		"another path": {func(r *http.Request, _ aws.Credentials) {
			r.URL.Path, r.URL.RawPath = "/x", ""
		}, "was not made with"},
		"another query":  {func(r *http.Request, _ aws.Credentials) { r.URL.RawQuery = "acl" }, "was not made with"},
		"another method": {func(r *http.Request, _ aws.Credentials) { r.Method = "POST" }, "was not made with"},
		"without a host": {edit("Authorization", "host;", ""), "cannot be read"},
		"header twice":   {edit("Authorization", "host;", "host;host;"), "cannot be read"},
		"upper case":     {edit("Authorization", "host;", "host;X-A;"), "cannot be read"},
		"no time":        {func(r *http.Request, _ aws.Credentials) { r.Header.Del("X-Amz-Date") }, "cannot be read"},
		"cut":            {edit("Authorization", "Signature=", "Signature=1"), "cannot be read"},
		"twice":          {edit("Authorization", "Signature=", "Signature=, Signature="), "cannot be read"},
		"version 4A": {edit("Authorization", "AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
			"AWS_AUTH_SCHEME_PREFERENCE"},
		"version 2": {func(r *http.Request, c aws.Credentials) {
			r.Header.Set("Authorization", "AWS "+c.AccessKeyID+":c2lnbmF0dXJl")
		}, "s3v4"},
		"version 2 in the address": {func(r *http.Request, c aws.Credentials) {
			r.Header.Del("Authorization")
			r.URL.RawQuery = "AWSAccessKeyId=" + c.AccessKeyID + "&Signature=x&Expires=1"
		}, "s3v4"},
		"signed parts": {func(r *http.Request, c aws.Credentials) {
			form := form
			form.hash = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
			*r = *form.sign(t, c)
		}, "UseChunkEncoding"},
		"the secret key": {func(r *http.Request, c aws.Credentials) {
			r.Header.Set("X-Leak", c.SecretAccessKey)
		}, "AWS_SECRET_ACCESS_KEY of the secret aws is used only in signatures"},
		"the session token": {func(r *http.Request, c aws.Credentials) {
			r.Header.Set("Authorization", c.SessionToken)
			r.Header.Del("X-Amz-Security-Token")
		}, "only in signatures"},
		"the id": {func(r *http.Request, c aws.Credentials) {
			r.Header.Set("Authorization", "Bearer "+c.AccessKeyID)
			r.Header.Del("X-Amz-Security-Token")
		}, "only in signatures"},
	} {
		w := newWorld(t, binding.Binding{})
		held := w.pairs(bound(t, host+" sigv4"), true)
		reached := false
		w.serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
		r := form.sign(t, held)
		test.change(r, held)
		status, got := send(t, w.client(t), r)
		if status != 403 || !strings.Contains(got, test.want) || reached {
			t.Errorf("%s: got %d %q, the host was reached: %t", name, status, got, reached)
		}
		if uses := w.taken(); len(uses) != 1 || uses[0].Refused == "" || uses[0].Status != 403 {
			t.Errorf("%s: uses %+v", name, uses)
		}
		for _, value := range []string{realID, realSecret, realSession} {
			if strings.Contains(got, value) {
				t.Errorf("%s: the answer has a value: %q", name, got)
			}
		}
	}
}

// TestSecretKeyElsewhere checks the handling of a placeholder that is no part of a signature.
func TestSecretKeyElsewhere(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []binding.Elsewhere{binding.Refuse, binding.Pass, binding.End} {
		b := bound(t, host+" sigv4")
		b.Elsewhere = elsewhere
		w := newWorld(t, b)
		held := w.pairs(b, true)
		w.serve(t, echo)
		form := signedForms["hash"]
		form.region = "us-west-2"
		form.head = map[string]string{"X-Api-Key": held.SecretAccessKey}
		status, got := send(t, w.client(t), form.sign(t, held))
		if want := map[bool]int{true: 200, false: 403}[elsewhere == binding.Pass]; status != want ||
			strings.Contains(got, realSecret) || (status == 200) != strings.Contains(got, "X-Api-Key: "+
			held.SecretAccessKey) {
			t.Errorf("%s: got %d %q", elsewhere, status, got)
		}
		if (len(w.ended) == 1) != (elsewhere == binding.End) {
			t.Errorf("%s: ended %+v", elsewhere, w.ended)
		}
	}
}

// TestClientsReadRefusals checks the form of refusals: clients of AWS show no plain text.
func TestClientsReadRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binding.Binding{})
	held := w.pairs(bound(t, host+" sigv4"), false)
	held.SecretAccessKey = "another"
	for _, test := range []struct{ service, contentType, want string }{
		{"s3", "text/plain", "<Error><Code>AccessDenied</Code><Message>Harvest: the signature"},
		{"sts", "application/x-www-form-urlencoded",
			"<ErrorResponse><Error><Code>AccessDenied</Code><Message>Harvest: "},
		{"dynamodb", "application/x-amz-json-1.0", `{"__type": "AccessDenied", "message": "Harvest: the signature of`},
	} {
		form := awsRequest{method: "POST", path: "/", service: test.service, region: "r",
			head: map[string]string{"Content-Type": test.contentType}}
		resp, err := w.client(t).Do(form.sign(t, held))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 403 || !strings.HasPrefix(string(b), test.want) ||
			resp.Header.Get("X-Harvest") != "credentials" || resp.Header.Get("X-Amzn-ErrorType") != "AccessDenied" {
			t.Errorf("%s: got %d %q, %v", test.service, resp.StatusCode, b, resp.Header)
		}
	}
}

// TestMetadataNames checks that the names of an object's metadata arrive as S3 writes them.
func TestMetadataNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host+" sigv4"))
	w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header()["x-amz-meta-name"] = []string{"text"}
	}))
	c := tls.Client(w.dial(t, intercepted), &tls.Config{RootCAs: w.trusts, ServerName: host})
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.Contains(string(b), "\r\nx-amz-meta-name: text\r\n") {
		t.Errorf("got %q, %v", b, err)
	}
}

// TestOwnSignatures checks that signatures with other keys, such as those of an assumed role, stay.
func TestOwnSignatures(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binding.Binding{})
	w.pairs(bound(t, host+" sigv4 s3 eu-central-1"), true)
	w.serve(t, echo)
	form := signedForms["hash"]
	form.region = "us-west-2"
	r := form.sign(t, aws.Credentials{AccessKeyID: "ASIAOTHER", SecretAccessKey: "other", SessionToken: "other"})
	want := "Authorization: " + r.Header.Get("Authorization") + "\n"
	if status, got := send(t, w.client(t), r); status != 200 || !strings.Contains(got, want) || len(w.taken()) != 0 {
		t.Errorf("got %d %q, want %q; uses %+v", status, got, want, w.taken())
	}
}

// TestPairWithoutSecretKey checks a secret that has an id alone.
func TestPairWithoutSecretKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binding.Binding{})
	held := w.pairs(bound(t, host+" sigv4"), false)
	w.credentials = slices.DeleteFunc(w.credentials,
		func(c Credential) bool { return c.Key == "AWS_SECRET_ACCESS_KEY" })
	w.serve(t, echo)
	if status, got := send(t, w.client(t), signedForms["hash"].sign(t, held)); status != 403 ||
		!strings.Contains(got, "has no AWS_SECRET_ACCESS_KEY") {
		t.Errorf("got %d %q", status, got)
	}
}

// TestSecondPair checks that a secret can have several pairs, and that a session token of another pair is not used.
func TestSecondPair(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binding.Binding{})
	held := w.pairs(bound(t, host+" sigv4"), true)
	for i := range w.credentials {
		if c := &w.credentials[i]; c.Key != "AWS_SESSION_TOKEN" {
			c.Key = "SOURCE_" + c.Key
		}
	}
	w.serve(t, checkSigned{"s3", "us-west-2", false})
	form := signedForms["hash"]
	form.region = "us-west-2"
	session := held.SessionToken
	held.SessionToken = ""
	if status, got := send(t, w.client(t), form.sign(t, held)); status != 200 || got != "ok text" {
		t.Errorf("got %d %q", status, got)
	}
	held.SessionToken = session
	if status, got := send(t, w.client(t), form.sign(t, held)); status != 403 || !strings.Contains(got,
		"only in sign") {
		t.Errorf("got %d %q", status, got)
	}
}

// TestSignedBodyLimits checks the memory for bodies that a signature needs.
func TestSignedBodyLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binding.Binding{})
	held := w.pairs(bound(t, host+" sigv4"), false)
	w.serve(t, checkSigned{"lambda", "us-west-2", false})
	form := awsRequest{method: "POST", path: "/2015-03-31/functions/f/invocations", service: "lambda",
		region: "us-west-2"}
	form.body = strings.Repeat("0123456789abcdef", maxSigned/16)
	if status, got := send(t, w.client(t), form.sign(t, held)); status != 200 || got != "ok "+form.body {
		t.Errorf("got %d, %d bytes", status, len(got))
	}
	form.body += "."
	for _, protocol := range []string{"h2", "http/1.1"} {
		for _, length := range []int64{-1, int64(len(form.body))} {
			r := form.sign(t, held)
			r.ContentLength = length
			resp, err := w.client(t, protocol).Do(r)
			if err != nil {
				t.Logf("%s: the request ended early: %v", protocol, err)
				continue
			}
			if resp.StatusCode != 413 {
				t.Errorf("%s, length %d: got %d", protocol, length, resp.StatusCode)
			}
			_ = resp.Body.Close()
		}
	}
	w.bodies.take("sb", maxHeldOfOne-1)
	form.body = "ab"
	if status, got := send(t, w.client(t), form.sign(t, held)); status != 503 || !strings.Contains(got, "in memory") {
		t.Errorf("got %d %q", status, got)
	}
	w.bodies.give("sb", maxHeldOfOne-1)
	if status, _ := send(t, w.client(t), form.sign(t, held)); status != 200 {
		t.Errorf("got %d", status)
	}
	w.bodies.mu.Lock()
	defer w.bodies.mu.Unlock()
	if w.bodies.total != 0 || len(w.bodies.of) != 0 {
		t.Errorf("%d bytes are counted at the end, of %v", w.bodies.total, w.bodies.of)
	}
}

// TestSignedBodiesAreStreamed checks that the host gets the first part of a body before the last is sent.
func TestSignedBodiesAreStreamed(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http/1.1"} {
		w := newWorld(t, binding.Binding{})
		held := w.pairs(bound(t, host+" sigv4"), false)
		arrived := make(chan struct{})
		w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			first := make([]byte, 5)
			if _, err := io.ReadFull(r.Body, first); err == nil {
				close(arrived)
			}
			rest, _ := io.ReadAll(r.Body)
			fmt.Fprintf(rw, "%d %s%s", r.ContentLength, first, rest)
		}))
		form := awsRequest{method: "PUT", path: "/b/k", service: "s3", region: "us-west-2", hash: "UNSIGNED-PAYLOAD",
			body: "first-last"}
		r := form.sign(t, held)
		in, out := io.Pipe()
		r.Body = in
		r.Header.Set("Expect", "100-continue")
		go func() {
			_, _ = io.WriteString(out, "first")
			<-arrived
			_, _ = io.WriteString(out, "-last")
			_ = out.Close()
		}()
		if status, got := send(t, w.client(t, protocol), r); status != 200 || got != "10 first-last" {
			t.Errorf("%s: got %d %q", protocol, status, got)
		}
	}
}

// documented is the beginning of the headers in AWS's documentation.
const documented = "AWS4-HMAC-SHA256 Credential=" + realID + "/20130524/us-east-1/s3/aws4_request,SignedHeaders="

// TestCanonicalForm checks the text that is signed against the examples of AWS's documentation:
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
func TestCanonicalForm(t *testing.T) {
	t.Parallel()
	get, _ := http.NewRequestWithContext(t.Context(), "GET", "https://examplebucket.s3.amazonaws.com/test.txt", nil)
	get.Header = http.Header{"Range": {"bytes=0-9"}, "X-Amz-Content-Sha256": {emptyHash},
		"X-Amz-Date": {"20130524T000000Z"}, "Authorization": {documented +
			"host;range;x-amz-content-sha256;x-amz-date,Signature=" +
			"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"}}
	put, _ := http.NewRequestWithContext(t.Context(), "PUT", "https://examplebucket.s3.amazonaws.com/test$file.text",
		nil)
	put.Header = http.Header{"Date": {"Fri, 24 May 2013 00:00:00 GMT"}, "X-Amz-Date": {"20130524T000000Z"},
		"X-Amz-Storage-Class":  {"REDUCED_REDUNDANCY"},
		"X-Amz-Content-Sha256": {"44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"},
		"Authorization": {documented + "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class,Signature=" +
			"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"}}
	list, _ := http.NewRequestWithContext(t.Context(), "GET",
		"https://examplebucket.s3.amazonaws.com/?prefix=J&max-keys=2", nil)
	list.Header = http.Header{"X-Amz-Content-Sha256": {emptyHash}, "X-Amz-Date": {"20130524T000000Z"},
		"Authorization": {documented + "host;x-amz-content-sha256;x-amz-date,Signature=" +
			"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"}}
	presigned, _ := http.NewRequestWithContext(t.Context(), "GET", "https://examplebucket.s3.amazonaws.com/test.txt?"+
		"X-Amz-Algorithm=AWS4-HMAC-SHA256&"+
		"X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&"+
		"X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&"+
		"X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404", nil)
	for name, r := range map[string]*http.Request{"get": get, "put": put, "list": list, "presigned": presigned} {
		s, ok := signatureOf(r)
		if !ok || s.key != realID {
			t.Fatalf("%s: got %+v, %t", name, s, ok)
		}
		s.path, s.payload = pathForms[1], r.Header.Get("X-Amz-Content-Sha256")
		if s.presigned {
			s.payload = "UNSIGNED-PAYLOAD"
		}
		if got := s.sum(r, realSecret); got != s.value {
			t.Errorf("%s: got %s, want %s, of\n%s", name, got, s.value, s.canonical(r))
		}
	}
}

// FuzzSignature checks that a signature that is read is written and read the same, and that reading never fails.
func FuzzSignature(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=A/20130524/r/s/aws4_request, SignedHeaders=host, Signature="+hashOf("a"),
		"X-Amz-Date=20130524T000000Z")
	f.Add("AWS4-HMAC-SHA256 Credential=A/b/20130524/r/s/aws4_request,SignedHeaders=a;host,Signature="+hashOf("b"),
		"a=b&a=%zz&;")
	f.Add("", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=A%2F1%2Fr%2Fs%2Faws4_request&"+
		"X-Amz-Date=20130524T000000Z&X-Amz-SignedHeaders=host&X-Amz-Signature="+strings.Repeat("b", 64))
	f.Fuzz(func(t *testing.T, authorization, query string) {
		r := &http.Request{Method: "GET", Host: host,
			URL:    &url.URL{Scheme: "https", Host: host, Path: "/a b", RawQuery: query},
			Header: http.Header{"Authorization": {authorization}, "X-Amz-Date": {"20130524T000000Z"}}}
		s, ok := signatureOf(r)
		if !ok {
			return
		}
		s.payload, s.secret = emptyHash, "secret"
		for _, s.path = range pathForms {
			s.again(r)
			again, ok := signatureOf(r)
			if !ok || again.key != s.key || again.scope() != s.scope() || !slices.Equal(again.headers, s.headers) ||
				again.time != s.time || again.presigned != s.presigned {
				t.Fatalf("got %+v, %t, want %+v", again, ok, s)
			}
			again.payload, again.path = s.payload, s.path
			if got := again.sum(r, s.secret); got != again.value {
				t.Errorf("%q: the signature is %s, want %s", r.URL.RawQuery, again.value, got)
			}
		}
	})
}
