package modal

import (
	"context"
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/modal/tunnels"
)

const (
	connectPort   = 8080
	connectQuery  = "_modal_connect_token"
	connectCookie = "_modal_connect_token"
	userData      = "X-Verified-User-Data"
	longestData   = 512
	connectMethod = "connect/" // method in the audit log for a request with a connect token
)

// pass is the content of a connect token.
type pass struct {
	Account string `json:"acc"`
	Key     string `json:"key"` // id of the key that made it; the token ends with that key
	Box     string `json:"connect"`
	Port    int    `json:"port"`
	Data    string `json:"data,omitempty"`
	Expires int64  `json:"exp"`
}

// SandboxCreateConnectTokenV2 implements ModalClient. The token gives HTTP access to one port of the sandbox
// until the sandbox or the caller's key ends.
func (c *control) SandboxCreateConnectTokenV2(ctx context.Context,
	req *pb.SandboxCreateConnectTokenRequest) (*pb.SandboxCreateConnectTokenResponse, error) {
	b, sb, err := c.s.sandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	port := connectPort
	if req.HasPort() {
		port = int(req.GetPort())
	}
	if port < 1 || port > 65535 || len(req.GetUserMetadata()) > longestData {
		return nil, errors.Newf(errors.Invalid, "Invalid port %d, or user_metadata of more than %d characters",
			port, longestData)
	}
	body, err := json.Marshal(pass{Account: b.account, Key: callerOf(ctx).KeyID, Box: b.id, Port: port,
		Data: req.GetUserMetadata(), Expires: sb.Expires.Unix()})
	if err != nil {
		return nil, errors.Wrapf(err, "encode a token")
	}
	text := jwtHeader + "." + base64.RawURLEncoding.EncodeToString(body)
	address, err := c.s.connector(ctx)
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateConnectTokenResponse_builder{Url: "http://" + address,
		Token: text + "." + c.s.seal(text)}.Build(), nil
}

// SandboxCreateConnectToken implements ModalClient.
func (c *control) SandboxCreateConnectToken(ctx context.Context,
	req *pb.SandboxCreateConnectTokenRequest) (*pb.SandboxCreateConnectTokenResponse, error) {
	return c.SandboxCreateConnectTokenV2(ctx, req)
}

// connector returns the address of the listener for HTTP with connect tokens. It starts the listener on the
// first call.
func (s *Server) connector(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connects != nil {
		return s.connects.Addr().String(), nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", errors.Explainf(err, errors.Exhausted, "no port is free on this machine")
	}
	s.connects = l
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+identityKeys, s.keys)
	mux.HandleFunc("/", s.connect)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return s.ctx }}
	context.AfterFunc(s.ctx, func() { _ = server.Close() })
	s.tasks.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			logf.Errorf(s.ctx, "serve connect tokens: %v", err)
		}
	})
	return l.Addr().String(), nil
}

// passOf checks a connect token.
func (s *Server) passOf(text string) (pass, bool) {
	var p pass
	i := strings.LastIndexByte(text, '.')
	if i < 0 || !hmac.Equal([]byte(s.seal(text[:i])), []byte(text[i+1:])) {
		return p, false
	}
	_, payload, _ := strings.Cut(text[:i], ".")
	body, err := base64.RawURLEncoding.DecodeString(payload)
	ok := err == nil && json.Unmarshal(body, &p) == nil && p.Box != "" && time.Now().Before(time.Unix(p.Expires, 0))
	return p, ok
}

// connect forwards a request to the sandbox of its token. A token in the query becomes a cookie. Each request
// has a line in the audit log, as requests for ports have in the native API.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	call := Call{Address: r.RemoteAddr, Method: connectMethod}
	defer func() {
		if s.opts.Audit != nil {
			s.opts.Audit(r.Context(), call)
		}
	}()
	refuse := func(status int, code codes.Code, text string) {
		call.Code = code
		http.Error(w, text, status)
	}
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	query := r.URL.Query()
	if q := query.Get(connectQuery); q != "" {
		token = q
		query.Del(connectQuery)
		r.URL.RawQuery = query.Encode()
		http.SetCookie(w, &http.Cookie{Name: connectCookie, Value: q, Path: "/", HttpOnly: true,
			SameSite: http.SameSiteLaxMode})
	} else if cookie, err := r.Cookie(connectCookie); err == nil && token == "" {
		token = cookie.Value
	}
	p, ok := s.passOf(token)
	if !ok {
		refuse(http.StatusUnauthorized, codes.Unauthenticated, "the connect token is not valid, or has ended")
		return
	}
	call.Account, call.KeyID, call.Method = p.Account, p.Key, connectMethod+p.Box+"/"+strconv.Itoa(p.Port)
	ctx, stop, err := s.whilePresent(r.Context(), account.Principal{Account: p.Account, KeyID: p.Key})
	if err != nil {
		if errors.KindOf(err) == errors.Unauthenticated {
			refuse(http.StatusUnauthorized, codes.Unauthenticated, errors.Message(err))
			return
		}
		refuse(http.StatusBadGateway, codes.Unavailable, errors.Message(err))
		return
	}
	defer stop()
	r = r.WithContext(ctx)
	b, err := s.boxes.get(ctx, p.Account, p.Box)
	if err != nil {
		refuse(http.StatusBadGateway, codes.Unavailable, errors.Message(err))
		return
	}
	if !tunnels.Allowed(b.def.GetInboundCidrAllowlist(), r.RemoteAddr) {
		refuse(http.StatusForbidden, codes.PermissionDenied, "the sandbox takes no connections from this address")
		return
	}
	target := &url.URL{Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(p.Port)}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(target)
			pr.SetXForwarded()
			pr.Out.Header.Del("Authorization")
			pr.Out.Header.Del(userData)
			if p.Data != "" {
				pr.Out.Header.Set(userData, p.Data)
			}
		},
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _,
			_ string) (net.Conn, error) {
			return s.opts.Fleet.Dial(ctx, p.Account, p.Box, p.Port)
		}},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refuse(http.StatusBadGateway, codes.Unavailable, errors.Message(err))
		},
	}
	// Otherwise, net/http closes the body of an HTTP/1 request once the answer begins, and an early answer is cut.
	_ = http.NewResponseController(w).EnableFullDuplex()
	proxy.ServeHTTP(w, r)
}
