package binding

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestPlaceholderHasTheShape(t *testing.T) {
	t.Parallel()
	seed := []byte("seed")
	for value, shape := range map[string]string{
		"ghp_" + strings.Repeat("aB3", 12):                `^ghp_[a-zA-Z0-9]{36}$`,
		"github_pat_11AAAAAAA0" + strings.Repeat("x", 60): `^github_pat_[A-Za-z0-9_]{70}$`,
		"npm_" + strings.Repeat("aB3", 12):                `^npm_[a-zA-Z0-9]{36}$`,
		"sk-ant-api03-" + strings.Repeat("aB-", 30):       `^sk-ant-api03-[a-zA-Z0-9-]{90}$`,
		"AKIAIOSFODNN7EXAMPLE":                            `^AKIA[A-Z0-9]{16}$`,
		"0123456789abcdef0123456789abcdef":                `^[0-9a-f]{32}$`,
		"123e4567-e89b-12d3-a456-426614174000":            `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`,
		"short":                                           `^[a-z]{24}$`,
		"":                                                `^[a-z]{24}$`,
		"pass word/with+signs=and?more&characters":        `^[a-z.]{40}$`,
		strings.Repeat("long", 1000):                      `^[a-z]{256}$`,
		"  sk-" + strings.Repeat("a", 40) + "\n":          `^sk-[a-z]{40}$`,
		"line one of a key\nline two of a key, long":      `^[a-z]{41}$`,
	} {
		got := Placeholder(seed, "name", value)
		if !regexp.MustCompile(shape).MatchString(got) {
			t.Errorf("%.40q: got %q, want %s", value, got, shape)
		}
		if again := Placeholder(seed, "name", value); again != got {
			t.Errorf("%.40q: got another one, %q, then %q", value, got, again)
		}
		if other := Placeholder(seed, "other", value); other == got {
			t.Errorf("%.40q: the same for another name", value)
		}
		if other := Placeholder([]byte("tree"), "name", value); other == got {
			t.Errorf("%.40q: the same for another seed", value)
		}
	}
}

// TestPlaceholderOfToken checks that clients can decode the placeholder of a JSON Web Token, and that it has only
// public claims of the value.
func TestPlaceholderOfToken(t *testing.T) {
	t.Parallel()
	encode := base64.RawURLEncoding.EncodeToString
	secret := encode([]byte("a signature"))
	value := encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(
		`{"sub":"user-1","exp":1,"session":"private","https://api.openai.com/auth":{"chatgpt_account_id":"acc-1"}}`)) +
		"." +
		secret
	got := Placeholder([]byte("seed"), "name", value)
	parts := strings.Split(got, ".")
	if len(parts) != 3 || strings.Contains(got, secret) {
		t.Fatalf("got %q", got)
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(text, &claims); err != nil {
		t.Fatal(err)
	}
	want := "map[exp:4.1024448e+09 https://api.openai.com/auth:map[chatgpt_account_id:acc-1] sub:user-1]"
	if fmt.Sprint(claims) != want {
		t.Errorf("got %v, want %s", claims, want)
	}
	if got := Placeholder([]byte("seed"), "name", "eyJub3Q.a.token"); strings.Count(got, ".") != 0 {
		t.Logf("a text like a token: %q", got)
	}
}

func FuzzPlaceholder(f *testing.F) {
	f.Add("ghp_0123456789abcdefghij")
	f.Fuzz(func(t *testing.T, value string) {
		got := Placeholder([]byte("seed"), "name", value)
		if len(got) < 20 || strings.ContainsFunc(got, func(r rune) bool {
			return !strings.ContainsRune(digits+lower+upper+"-_.", r)
		}) {
			t.Errorf("%q: got %q", value, got)
		}
		if len(value) > 8 && strings.Contains(got, value) {
			t.Errorf("%q: the placeholder has the value: %q", value, got)
		}
	})
}
