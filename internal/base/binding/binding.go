// Package binding describes where the values of a secret may go. A sandbox that gets a bound secret has placeholders in
// place of the values. The server replaces them in requests to the places of the binding, and nowhere else.
package binding

import (
	"slices"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Binding is the binding of one secret. Places are required.
type Binding struct {
	Places []Place `json:"places"`
	// Allow limits the requests that get values: a method and a path each, such as "GET /repos/**". Without any, every
	// request does.
	Allow []Rule `json:"allow,omitempty"`
	// Body also replaces placeholders in the bodies of requests that are text.
	Body bool `json:"body,omitempty"`
	// Elsewhere handles requests with a placeholder that the binding does not cover.
	Elsewhere Elsewhere `json:"elsewhere,omitempty"`
}

// Place is a server, or several ones, with the form in which they take a value.
type Place struct {
	Host Host `json:"host"`
	// Inject adds the value to requests without a credential; the zero value does not.
	Inject Inject `json:"inject,omitzero"`
}

// Elsewhere is the handling of a placeholder in a request that the binding does not cover.
type Elsewhere string

// The ways to handle it. The zero value is Refuse.
const (
	Refuse Elsewhere = "refuse" // answer with the status 403
	Pass   Elsewhere = "pass"   // send the placeholder
	End    Elsewhere = "end"    // answer with 403, and end the sandbox
)

// Limits of a binding.
const (
	maxPlaces = 64
	maxRules  = 64
	maxText   = 1024 // bytes of a place or a rule
)

// Check returns Invalid if the binding cannot be used.
func (b Binding) Check() error {
	switch {
	case len(b.Places) == 0:
		return errors.Remedy(errors.Newf(errors.Invalid, "the secret is bound to no host"),
			"name at least one, such as --hosts api.example.org")
	case len(b.Places) > maxPlaces || len(b.Allow) > maxRules:
		return errors.Newf(errors.Invalid, "a secret can be bound to %d hosts with %d rules at most", maxPlaces,
			maxRules)
	case !slices.Contains([]Elsewhere{"", Refuse, Pass, End}, b.Elsewhere):
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid handling elsewhere: %.80q", b.Elsewhere),
			"use refuse, pass or end")
	}
	for _, p := range b.Places {
		if p.Host.Name == "" {
			return badHost("")
		}
	}
	return nil
}

// parsePlace returns the place of a text: a host, and the way to inject after a space.
func parsePlace(text string) (p Place, err error) {
	host, inject, _ := strings.Cut(text, " ")
	return p, errors.Join(p.Host.UnmarshalText([]byte(host)), p.Inject.UnmarshalText([]byte(inject)))
}

// Place returns the place of a server, the most specific one. ok is false without one.
func (b Binding) Place(name string, port int, plain bool) (found Place, ok bool) {
	for _, p := range b.Places {
		if p.Host.Matches(name, port, plain) && (!ok || len(p.Host.Name) > len(found.Host.Name)) {
			found, ok = p, true
		}
	}
	return found, ok
}

// Allows reports whether a request may get values. path is the escaped path of the request.
func (b Binding) Allows(method, path string) bool {
	return len(b.Allow) == 0 || slices.ContainsFunc(b.Allow, func(r Rule) bool { return r.Matches(method, path) })
}

// Host is a server, or all below a domain. As text it is "api.example.org", "*.example.org", an address, each with an
// optional ":port" (default 443), or "http://" and the same for a server without TLS (default port 80).
type Host struct {
	Name  string // domain in lower case, possibly with a leading "*.", or an address
	Port  int
	Plain bool // HTTP without TLS
}

// The default ports.
const (
	portTLS   = 443
	portPlain = 80
)

const hostRemedy = `write a domain ("api.example.org"), all below one ("*.example.org") or an address, ` +
	`each with an optional :port, and "http://" in front for a server without TLS`

func badHost(text string) error {
	return errors.Remedy(errors.Newf(errors.Invalid, "invalid host: %.120q", text), hostRemedy)
}

