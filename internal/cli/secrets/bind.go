package secrets

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// bindFlags are the flags that bind a secret to hosts.
type bindFlags struct {
	preset, inject, elsewhere string
	hosts, allow              []string
	body, unbind              bool
}

func (b *bindFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&b.preset, "preset", "", "hosts of a known service: "+strings.Join(binding.Presets(), ", "))
	flags.StringSliceVar(&b.hosts, "hosts", nil, "hosts that get the values; sandboxes have placeholders (repeatable)")
	flags.StringVar(&b.inject, "inject", "", "form in which the hosts get a value unasked, such as bearer")
	flags.StringArrayVar(&b.allow, "allow", nil, "requests that get the values, such as 'GET /repos/**' (repeatable)")
	flags.StringVar(&b.elsewhere, "elsewhere", "",
		"what to do with placeholders in other requests: refuse, pass or end (default: refuse)")
	flags.BoolVar(&b.body, "body", false, "also replace placeholders in the bodies of requests that are text")
	flags.BoolVar(&b.unbind, "unbind", false, "give sandboxes the values from now on")
}

// binding returns the binding of the flags, or nil if none is given.
func (b *bindFlags) binding() (*api.Binding, error) {
	bound := b.preset != "" || len(b.hosts) > 0
	limits := b.inject != "" || len(b.allow) > 0 || b.elsewhere != "" || b.body
	switch {
	case b.unbind && (bound || limits):
		return nil, errors.Newf(errors.Invalid, "--unbind removes the binding, and takes no other flags of it")
	case b.unbind:
		return &api.Binding{}, nil
	case !bound && limits:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "a binding needs hosts"), "add --hosts or --preset")
	case !bound:
		return nil, nil
	case b.inject != "" && len(b.hosts) == 0:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "--inject is for the hosts of --hosts"),
			"leave it out: a preset knows how its hosts take values")
	}
	out := &api.Binding{Preset: b.preset, Allow: b.allow, Body: b.body, Elsewhere: b.elsewhere}
	for _, h := range b.hosts {
		out.Hosts = append(out.Hosts, api.BoundHost{Host: h, Inject: b.inject})
	}
	return out, nil
}

// hosts lists the hosts of a binding for a table.
func hosts(b *api.Binding) string {
	if b == nil {
		return "-"
	}
	var all []string
	for _, h := range b.Hosts {
		all = append(all, h.Host)
	}
	return cli.Joined(all)
}
