package sandbox

import (
	"fmt"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
)

// problems collects all problems of an input, so that one error reports them together.
type problems struct {
	kind     errors.Kind
	texts    []string
	remedies []string
}

// addf adds a problem. Invalid takes precedence over Unsupported, since an invalid input is invalid on every engine.
func (p *problems) addf(kind errors.Kind, remedy, format string, args ...any) {
	if p.kind == "" || kind == errors.Invalid {
		p.kind = kind
	}
	p.texts = append(p.texts, fmt.Sprintf(format, args...))
	if remedy != "" && !slices.Contains(p.remedies, remedy) {
		p.remedies = append(p.remedies, remedy)
	}
}

func (p *problems) invalidf(remedy, format string, args ...any) {
	p.addf(errors.Invalid, remedy, format, args...)
}

// add adds the public message of err.
func (p *problems) add(err error) {
	if err != nil {
		p.addf(errors.KindOf(err), errors.RemedyOf(err), "%s", errors.Message(err))
	}
}

// err returns all problems as one error, or nil.
func (p *problems) err() error {
	if len(p.texts) == 0 {
		return nil
	}
	text := strings.Join(p.texts, "; ")
	if len(p.texts) > 1 {
		text = fmt.Sprintf("%d things are wrong: %s", len(p.texts), text)
	}
	return errors.Remedy(errors.Newf(p.kind, "%s", text), "%s", strings.Join(p.remedies, "; "))
}
