// Package names names the memories of repositories.
package names

import (
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

const (
	maxName = 104 // bytes of a name: names of volumes are bounded
	maxID   = 12  // digits of an identity in a name
)

// Of returns the name of the memory of a repository: OWNER-NAME, with the host before it if that is not github.com. ""
// if there is no name.
func Of(host, owner, name string) string {
	if name == "" {
		return ""
	}
	parts := []string{}
	for _, part := range []string{host, owner, name} {
		if part != "" && !strings.EqualFold(part, "github.com") {
			parts = append(parts, part)
		}
	}
	return fit(strings.Join(parts, "-"), maxName)
}

// Local returns the name of the memory of a repository without an address. Without an identity, all repositories whose
// directories have the same name share one memory.
func Local(name, identity string) string {
	shared := Of("", "local", name)
	if identity == "" || shared == "" {
		return shared
	}
	return fit(shared, maxName-maxID-1) + "-" + identity[:maxID]
}

// identity matches an identity.
var identity = pattern.New(`^[0-9a-f]{12,64}$`)

// CheckIdentity returns Invalid unless identity is "" or 12 to 64 hexadecimal digits.
func CheckIdentity(text string) error {
	if text == "" || identity().MatchString(text) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "invalid identity of the repository %.100q", text),
		"give 12 to 64 lower-case hexadecimal digits, such as the first commit")
}

// fit returns text in lower case, of at most size bytes, and with "-" instead of characters that names must not
// contain.
func fit(text string, size int) string {
	text = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-' {
			return c
		}
		return '-'
	}, strings.ToLower(text))
	return strings.Trim(text[:min(len(text), size)], "-.")
}
