package volsync

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// signed records the origin of a sync's requests, and their session tokens.
type signed struct {
	mu     sync.Mutex
	tokens map[string]map[string]int // guarded by mu; how many requests, by kind and token
}

// kindOf returns the kind of a request, and whether this package or the SDK made it.
func kindOf(r *http.Request) string {
	by, what := "ours", r.Method
	if strings.Contains(r.UserAgent(), "aws-sdk-go") {
		by = "the SDK's"
	}
	if r.URL.Query().Has("list-type") {
		what = "list"
	}
	return by + " " + what
}

func (s *signed) note(_ int, _ http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, token := kindOf(r), r.Header.Get("X-Amz-Security-Token")
	if !strings.Contains(r.Header.Get("Authorization"), "x-amz-security-token") {
		token = "" // unsigned tokens do not count
	}
	if s.tokens == nil {
		s.tokens = map[string]map[string]int{}
	}
	if s.tokens[kind] == nil {
		s.tokens[kind] = map[string]int{}
	}
	s.tokens[kind][token]++
	return false
}

// of returns the session tokens of a kind of requests.
func (s *signed) of(kind string) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens[kind]
}

// anybodys is a new, empty bucket of a server that does not check signatures: the server that does cannot handle
// session tokens.
func anybodys(t *testing.T) s3.Location {
	t.Helper()
	store := s3mem.New()
	must(t, store.CreateBucket("anybodys"))
	s := httptest.NewServer(gofakes3.New(store).Server())
	t.Cleanup(s.Close)
	return s3.Location{Bucket: "anybodys", Prefix: "work", Endpoint: s.URL, PathStyle: true, Region: "us-east-1",
		Credentials: s3.Credentials{AccessKeyID: "AKIAANYBODY", SecretAccessKey: "anything"}}
}

// TestSessionToken checks that every request has the session token, whether the SDK or this client sends it.
// mission: 2.7, 9.3
func TestSessionToken(t *testing.T) {
	t.Parallel()
	const token = "the-session-token/of+the=tests"
	dir, back, loc := t.TempDir(), t.TempDir(), anybodys(t)
	write(t, dir, "f", "x")
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 17<<16)) // 17 MiB: 2 parts
	age(t, dir)
	loc.SessionToken = token
	a := between(t, &loc)
	var seen signed
	a.reset(seen.note)
	b := openBucket(t, loc)
	mustSync(t, dir, b, Options{Direction: plan.Up})
	mustSync(t, back, b, Options{Direction: plan.Down, List: true, Owners: true})
	sameTrees(t, dir, back)
	for _, kind := range []string{"ours HEAD", "ours PUT", "ours GET", "the SDK's list", "the SDK's PUT",
		"the SDK's POST"} {
		if got := seen.of(kind); len(got) != 1 || got[token] == 0 {
			t.Errorf("%s: %v", kind, got)
		}
	}
}

// renewed is a service that assumes roles, each time with another session token that is valid for the duration valid.
func renewed(t *testing.T, valid time.Duration) (url string, asked func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n++
		w.Header().Set("Content-Type", "text/xml")
		fmt.Fprintf(w,
			`<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>token-%d</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`,
			s3test.AccessKey, s3test.SecretKey, n, time.Now().Add(valid).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(s.Close)
	return s.URL, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// TestRolesAreRenewed checks that the credentials of a role are replaced before they expire, also in the middle of a
// sync, and not more often.
// mission: 2.7
func TestRolesAreRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range object.Workers + 20 { // so that some worker stores two, one after the other
		write(t, dir, fmt.Sprintf("f%03d", i), "x")
	}
	age(t, dir)
	for name, c := range map[string]struct {
		valid time.Duration
		again bool
	}{
		"soon":  {150 * time.Second, true},
		"later": {24 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			back, loc := t.TempDir(), anybodys(t)
			var asked func() int
			loc.STS, asked = renewed(t, c.valid)
			loc.RoleARN = "arn:aws:iam::123456789012:role/sync"
			loc.AccessKeyID, loc.SecretAccessKey = "AKIAOTHER", "another"
			a := between(t, &loc)
			var seen signed
			a.reset(seen.note)
			b := openBucket(t, loc)
			mustSync(t, dir, b, Options{Direction: plan.Up})
			if n, own := asked(), len(seen.of("ours PUT")); c.again != (n > 1) || c.again != (own > 1) ||
				seen.of("ours PUT")[""] != 0 {
				t.Errorf("the role was assumed %d times, and %d session tokens stored files", n, own)
			}
			before := asked()
			mustSync(t, back, b, Options{Direction: plan.Down, List: true, Owners: true})
			if n := asked() - before; c.again != (n > 1) {
				t.Errorf("down, the role was assumed %d times", n)
			}
			if tokens := seen.of("the SDK's list"); len(tokens) == 0 || tokens[""] != 0 || c.again &&
				tokens["token-1"] != 0 {
				t.Errorf("lists had the session tokens %v", tokens)
			}
			sameTrees(t, dir, back)
		})
	}
}

// TestSecretsStayAway checks that errors and logs contain neither a key nor a session token, not even if S3 repeats the
// request.
// mission: 2.5, 9.3
func TestSecretsStayAway(t *testing.T) {
	t.Parallel()
	const key, token = "a-wrong-key-of-the-tests", "session-token-of-the-tests"
	dir := t.TempDir()
	write(t, dir, "f", "x")
	body := []byte("x")
	for name, c := range map[string]struct {
		token string
		fault func(int, http.ResponseWriter, *http.Request) bool
	}{
		"a wrong key":   {"", nil},
		"a wrong token": {token, nil},
		"S3 repeats them": {token, func(_ int, w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w,
				"<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>m</Message><CanonicalRequest>x-amz-security-token:%s\n%s</CanonicalRequest></Error>",
				r.Header.Get("X-Amz-Security-Token"), key)
			return true
		}},
	} {
		loc := location(t)
		loc.SecretAccessKey, loc.SessionToken = key, c.token
		a := between(t, &loc)
		a.reset(c.fault)
		b := openBucket(t, loc)
		_, sync := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up})
		_, put := b.Put(t.Context(), "f", body, crc64nvme.Checksum(body), nil)
		_, list := b.Versions(t.Context())
		for what, err := range map[string]error{"a sync": sync, "an object": put, "a list": list} {
			if errors.KindOf(err) != errors.Unauthenticated || errors.RemedyOf(err) == "" {
				t.Errorf("%s, %s: %v; remedy %q", name, what, err, errors.RemedyOf(err))
			}
			text := errors.Message(err) + errors.RemedyOf(err)
			for e := err; e != nil; {
				text += fmt.Sprintf(" %v %+v", e, e)
				next, _ := e.(interface{ Unwrap() error })
				if e = nil; next != nil {
					e = next.Unwrap()
				}
			}
			for _, secret := range []string{key, token} {
				if strings.Contains(text, secret) {
					t.Errorf("%s, %s: %q is in %s", name, what, secret, text)
				}
			}
		}
	}
}
