package binding

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
)

// prefixes begin the credentials of known services. Clients check them, and placeholders have them, too. Sources: the
// documentation of the services; for GitHub,
// https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-authentication-to-github.
var prefixes = []string{"github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "npm_", "pypi-", "hf_",
	"sk-ant-api03-", "sk-ant-oat01-", "sk-or-v1-", "sk-proj-", "sk-", "xoxb-", "xoxp-", "AIza", "AKIA", "ASIA",
	"dckr_pat_", "lin_api_", "sntrys_"}

// Sizes of placeholders, without their prefix.
const (
	minPlaceholder = 24
	maxPlaceholder = 256
)

// Placeholder returns the text that stands for a value in a sandbox: random, but the same for the same seed and name.
// It has the shape that clients of known services check: the prefix, the length, and the kinds of characters. That of a
// JSON Web Token decodes to claims without a secret. It has letters, digits, "-", "_" and "." only.
func Placeholder(seed []byte, name, value string) string {
	random := newStream(seed, name)
	value = strings.TrimSpace(value)
	if claims, ok := tokenClaims(value); ok {
		return random.token(claims)
	}
	prefix := ""
	for _, p := range prefixes {
		if strings.HasPrefix(value, p) && len(p) > len(prefix) {
			prefix = p
		}
	}
	rest := value[len(prefix):]
	rest = rest[:min(len(rest), maxPlaceholder)]
	if varied(rest) < minPlaceholder && prefix != "AKIA" && prefix != "ASIA" {
		// Too short to be found safely in requests.
		rest = strings.Repeat("a", minPlaceholder)
	}
	return prefix + random.like(rest)
}

// varied returns how many characters of a text are random in one like it.
func varied(text string) int {
	n := len(text)
	for _, kept := range "-_." {
		n -= strings.Count(text, string(kept))
	}
	return n
}

// stream is a deterministic stream of random bytes.
type stream struct {
	key   []byte
	count uint64
	left  []byte
}

func newStream(seed []byte, name string) *stream {
	mac := hmac.New(sha256.New, seed)
	mac.Write([]byte(name))
	return &stream{key: mac.Sum(nil)}
}

func (s *stream) next() byte {
	if len(s.left) == 0 {
		mac := hmac.New(sha256.New, s.key)
		mac.Write(binary.BigEndian.AppendUint64(nil, s.count))
		s.count, s.left = s.count+1, mac.Sum(nil)
	}
	b := s.left[0]
	s.left = s.left[1:]
	return b
}

// Kinds of characters.
const (
	digits = "0123456789"
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	hexes  = "0123456789abcdef"
)

// of returns a random character of an alphabet.
func (s *stream) of(alphabet string) byte {
	for {
		if b := int(s.next()); b < 256/len(alphabet)*len(alphabet) {
			return alphabet[b%len(alphabet)]
		}
	}
}

// like returns random text of the shape of a text.
func (s *stream) like(text string) string {
	hexadecimal := !strings.ContainsFunc(text, func(r rune) bool { return !strings.ContainsRune(hexes+"-", r) }) &&
		strings.ContainsAny(text, digits)
	b := []byte(text)
	for i, c := range b {
		switch {
		case c == '-' || c == '_' || c == '.':
		case hexadecimal:
			b[i] = s.of(hexes)
		case strings.IndexByte(digits, c) >= 0:
			b[i] = s.of(digits)
		case strings.IndexByte(upper, c) >= 0:
			b[i] = s.of(upper)
		default:
			b[i] = s.of(lower)
		}
	}
	return string(b)
}

// publicClaims are the claims of a JSON Web Token that clients read, and that are no secrets: RFC 7519, section 4.1,
// and those with the account of the services whose agents Harvest runs.
var publicClaims = []string{"iss", "aud", "sub", "scope", "scp", "https://api.openai.com/auth"}

// tokenClaims returns the public claims of a JSON Web Token.
func tokenClaims(value string) (map[string]json.RawMessage, bool) {
	parts := strings.Split(value, ".")
	if len(parts) != 3 || !strings.HasPrefix(value, "eyJ") {
		return nil, false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims map[string]json.RawMessage
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return nil, false
	}
	public := map[string]json.RawMessage{}
	for name, claim := range claims {
		if slices.Contains(publicClaims, name) {
			public[name] = claim
		}
	}
	return public, true
}

// farFuture is the expiry of placeholders: 2100-01-01. The broker renews the values before theirs.
const farFuture = "4102444800"

// token returns a JSON Web Token with claims and a random signature.
func (s *stream) token(claims map[string]json.RawMessage) string {
	claims["exp"] = json.RawMessage(farFuture)
	payload, err := json.Marshal(claims)
	if err != nil { // the claims were JSON
		payload = []byte(`{"exp":` + farFuture + `}`)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + encode(payload) + "." +
		s.like(strings.Repeat("aA0", 32))
}
