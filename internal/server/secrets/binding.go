package secrets

import (
	"slices"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
)

// bindingIn returns the binding of a request. Its errors are Invalid.
func bindingIn(in *api.Binding) (*binding.Binding, error) {
	if in == nil {
		return nil, nil
	}
	var out binding.Binding
	if in.Preset != "" {
		var err error
		if out, err = binding.Preset(in.Preset); err != nil {
			return nil, err
		}
	}
	out.Body, out.Elsewhere = in.Body, binding.Elsewhere(in.Elsewhere)
	for _, h := range in.Hosts {
		var p binding.Place
		if err := errors.Join(p.Host.UnmarshalText([]byte(h.Host)),
			p.Inject.UnmarshalText([]byte(h.Inject))); err != nil {
			return nil, err
		}
		// A host that is named replaces that of the preset.
		out.Places = slices.DeleteFunc(out.Places, func(old binding.Place) bool { return old.Host == p.Host })
		out.Places = append(out.Places, p)
	}
	for _, text := range in.Allow {
		var r binding.Rule
		if err := r.UnmarshalText([]byte(text)); err != nil {
			return nil, err
		}
		out.Allow = append(out.Allow, r)
	}
	if len(out.Places) == 0 && (out.Body || out.Elsewhere != "" || len(out.Allow) > 0) {
		return nil, out.Check()
	}
	return &out, nil
}

func bindingOut(in *binding.Binding) *api.Binding {
	if in == nil {
		return nil
	}
	out := &api.Binding{Body: in.Body, Elsewhere: string(in.Elsewhere)}
	for _, p := range in.Places {
		out.Hosts = append(out.Hosts, api.BoundHost{Host: p.Host.String(), Inject: p.Inject.String()})
	}
	for _, r := range in.Allow {
		out.Allow = append(out.Allow, r.String())
	}
	return out
}
