package binding

import (
	"net/url"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Rule is a kind of requests. As text it is methods, separated by commas, or "*", then a space and a pattern of paths,
// in which "*" stands for a part without slashes, and "**" for any number of parts: "GET,HEAD /repos/**".
type Rule struct {
	Methods []string // none for all
	Path    string
}

// UnmarshalText implements encoding.TextUnmarshaler. Invalid: the text is not a rule.
func (r *Rule) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	bad := errors.Remedy(errors.Newf(errors.Invalid, "invalid rule for requests: %.120q", text),
		`write methods and a path, such as "GET /repos/**" or "* /**"`)
	if len(words) != 2 || len(text) > maxText || !strings.HasPrefix(words[1], "/") {
		return bad
	}
	parsed := Rule{Path: words[1]}
	if words[0] != "*" {
		parsed.Methods = strings.Split(words[0], ",")
	}
	for _, m := range parsed.Methods {
		if m == "" || strings.ContainsFunc(m, func(c rune) bool { return c != '-' && (c < 'A' || c > 'Z') }) {
			return bad
		}
	}
	for part := range strings.SplitSeq(parsed.Path[1:], "/") {
		if part == "." || part == ".." || strings.Contains(part, "**") && part != "**" {
			return bad
		}
	}
	*r = parsed
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String returns the text of the rule.
func (r Rule) String() string {
	methods := "*"
	if len(r.Methods) > 0 {
		methods = strings.Join(r.Methods, ",")
	}
	return methods + " " + r.Path
}

// Matches reports whether a request is of this kind. path is escaped. Servers disagree on the meaning of paths with
// dot segments, empty parts, backslashes, escaped slashes and parameters (";"): a rule matches none of them.
func (r Rule) Matches(method, path string) bool {
	found := len(r.Methods) == 0
	for _, m := range r.Methods {
		found = found || m == method
	}
	if !found || !strings.HasPrefix(path, "/") {
		return false
	}
	var parts []string
	whole := strings.Split(path[1:], "/")
	for i, part := range whole {
		plain, err := url.PathUnescape(part)
		if err != nil || plain == "." || plain == ".." || plain == "" && i < len(whole)-1 ||
			strings.ContainsAny(plain, "/\\;\x00") {
			return false
		}
		parts = append(parts, plain)
	}
	return glob(strings.Split(r.Path[1:], "/"), parts)
}

// glob reports whether the parts of a path match those of a pattern. If a part does not match, only the last "**" needs
// to take one more part: what an earlier one could take instead, the last one can take, too.
func glob(pattern, parts []string) bool {
	at, retryPattern, retryParts := 0, -1, 0
	for i := 0; i < len(parts) || at < len(pattern); {
		switch {
		case at < len(pattern) && pattern[at] == "**":
			at++
			retryPattern, retryParts = at, i
		case at < len(pattern) && i < len(parts) && wild(pattern[at], parts[i]):
			at, i = at+1, i+1
		case retryPattern >= 0 && retryParts < len(parts):
			retryParts++
			at, i = retryPattern, retryParts
		default:
			return false
		}
	}
	return true
}

// wild reports whether a part of a path matches a pattern with any number of "*".
func wild(pattern, text string) bool {
	first, rest, found := strings.Cut(pattern, "*")
	if !found {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	for {
		literal, more, another := strings.Cut(rest, "*")
		if !another {
			return strings.HasSuffix(text, literal)
		}
		at := strings.Index(text, literal)
		if at < 0 {
			return false
		}
		text, rest = text[at+len(literal):], more
	}
}
