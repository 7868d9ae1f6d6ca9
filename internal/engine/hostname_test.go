package engine_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/engine"
)

func TestHostNamesAreValid(t *testing.T) {
	t.Parallel()
	valid := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	for text, want := range map[string]string{
		"sbx_01k3": "sbx-01k3", "Dev.Box_1": "dev-box-1", "web": "web", "a_": "a", "": "sandbox", "___": "sandbox",
		"-x-": "x", "h\u00e9": "h",
		strings.Repeat("a", 62) + "_b": strings.Repeat("a", 62),
	} {
		got := engine.HostName(text)
		if u, err := url.Parse("http://" + got + "/"); got != want || !valid.MatchString(got) || err != nil ||
			u.Hostname() != got {
			t.Errorf("%q becomes %q, want %q (%v)", text, got, want, err)
		}
	}
}
