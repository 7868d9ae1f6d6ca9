package fleet

import (
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// isolations returns an engine for each kind of isolation that requests may name.
func isolations(o Options) (map[string]engine.Engine, error) {
	if len(o.Isolations) == 0 {
		return nil, nil
	}
	several, ok := o.Engine.(engine.Isolator)
	if !ok {
		err := errors.Newf(errors.Unsupported, "the engine %s has one kind of isolation", o.Engine.Name())
		return nil, errors.Remedy(err,
			"remove isolation.allowed and isolation.default from the configuration")
	}
	kinds := map[string]engine.Engine{}
	for _, kind := range o.Isolations {
		eng, err := several.Isolation(kind)
		if err != nil { // never another kind instead
			return nil, errors.Wrapf(err, "the isolation %s", kind)
		}
		kinds[kind] = eng
	}
	return kinds, nil
}

// isolated returns the engine that makes sandboxes with a kind of isolation. "" is the engine's own.
func isolated(f *Fleet, kind string) engine.Engine {
	if eng := f.kinds[kind]; eng != nil {
		return eng
	}
	return f.opts.Engine
}
