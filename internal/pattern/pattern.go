// Package pattern has regular expressions that are compiled when they are first used. This binary also starts as keepers and as gVisor's
// processes, many of them, and each initialises every package: what need not be made then costs neither time nor memory.
package pattern

import (
	"regexp"
	"sync"
)

// New returns what returns the compiled expression. It panics, when first used, if the expression is none.
func New(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
