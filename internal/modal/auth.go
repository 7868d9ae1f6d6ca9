package modal

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/mod/semver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/modal/fields"
)

const (
	routerService = "/modal.task_command_router.TaskCommandRouter/"
	tokenLife     = 20 * time.Minute
	tokenLeeway   = time.Minute // clients renew their token only shortly before it expires
)

// claims is the content of a token. A token for the router names its sandbox.
type claims struct {
	Account string          `json:"acc"`
	Role    account.Role    `json:"role"`
	Scopes  []account.Scope `json:"scopes"`
	Key     string          `json:"key"`
	Box     string          `json:"box,omitempty"`
	Expires int64           `json:"exp"`
}

type callerKey struct{}

// caller is the client of a call and how it called.
type caller struct {
	account.Principal
	client  string // x-modal-client-type
	release string // x-modal-client-version
	host    string // :authority
	key     string // x-idempotency-key
	box     string // sandbox of the router token, if the call has one
}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (resp any, err error) {
	if !s.tasks.Begin() {
		return nil, answer(ctx, info.FullMethod, closing())
	}
	defer s.tasks.Done()
	ctx, done, err := s.admit(ctx, info.FullMethod)
	defer done()
	defer func() { s.audit(ctx, info.FullMethod, err) }()
	if err != nil {
		return nil, answer(ctx, info.FullMethod, err)
	}
	if m, ok := req.(proto.Message); ok {
		if err := errors.Join(fields.Check(m), s.envIn(ctx, m)); err != nil {
			return nil, answer(ctx, info.FullMethod, err)
		}
	}
	resp, err = caught(func() (any, error) { return handle(ctx, req) })
	if err == nil {
		resp = s.envOut(ctx, resp)
	}
	if why := account.Ended(ctx); why != nil && err != nil {
		err = why
	}
	return resp, answer(ctx, info.FullMethod, err)
}

// closing is the error of calls that come after Close.
func closing() error {
	return errors.Remedy(errors.Newf(errors.Unavailable, "Harvest is shutting down"), "try again when it runs")
}

