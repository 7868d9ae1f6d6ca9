package pattern_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

func TestNew(t *testing.T) {
	t.Parallel()
	p := pattern.New(`^a+$`)
	if first := p(); !first.MatchString("aa") || first.MatchString("b") || p() != first {
		t.Error("the expression is not what was asked for, or is compiled twice")
	}
	bad := pattern.New(`(`)
	defer func() {
		if recover() == nil {
			t.Error("an expression that is none went unnoticed")
		}
	}()
	bad()
}
