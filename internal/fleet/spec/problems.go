package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Problems collects all problems of an input, so that one error reports them together.
type Problems struct {
	kind     errors.Kind
	texts    []string
	remedies []string
}

// Addf adds a problem. Invalid takes precedence over Unsupported, since an invalid input is invalid on every engine.
func (p *Problems) Addf(kind errors.Kind, remedy, format string, args ...any) {
	if p.kind == "" || kind == errors.Invalid {
		p.kind = kind
	}
	p.texts = append(p.texts, fmt.Sprintf(format, args...))
	if remedy != "" && !slices.Contains(p.remedies, remedy) {
		p.remedies = append(p.remedies, remedy)
	}
}

// Invalidf adds a problem of the kind Invalid.
func (p *Problems) Invalidf(remedy, format string, args ...any) {
	p.Addf(errors.Invalid, remedy, format, args...)
}

// Add adds the public message of err.
func (p *Problems) Add(err error) {
	if err != nil {
		p.Addf(errors.KindOf(err), errors.RemedyOf(err), "%s", errors.Message(err))
	}
}

// Require adds a problem of the server's configuration unless ok.
func (p *Problems) Require(ok bool, problem string) {
	if !ok {
		p.Invalidf("correct the configuration", "%s", problem)
	}
}

// Err returns all problems as one error, or nil.
func (p *Problems) Err() error {
	if len(p.texts) == 0 {
		return nil
	}
	text := strings.Join(p.texts, "; ")
	if len(p.texts) > 1 {
		text = fmt.Sprintf("%d things are wrong: %s", len(p.texts), text)
	}
	return errors.Remedy(errors.Newf(p.kind, "%s", text), "%s", strings.Join(p.remedies, "; "))
}

// None reports whether there is no problem yet.
func (p *Problems) None() bool { return len(p.texts) == 0 }

func (p *Problems) count() int { return len(p.texts) }
