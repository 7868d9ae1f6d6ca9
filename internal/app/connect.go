package app

import (
	"net/http"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/session/github"
)

// rulesOf returns the network rules for connections that the server makes on behalf of an account. The personal
// account ("" as the owner of images) belongs to the operator, who can reach this machine's loopback interface
// anyway.
func rulesOf(cfg config.Config) (func(account string) netguard.Rules, error) {
	allow, err := netguard.ParseAllow(cfg.Connect.Allow)
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "connect.allow: %s", errors.Message(err))
	}
	hosts := slices.Clone(cfg.Registries.Insecure)
	for _, mirrors := range cfg.Registries.MirrorsByHost() {
		for _, mirror := range mirrors {
			host, _, _ := strings.Cut(mirror, "/")
			hosts = append(hosts, host)
		}
	}
	for i, h := range hosts {
		if !strings.Contains(h, ":") {
			hosts[i] = h + ":443"
			hosts = append(hosts, h+":80")
		}
	}
	return func(name string) netguard.Rules {
		return netguard.Rules{Allow: allow, Hosts: hosts, Loopback: isPersonal(name)}
	}, nil
}

func isPersonal(name string) bool { return name == "" || name == account.Personal }

// transports returns a function from account to transport: one transport for the operator's account, and one
// shared by all others.
func transports(rules func(string) netguard.Rules,
	make func(netguard.Rules) http.RoundTripper) func(account string) http.RoundTripper {
	own, other := make(rules(account.Personal)), make(rules("others"))
	return func(name string) http.RoundTripper {
		if isPersonal(name) {
			return own
		}
		return other
	}
}

// clients returns a function from account to its client for GitHub.
func clients(rules func(string) netguard.Rules) func(account string) *http.Client {
	find := transports(rules, func(r netguard.Rules) http.RoundTripper { return r.NewTransport(nil) })
	return func(name string) *http.Client { return &http.Client{Transport: find(name), Timeout: github.Timeout} }
}

// connections reports the networks to which accounts may make the server connect.
func connections(cfg config.Config) finding {
	f := finding{Name: "connections", OK: true,
		Detail: "for images, S3 and GitHub the server connects to the internet; " +
			"for the account personal to this machine's loopback, too"}
	if _, err := rulesOf(cfg); err != nil {
		f.OK, f.Needed, f.Detail, f.Remedy = false, true, errors.Message(err), errors.RemedyOf(err)
		return f
	}
	if len(cfg.Connect.Allow) > 0 {
		f.Detail += "; for all accounts to " + strings.Join(cfg.Connect.Allow, ", ")
	}
	return f
}
