package names

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestNames checks the names of memories of repositories with and without an address.
func TestNames(t *testing.T) {
	t.Parallel()
	const one, other = "0123456789abcdef", "fedcba9876543210"
	long := strings.Repeat("n", 200)
	for got, want := range map[string]string{
		Of("github.com", "Owner", "Name"):        "owner-name",
		Of("git.example.org", "o", "n"):          "git.example.org-o-n",
		Of("", "o", "a b/x."):                    "o-a-b-x",
		Of("gitlab.com", "a-b", "c"):             "gitlab.com-a-b-c",
		Of("g:8443", "o", "n"):                   "g-8443-o-n",
		Of("github.com", "o", ""):                "",
		Local("project", ""):                     "local-project",
		Local("project", one):                    "local-project-0123456789ab",
		Local("Project", other):                  "local-project-fedcba987654",
		Local("", one):                           "",
		Local(long, one)[maxName-2:]:             "ab",
		Local(long, one)[maxName-14 : maxName-2]: "n-0123456789",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, text := range []string{"0123456789a", "0123456789AB", "../../../../..", strings.Repeat("0", 65)} {
		if err := CheckIdentity(text); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%q: %v, want Invalid", text, err)
		}
	}
	for _, text := range []string{"", one, strings.Repeat("0", 64)} {
		if err := CheckIdentity(text); err != nil {
			t.Error(err)
		}
	}
}
