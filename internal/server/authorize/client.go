package authorize

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// The ID of a client is its registration, signed by the server (RFC 7591, appendix A.5.2). So registrations, which
// anybody may send, take no space, do not expire, and survive a restart.

// client is a registered client.
type client struct {
	Name      string   `json:"n,omitempty"`
	Redirects []string `json:"r"`
	Issued    int64    `json:"t"`
	Unique    []byte   `json:"u"`
}

// Limits of a registration, in bytes, except for redirectsAtMost.
const (
	idPrefix        = "hvc_"
	registerSize    = 16 << 10
	nameSize        = 80
	redirectSize    = 512
	redirectsAtMost = 10
)

// register answers with the ID of a new client.
func (s *Service) register(w http.ResponseWriter, r *http.Request) error {
	data, err := edge.Body(w, r, registerSize)
	if err != nil {
		return err
	}
	c, err := decodeClient(data)
	if err != nil {
		return answered(w, err)
	}
	c.Issued, c.Unique = time.Now().Unix(), make([]byte, 9)
	_, _ = rand.Read(c.Unique) // never fails
	id := s.seal(c)
	if len(id) > largest { // other requests with this ID would be refused
		return answered(w, errorf("invalid_client_metadata", "the redirect URIs are too long"))
	}
	return edge.Respond(w, http.StatusCreated, api.OAuthClient{ID: id, Issued: c.Issued, Name: c.Name,
		Redirects: c.Redirects, ClientAuth: "none", GrantTypes: []string{grantCode, grantRefresh},
		ResponseTypes: []string{"code"}})
}

// decodeClient decodes the metadata of a client. It ignores fields that it does not know (RFC 7591, section 2).
func decodeClient(data []byte) (client, error) {
	var in struct {
		Name      string   `json:"client_name"`
		Redirects []string `json:"redirect_uris"`
		Grants    []string `json:"grant_types"`
		Responses []string `json:"response_types"`
	}
	if !utf8.Valid(data) || json.Unmarshal(data, &in) != nil {
		return client{}, errorf("invalid_client_metadata", "the body is not a JSON object of client metadata")
	}
	if len(in.Grants) > 0 && !slices.Contains(in.Grants, grantCode) ||
		len(in.Responses) > 0 && !slices.Contains(in.Responses, "code") {
		return client{}, errorf("invalid_client_metadata", "this server supports the authorization code grant only")
	}
	if len(in.Redirects) == 0 || len(in.Redirects) > redirectsAtMost {
		return client{}, errorf("invalid_redirect_uri", "give 1 to %d redirect URIs", redirectsAtMost)
	}
	for _, one := range in.Redirects {
		if !goodRedirect(one) {
			return client{}, errorf("invalid_redirect_uri",
				"%.100q is neither an https address nor an http address of this machine, such as "+
					"http://127.0.0.1:3000/callback", one)
		}
	}
	return client{Name: shownName(in.Name), Redirects: in.Redirects}, nil
}

// shownName returns the name of a client without characters that could make it look like other text of a page.
func shownName(name string) string {
	name = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) || c == utf8.RuneError {
			return -1
		}
		return c
	}, name)
	for len(name) > nameSize {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return strings.TrimSpace(name)
}

// shown names a client on a page.
func (c client) shown() string {
	if c.Name == "" {
		return "A program without a name"
	}
	return c.Name
}

// cursorRedirect is the redirect URI of Cursor, which registers it beside others. Other programs cannot use an
// intercepted code without the verifier of PKCE.
const cursorRedirect = "cursor://anysphere.cursor-mcp/oauth/callback"

// hostPattern excludes characters with a meaning in the header Content-Security-Policy.
var hostPattern = pattern.New(`^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// goodRedirect reports whether clients may have a redirect URI: one with https, or one of the loopback interface
// (RFC 8252, section 7.3).
func goodRedirect(text string) bool {
	if text == cursorRedirect {
		return true
	}
	u, err := url.Parse(text)
	return err == nil && len(text) <= redirectSize && u.User == nil && !strings.Contains(text, "#") &&
		!strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c >= unicode.MaxASCII || c == '\\' }) &&
		hostPattern().MatchString(u.Host) && (u.Scheme == "https" || isLoopback(u))
}

// isLoopback reports whether u is an http address of the loopback interface.
func isLoopback(u *url.URL) bool {
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && (u.Hostname() == "localhost" || err == nil && addr.IsLoopback())
}

// mayRedirect reports whether a redirect URI is one of the client's. The port of the loopback interface may differ.
func (c client) mayRedirect(to string) bool {
	if slices.Contains(c.Redirects, to) {
		return true
	}
	u, err := url.Parse(to)
	if err != nil || !goodRedirect(to) || !isLoopback(u) {
		return false
	}
	return slices.ContainsFunc(c.Redirects, func(one string) bool {
		known, err := url.Parse(one)
		if err != nil || !isLoopback(known) {
			return false
		}
		return withoutPort(known) == withoutPort(u)
	})
}

// withoutPort returns the text of u without its port.
func withoutPort(u *url.URL) string {
	bare := *u
	bare.Host = net.JoinHostPort(u.Hostname(), "0")
	return bare.String()
}

// sign returns the signature of a registration.
func (s *Service) sign(data []byte) []byte {
	mac := hmac.New(sha256.New, s.Key)
	mac.Write([]byte("oauth client\x00"))
	mac.Write(data)
	return mac.Sum(nil)
}

// seal returns the ID of a client.
func (s *Service) seal(c client) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // & would take six bytes
	_ = encoder.Encode(c)        // never fails: it has only texts and numbers
	data := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	return idPrefix + base64.RawURLEncoding.EncodeToString(append(s.sign(data), data...))
}

// open returns the client with an ID.
func (s *Service) open(id string) (client, error) {
	unknown := errorf("invalid_client", "the client is not registered at this server")
	text, ok := strings.CutPrefix(id, idPrefix)
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || strings.ContainsAny(text, "\r\n") || len(data) <= sha256.Size ||
		!hmac.Equal(data[:sha256.Size], s.sign(data[sha256.Size:])) {
		return client{}, unknown
	}
	var c client
	if json.Unmarshal(data[sha256.Size:], &c) != nil {
		return client{}, unknown
	}
	return c, nil
}