// caught converts a panic into an error: a bug in one call must not end the server.
func caught[T any](call func() (T, error)) (out T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return call()
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handle grpc.StreamHandler) (err error) {
	if !s.tasks.Begin() {
		return answer(stream.Context(), info.FullMethod, closing())
	}
	defer s.tasks.Done()
	ctx, done, err := s.admit(stream.Context(), info.FullMethod)
	defer done()
	defer func() { s.audit(ctx, info.FullMethod, err) }()
	if err != nil {
		return answer(ctx, info.FullMethod, err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := caught(func() (struct{}, error) { return struct{}{}, handle(srv, &authed{stream, ctx}) })
		result <- err
	}()
	select {
	case err = <-result:
	case <-ctx.Done():
		err = s.lastOf(ctx, result)
	}
	if why := account.Ended(ctx); why != nil {
		err = why
	}
	return answer(ctx, info.FullMethod, err)
}

// endGrace is how long a handler may continue after the key of its call has ended.
const endGrace = time.Second

// lastOf waits for the end of a handler whose context has ended. If the key has ended, lastOf abandons a
// handler that still reads or writes after endGrace: the end of the call makes its stream fail.
func (s *Server) lastOf(ctx context.Context, result <-chan error) error {
	if account.Ended(ctx) == nil {
		return <-result
	}
	select {
	case err := <-result:
		return err
	case <-time.After(endGrace):
		return nil
	}
}

type authed struct {
	grpc.ServerStream
	ctx context.Context
}

func (a *authed) Context() context.Context { return a.ctx }

// admit authenticates the caller. The returned context ends with the caller's key. The returned function must
// be called when the call is done.
func (s *Server) admit(ctx context.Context, method string) (context.Context, context.CancelFunc, error) {
	done := context.CancelFunc(func() {})
	md, _ := metadata.FromIncomingContext(ctx)
	get := func(name string) string { // some clients send a header twice
		if values := md.Get(name); len(values) > 0 {
			return values[0]
		}
		return ""
	}
	c := caller{client: get("x-modal-client-type"), release: get("x-modal-client-version"), host: get(":authority"),
		key: get("x-idempotency-key")}
	err := supported(get("x-modal-libmodal-version"))
	if c.client == python && err == nil { // other clients send the version that they imitate
		err = supportedPython(get("x-modal-client-version"))
	}
	if err != nil {
		return ctx, done, err
	}
	end := time.Time{}
	if strings.HasPrefix(method, routerService) {
		if c.Principal, c.box, err = s.bearer(get("authorization")); err == nil {
			end, err = s.present(ctx, c.Principal)
		}
	} else {
		c.Principal, err = s.token(ctx, get("x-modal-token-id"), get("x-modal-token-secret"))
		end = c.Expires
	}
	if err != nil {
		return ctx, done, err
	}
	ctx = context.WithValue(logf.With(ctx, "account", c.Account, "key_id", c.KeyID), callerKey{}, c)
	if err := c.May(scopeOf(method)); err != nil {
		return ctx, done, err
	}
	followed := c.Principal
	followed.Expires = end // of the key: a router token may expire earlier without ending what it started
	ctx, done = s.opts.Keys.Follow(ctx, followed)
	return ctx, done, nil
}

// oldest is the first version of Modal's SDKs for Go and JavaScript that can read the output of sandboxes
// created here. Earlier versions take them for sandboxes of another kind, whose output they cannot read.
const oldest = "v0.10.1"

// supported returns nil if sdk, such as "modal-go/0.11.1", is new enough or names no version.
func supported(sdk string) error {
	name, version, _ := strings.Cut(sdk, "/")
	version = "v" + strings.TrimPrefix(version, "v")
	if !semver.IsValid(version) || semver.Compare(version, "v0.0.0") <= 0 || semver.Compare(version, oldest) >= 0 {
		return nil
	}
	return tooOld(name, version, oldest)
}

func tooOld(name, version, oldest string) error {
	return errors.Remedy(errors.Newf(errors.Unsupported, "%.60s %.30s is too old for this server", name, version),
		"use version %s or a newer one", oldest[1:])
}

// oldestPython is the oldest version of Modal's SDK for Python whose requests are known.
const oldestPython = "v1.5.4"

// release matches the beginning of a Python package version, with or without a candidate or development suffix.
var release = pattern.New(`^\d+\.\d+(\.\d+)?`)

// supportedPython returns nil if the SDK is new enough or names no version. The error's code tells the SDK that
// it is too old, even if the SDK shows its own message.
func supportedPython(version string) error {
	of := "v" + release().FindString(version)
	if !semver.IsValid(of) || semver.Compare(of, oldestPython) >= 0 {
		return nil
	}
	return withCode(tooOld("modal-python", version, oldestPython), codes.FailedPrecondition)
}

// token checks a token ID and its secret: the ID of a Harvest key and the key itself.
func (s *Server) token(ctx context.Context, id, secret string) (account.Principal, error) {
	if id == "" || secret == "" {
		err := errors.Newf(errors.Unauthenticated, "no token was sent")
		return account.Principal{}, errors.Remedy(err,
			"set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET to the values of \"harvest modal env\"")
	}
	who, err := s.opts.Keys.Authenticate(ctx, account.APIKey, secret)
	if err == nil && who.KeyID != id {
		err = errors.Newf(errors.Unauthenticated, "the token's ID and secret do not match")
	}
	if errors.KindOf(err) == errors.Unauthenticated {
		err = errors.Remedy(errors.Newf(errors.Unauthenticated, "Token validation failed: %s", errors.Message(err)),
			"set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET to the values of \"harvest modal env\"")
	}
	return who, err
}

var jwtHeader = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`))

// sign makes a token for c. box is its sandbox; "" for a token that only answers AuthTokenGet.
func (s *Server) sign(c caller, box string) (string, error) {
	expires := time.Now().Add(tokenLife)
	if !c.Expires.IsZero() && c.Expires.Before(expires) {
		expires = c.Expires
	}
	body, err := json.Marshal(claims{Account: c.Account, Role: c.Role, Scopes: c.Scopes, Key: c.KeyID, Box: box,
		Expires: expires.Unix()})
	if err != nil {
		return "", errors.Wrapf(err, "encode a token")
	}
	text := jwtHeader + "." + base64.RawURLEncoding.EncodeToString(body)
	return text + "." + s.seal(text), nil
}

func (s *Server) seal(text string) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// bearer checks the token of a call to the router.
func (s *Server) bearer(header string) (account.Principal, string, error) {
	bad := errors.Newf(errors.Unauthenticated, "the token for this sandbox is invalid, or has expired")
	text, ok := strings.CutPrefix(header, "Bearer ")
	i := strings.LastIndexByte(text, '.')
	if !ok || i < 0 || !hmac.Equal([]byte(s.seal(text[:i])), []byte(text[i+1:])) {
		return account.Principal{}, "", bad
	}
	_, payload, _ := strings.Cut(text[:i], ".")
	body, err := base64.RawURLEncoding.DecodeString(payload)
	var c claims
	if err != nil || json.Unmarshal(body, &c) != nil || c.Box == "" ||
		time.Since(time.Unix(c.Expires, 0)) > tokenLeeway {
		return account.Principal{}, "", bad
	}
	return account.Principal{Account: c.Account, Role: c.Role, Scopes: c.Scopes, KeyID: c.Key, Kind: account.APIKey,
		Expires: time.Unix(c.Expires, 0)}, c.Box, nil
}
