// Package pattern has regular expressions that are compiled on first use. This binary also starts as keepers
// and as gVisor's processes, many of them, and each initialises every package. An unused expression then costs
// neither time nor memory.
package pattern

import (
	"regexp"
	"sync"
)

// New returns a function that returns the compiled expression. The function panics on first use if the
// expression is invalid.
func New(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
