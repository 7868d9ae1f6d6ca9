package config

import (
	"encoding/base64"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// siteURL checks a URL without a path.
func siteURL(text string) string {
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil ||
		strings.TrimRight(text, "/") != u.Scheme+"://"+u.Host || names([]string{u.Hostname()}) != "" {
		return "write a URL without a path, such as https://harvest.example.org"
	}
	return ""
}

var bucketPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$`)

func bucket(text string) string {
	if text == "" || bucketPattern().MatchString(text) {
		return ""
	}
	return "write the name of a bucket, such as harvest-files"
}

func wildcard(text string) string {
	name, ok := strings.CutPrefix(text, "*.")
	if text == "" || ok && len(name) <= 190 && names([]string{name}) == "" { // a label goes before it
		return ""
	}
	return "write a wildcard, such as *.sandboxes.example.org"
}

// issuer checks the URL of a provider. The server trusts the provider's answers, so no other party may be able
// to answer in its place.
func issuer(text string) string {
	u, err := url.Parse(text)
	if text == "" || err == nil && u.Host != "" && u.User == nil && u.RawQuery == "" &&
		(u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname())) {
		return ""
	}
	return "write a URL that begins with https://"
}

// webhook checks a URL without showing it.
func webhook(text Secret) string {
	u, err := url.Parse(text.Reveal())
	if text == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil {
		return ""
	}
	return "write a URL such as https://example.org/harvest, without a password"
}

func webhookKey(text Secret) string {
	encoded, ok := strings.CutPrefix(text.Reveal(), "whsec_")
	if key, err := base64.StdEncoding.DecodeString(encoded); ok && (err != nil || len(key) == 0) {
		return "write base64 after whsec_"
	}
	return printable(text.Reveal())
}

var accountPattern = pattern.New(`^(\*|[a-z0-9]([a-z0-9-]{0,37}[a-z0-9])?)$`)

func notifiedAccounts(all []string) string {
	for _, name := range all {
		if !accountPattern().MatchString(name) {
			return "write names of accounts, such as personal,acme, or *"
		}
	}
	return ""
}

// program checks a command that the server runs.
func program(text string) string {
	if fields := strings.Fields(text); text == "" || len(fields) > 0 && filepath.IsAbs(fields[0]) &&
		!strings.ContainsFunc(text, unicode.IsControl) {
		return ""
	}
	return "write the absolute path of a program, with its arguments, such as /usr/local/bin/notify --quiet"
}

func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return "write a value without spaces and control characters"
	}
	return ""
}

func scopes(all []string) string {
	for _, scope := range all {
		if problem := printable(scope); problem != "" {
			return problem
		}
	}
	if !slices.Contains(all, "openid") {
		return "write scopes that include openid, such as openid,email,groups"
	}
	return ""
}

var allowPattern = pattern.New(`^(group:[!-<>-~]+|[!-<>-~]*@[!-<>-~]+)=[a-z0-9]([a-z0-9-]{0,37}` +
	`[a-z0-9])?(:(admin|member))?$`)

func allowed(rules []string) string {
	for _, rule := range rules {
		if !allowPattern().MatchString(rule) {
			return "write a person or group, account and role, such as ann@example.org=acme:admin, @example.org=acme " +
				"or group:ops=personal:admin"
		}
	}
	return ""
}

var customPattern = pattern.New(`^[a-z0-9][a-z0-9-]{0,39}\.(command|install|env\.[A-Za-z_][A-Za-z0-9_]*)=`)

func agentVersions(all []string) string {
	for _, text := range all {
		if name, version, _ := strings.Cut(text, "="); name == "" || version == "" {
			return "write NAME=VERSION, such as claude=2.1.332"
		}
	}
	return ""
}

func customAgents(all []string) string {
	commands := map[string]bool{}
	for _, text := range all {
		if !customPattern().MatchString(text) {
			return "write NAME.FIELD=VALUE with the field command, install or env.VARIABLE, such as " +
				"kimi.command=kimi --acp"
		}
		name, rest, _ := strings.Cut(text, ".")
		field, value, _ := strings.Cut(rest, "=")
		commands[name] = commands[name] || field == "command" && strings.TrimSpace(value) != ""
	}
	for name, given := range commands {
		if !given {
			return "write the command of the agent, such as " + name + ".command=" + name + " --acp"
		}
	}
	return ""
}

// oidcProblems checks the dependencies between the sign-in options.
func (c Config) oidcProblems(add func(key, text string)) {
	o := c.OIDC
	if o.Issuer == "" {
		return
	}
	if o.ClientID == "" {
		add("oidc.client_id",
			"oidc.issuer needs oidc.client_id; write the id that the provider assigned to this server")
	}
	if len(o.Allow) == 0 {
		add("oidc.allow", "oidc.issuer needs oidc.allow; list the people who may sign in, such as @example.org=acme")
	}
}

func filled(want string) func(string) string {
	return func(text string) string {
		if text == "" {
			return "write " + want
		}
		return printable(text)
	}
}

// taintForm matches taints of Kubernetes' nodes
// (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/).
var taintForm = pattern.New(`^[A-Za-z0-9][A-Za-z0-9./_-]{0,316}(=[A-Za-z0-9._-]{0,63})?` +
	`(:(NoSchedule|PreferNoSchedule|NoExecute))?$`)
