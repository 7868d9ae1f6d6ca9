package broker

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
)

// refusal is a use of a placeholder that its binding forbids.
type refusal struct {
	Credential
	why    string // one sentence without a period
	end    bool   // the sandbox ends
	status int    // of the answer; 0 means 403
}

// lend replaces the placeholders in a request by the values, and adds values that the bindings inject. If a placeholder
// may not be used here, it changes nothing.
func (e *exchange) lend(r *http.Request) *refusal {
	var lent []Credential
	for _, c := range e.credentials {
		if !carries(r, c.Placeholder) {
			continue
		}
		why := e.forbids(c, r)
		switch {
		case why == "":
			if refused := renew(r, &c); refused != nil {
				return refused
			}
			lent = append(lent, c)
		case c.Binding.Elsewhere != binding.Pass:
			return &refusal{Credential: c, why: why, end: c.Binding.Elsewhere == binding.End}
		}
	}
	if len(lent) > 0 && signed(r.URL.Query()) {
		// A signature in the address is the credential. Hosts refuse a second one, which clients send along when they
		// follow a redirect.
		r.Header.Del("Authorization")
		lent = slices.DeleteFunc(lent, func(c Credential) bool { return !carries(r, c.Placeholder) })
	}
	lent, refused := e.verify(r, lent)
	if refused != nil {
		return refused
	}
	for _, c := range lent {
		e.replace(r, c)
	}
	e.used = lent
	if len(lent) == 0 {
		e.inject(r)
	}
	if e.signature != nil {
		e.signature.again(r)
		return nil
	}
	return e.lendBody(r)
}

// renew makes the value of a credential current.
func renew(r *http.Request, c *Credential) *refusal {
	if c.Renew == nil {
		return nil
	}
	value, err := c.Renew(r.Context())
	if err == nil {
		c.Value = value
		return nil
	}
	refused := &refusal{Credential: *c, why: "the secret " + c.Secret + " cannot be used now"}
	if text := errors.Message(err); text != "" {
		refused.why = text
	}
	if !errors.Is(err, errors.Denied) { // clients may try again
		refused.status = http.StatusServiceUnavailable
	}
	return refused
}

// forbids returns why a credential may not be used for a request, or "".
func (e *exchange) forbids(c Credential, r *http.Request) string {
	s := e.s
	if c.Withheld != "" {
		return "the secret " + c.Secret + " " + c.Withheld
	}
	if _, ok := c.Binding.Place(s.host.Name, s.port, !s.secure()); !ok {
		where := s.host.Name
		if !s.secure() {
			where = "http://" + where
		}
		return "the secret " + c.Secret + " is not bound to " + where + ", and may not be sent there"
	}
	if !c.Binding.Allows(r.Method, r.URL.EscapedPath()) {
		return "the secret " + c.Secret + " may not be used for this method and path"
	}
	return ""
}

// carries reports whether a request has a placeholder in its address or its head.
func carries(r *http.Request, placeholder string) bool {
	if strings.Contains(r.URL.Path, placeholder) || strings.Contains(r.URL.RawQuery, placeholder) {
		return true
	}
	for _, values := range r.Header {
		for _, v := range values {
			if _, _, plain, ok := basic(v); strings.Contains(v, placeholder) || ok && strings.Contains(plain,
				placeholder) {
				return true
			}
		}
	}
	return false
}

// basic splits the value of a header that has credentials of HTTP's basic authentication.
func basic(value string) (scheme, encoded, plain string, ok bool) {
	scheme, encoded, ok = strings.Cut(value, " ")
	if !ok || !strings.EqualFold(scheme, "Basic") {
		return "", "", "", false
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	return scheme, encoded, string(b), err == nil
}

// replace puts the value in place of the placeholder.
func (e *exchange) replace(r *http.Request, c Credential) {
	value := c.Value.Reveal()
	for name, values := range r.Header {
		for i, v := range values {
			if scheme, _, plain, ok := basic(v); ok && strings.Contains(plain, c.Placeholder) {
				lent := strings.ReplaceAll(plain, c.Placeholder, value)
				v = scheme + " " + base64.StdEncoding.EncodeToString([]byte(lent))
				e.encode(lent)
			}
			r.Header[name][i] = strings.ReplaceAll(v, c.Placeholder, strings.TrimSpace(value))
		}
	}
	r.URL.RawQuery = strings.ReplaceAll(r.URL.RawQuery, c.Placeholder, url.QueryEscape(value))
	if strings.Contains(r.URL.Path, c.Placeholder) {
		escaped := strings.ReplaceAll(r.URL.EscapedPath(), c.Placeholder, url.PathEscape(value))
		r.URL.Path = strings.ReplaceAll(r.URL.Path, c.Placeholder, value)
		r.URL.RawPath = escaped
	}
}

// encode takes note of a text that is base64 in the request, and of the same text with placeholders, which the sandbox
// sees instead if the host repeats it.
func (e *exchange) encode(lent string) {
	held := lent
	for _, c := range e.credentials {
		if value := strings.TrimSpace(c.Value.Reveal()); value != "" {
			held = strings.ReplaceAll(held, value, c.Placeholder)
		}
	}
	if len(lent) == len(held) && lent != held {
		e.encoded = append(e.encoded, maskPair{[]byte(base64.StdEncoding.EncodeToString([]byte(lent))),
			[]byte(base64.StdEncoding.EncodeToString([]byte(held)))})
	}
}

// signatures are the parameters of addresses that carry their own credentials: those of AWS, of Google, and of Azure.
var signatures = []string{"X-Amz-Signature", "X-Goog-Signature", "Signature", "sig"}

// signed reports whether the query of an address has a signature.
func signed(query url.Values) bool {
	return slices.ContainsFunc(signatures, query.Has)
}

// inject adds the first credential that a binding injects here, unless the request has one.
func (e *exchange) inject(r *http.Request) {
	if signed(r.URL.Query()) {
		return
	}
	for _, c := range e.credentials {
		place, ok := c.Binding.Place(e.s.host.Name, e.s.port, !e.s.secure())
		in := place.Inject
		if !ok || in.Form == "" || in.Key != "" && in.Key != c.Key || e.forbids(c, r) != "" ||
			renew(r, &c) != nil {
			continue
		}
		value := strings.TrimSpace(c.Value.Reveal())
		if add(r, in, value) {
			if in.Form == binding.Basic {
				e.encode(in.Name + ":" + value)
			}
			e.used = []Credential{c}
			return
		}
	}
}

// add adds a value to a request in a form, and reports whether it did: not if the request has a credential.
func add(r *http.Request, in binding.Inject, value string) bool {
	has := func(name string) bool { return r.Header.Get(name) != "" }
	switch in.Form {
	case binding.Bearer:
		if has("Authorization") {
			return false
		}
		r.Header.Set("Authorization", "Bearer "+value)
	case binding.Basic:
		if has("Authorization") {
			return false
		}
		r.SetBasicAuth(in.Name, value)
	case binding.Header:
		if has(in.Name) {
			return false
		}
		r.Header.Set(in.Name, value)
	case binding.Query:
		if r.URL.Query().Has(in.Name) {
			return false
		}
		if r.URL.RawQuery != "" {
			r.URL.RawQuery += "&"
		}
		r.URL.RawQuery += url.QueryEscape(in.Name) + "=" + url.QueryEscape(value)
	default:
		return false
	}
	return true
}