// UnmarshalText implements encoding.TextUnmarshaler. Invalid: the text is not a host.
func (h *Host) UnmarshalText(text []byte) error {
	whole := string(text)
	rest, plain := strings.CutPrefix(whole, "http://")
	if !plain {
		rest = strings.TrimPrefix(rest, "https://")
	}
	parsed := Host{Plain: plain, Port: portTLS}
	if plain {
		parsed.Port = portPlain
	}
	name, port, hasPort := rest, "", false
	switch {
	case strings.HasPrefix(rest, "["):
		inside, after, closed := strings.Cut(rest[1:], "]")
		if !closed || after != "" && after[0] != ':' {
			return badHost(whole)
		}
		name = inside
		port, hasPort = strings.CutPrefix(after, ":")
	case strings.Count(rest, ":") == 1:
		name, port, hasPort = strings.Cut(rest, ":")
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return badHost(whole)
		}
		parsed.Port = int(n)
	}
	if len(whole) > maxText || !validName(name) {
		return badHost(whole)
	}
	parsed.Name = strings.ToLower(strings.TrimSuffix(name, "."))
	*h = parsed
	return nil
}

// validName reports whether a text can be the name or the address of a server. Package gateway reads it exactly.
func validName(name string) bool {
	name = strings.TrimPrefix(name, "*.")
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '.' && r != '-' && r != '_' && r != ':' && (r < '0' || r > '9') && (r < 'a' || r > 'z') &&
			(r < 'A' || r > 'Z') && r < 0x80
	})
}

// MarshalText implements encoding.TextMarshaler.
func (h Host) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// String returns the shortest text of the host.
func (h Host) String() string {
	text := h.Name
	if strings.Contains(text, ":") {
		text = "[" + text + "]"
	}
	if h.Plain {
		text = "http://" + text
	}
	if h.Plain && h.Port != portPlain || !h.Plain && h.Port != portTLS {
		text += ":" + strconv.Itoa(h.Port)
	}
	return text
}

// Matches reports whether a server, whose name is in lower case, is one of h.
func (h Host) Matches(name string, port int, plain bool) bool {
	if h.Port != port || h.Plain != plain {
		return false
	}
	below, wildcard := strings.CutPrefix(h.Name, "*")
	return h.Name == name || wildcard && len(name) > len(below) && strings.HasSuffix(name, below)
}

// Form is the form of a credential in a request.
type Form string

// The forms.
const (
	Bearer Form = "bearer" // Authorization: Bearer VALUE
	Basic  Form = "basic"  // Authorization: Basic, with the name as the user
	Header Form = "header" // the header with the name
	Query  Form = "query"  // the parameter with the name
	SigV4  Form = "sigv4"  // a signature of AWS, version 4, in place of one with the placeholders
)

// Inject is a way to add a value to requests. As text it is "bearer KEY", "basic USER KEY", "header NAME KEY", "query
// NAME KEY" or "sigv4 SERVICE REGION". KEY names the pair of the secret, and may be missing if there is only one;
// SERVICE and REGION may be missing: then they are those that the client signs for.
type Inject struct {
	Form Form
	Name string // of the user, the header or the parameter; the service of SigV4
	Key  string // of the secret's pair; the region of SigV4
}

// UnmarshalText implements encoding.TextUnmarshaler. Invalid: the text is not a way to inject.
func (i *Inject) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	if len(words) == 0 {
		*i = Inject{}
		return nil
	}
	parsed := Inject{Form: Form(words[0])}
	rest := words[1:]
	named := parsed.Form == Basic || parsed.Form == Header || parsed.Form == Query
	if (named || parsed.Form == SigV4) && len(rest) > 0 {
		parsed.Name, rest = rest[0], rest[1:]
	}
	if len(rest) > 0 {
		parsed.Key, rest = rest[0], rest[1:]
	}
	known := named || parsed.Form == Bearer || parsed.Form == SigV4
	if !known || named && parsed.Name == "" || len(rest) > 0 || len(text) > maxText ||
		strings.ContainsFunc(parsed.Name, notToken) {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid way to inject a secret: %.120q", text),
			`use "bearer", "basic USER", "header NAME", "query NAME" or "sigv4 SERVICE REGION"`)
	}
	*i = parsed
	return nil
}

// notToken reports whether a rune cannot be part of the name of a header: RFC 9110, token.
func notToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

// MarshalText implements encoding.TextMarshaler.
func (i Inject) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// String returns the text of i.
func (i Inject) String() string {
	return strings.Join(slices.DeleteFunc([]string{string(i.Form), i.Name, i.Key},
		func(s string) bool { return s == "" }), " ")
}
