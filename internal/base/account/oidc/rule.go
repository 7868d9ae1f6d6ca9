package oidc

import (
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// rule maps some people to an account and a role. Exactly one of mail, domain and group is set.
type rule struct {
	mail, domain string // in lower case
	group        string
	account      string
	role         account.Role
}

// parseRule parses WHO=ACCOUNT[:ROLE], where WHO is ann@example.org, @example.org or group:NAME. It returns
// Invalid if text is malformed.
func parseRule(text string) (rule, error) {
	who, what, _ := strings.Cut(text, "=")
	r := rule{role: account.Member}
	name, role, has := strings.Cut(what, ":")
	if has {
		r.role = account.Role(role)
	}
	r.account = name
	group, isGroup := strings.CutPrefix(who, "group:")
	local, domain, isMail := strings.Cut(strings.ToLower(who), "@")
	switch {
	case isGroup:
		r.group = group
	case isMail && local == "":
		r.domain = domain
	case isMail && domain != "":
		r.mail = local + "@" + domain
	}
	if r.group == "" && r.domain == "" && r.mail == "" || r.role != account.Admin && r.role != account.Member ||
		account.CheckName(r.account) != nil {
		return rule{}, errors.Remedy(errors.Newf(errors.Invalid, "invalid rule for sign-in: %.100q", text),
			"write it like ann@example.org=acme:admin, @example.org=acme or group:ops=personal:admin")
	}
	return r, nil
}

// fits reports whether the rule matches a person with that address and those groups. mail is "" without a
// verified address.
func (r rule) fits(mail string, groups []string) bool {
	switch {
	case r.group != "":
		return slices.Contains(groups, r.group)
	case r.domain != "":
		_, domain, _ := strings.Cut(mail, "@")
		return domain == r.domain
	}
	return mail == r.mail
}
