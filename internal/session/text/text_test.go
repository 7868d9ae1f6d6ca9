package text

import (
	"strings"
	"testing"
)

func TestTitle(t *testing.T) {
	t.Parallel()
	for prompt, want := range map[string]string{
		"":                        "",
		" fix \n the  test ":      "fix the test",
		strings.Repeat("ab ", 40): strings.TrimSpace(strings.Repeat("ab ", 26)) + "…",
		strings.Repeat("ü", 100):  strings.Repeat("ü", 40) + "…",
	} {
		if got := Title(prompt); got != want {
			t.Errorf("%q: %q, want %q", prompt, got, want)
		}
	}
}
