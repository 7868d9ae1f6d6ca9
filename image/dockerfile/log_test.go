package dockerfile

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/image"
)

// TestBuildLogHidesEncodedSecrets checks that a secret is hidden in every usual encoding, not only in plain form.
func TestBuildLogHidesEncodedSecrets(t *testing.T) {
	t.Parallel()
	const secret = "s3cret/canary+value?"
	const lines = "first-line-of-key\nsecond-line-of-key\n"
	var got []string
	l := newLog(image.BuildOptions{Log: func(line string) { got = append(got, line) },
		Secrets: map[string][]byte{"a": []byte(secret), "b": []byte(lines)}}, 1)
	for name, form := range map[string]string{
		"plain": secret, "base64": base64.StdEncoding.EncodeToString([]byte(secret)),
		"base64 in a text": base64.StdEncoding.EncodeToString([]byte("user:" + secret)),
		"base64 for URLs":  base64.RawURLEncoding.EncodeToString([]byte(secret)), "URL": url.QueryEscape(secret),
		"path": url.PathEscape(secret),
		"hex":  hex.EncodeToString([]byte(secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"lines in base64": base64.StdEncoding.EncodeToString([]byte(lines)), "a line": "second-line-of-key",
	} {
		got = nil
		l.step("run", "before "+form+" after")
		text := strings.Join(got, "\n")
		if strings.Contains(text, form) || !strings.Contains(text, hiddenKey) || !strings.Contains(text, "before ") ||
			!strings.Contains(text, " after") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestStepsSayHowLong checks that the log has the duration of each step that took a while.
func TestStepsSayHowLong(t *testing.T) {
	t.Parallel()
	var got []string
	l := newLog(image.BuildOptions{Log: func(line string) { got = append(got, line) }}, 1)
	l.ended("[2/3] COPY a b", 400*time.Millisecond)
	l.ended("[3/3] RUN [ a ] b", 80*time.Second)
	if text := strings.Join(got, "\n"); text != "[3/3] done in 1m20s" {
		t.Errorf("the log: %s", text)
	}
}
