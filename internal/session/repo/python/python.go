// Package python chooses among the interpreters of a sandbox, by the specifiers of PEP 440.
package python

import (
	"slices"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Interpreter is a Python of a sandbox.
type Interpreter struct{ Program, Version string }

// Parse parses lines with an interpreter each: its program and its version.
func Parse(out string) (all []Interpreter) {
	for line := range strings.Lines(out) {
		program, version, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && program != "" && len(numbers(version)) > 0 {
			all = append(all, Interpreter{program, version})
		}
	}
	return all
}

// Choose returns the first interpreter that satisfies a specifier.
func Choose(all []Interpreter, specifier string) (Interpreter, bool) {
	i := slices.IndexFunc(all, func(p Interpreter) bool { return satisfies(p.Version, specifier) })
	if i < 0 {
		return Interpreter{}, false
	}
	return all[i], true
}

var (
	clause  = pattern.New(`^(===|==|!=|~=|>=|<=|>|<)\s*v?([0-9]+(?:\.[0-9]+)*)(\.\*)?$`)
	leading = pattern.New(`^[0-9]+(?:\.[0-9]+)*`)
)

// numbers returns the parts of a version's number.
func numbers(version string) (parts []int) {
	for part := range strings.SplitSeq(leading().FindString(version), ".") {
		if n, err := strconv.Atoi(part); err == nil {
			parts = append(parts, n)
		}
	}
	return parts
}

// satisfies reports whether the version of a Python, a release, satisfies a specifier of PEP 440.
func satisfies(version, specifier string) bool {
	have := numbers(version)
	for text := range strings.SplitSeq(specifier, ",") {
		m := clause().FindStringSubmatch(strings.TrimSpace(text))
		if m == nil {
			return false
		}
		want := numbers(m[2])
		order := compare(have, want)
		begins := len(have) >= len(want) && slices.Equal(have[:len(want)], want)
		ok := false
		switch m[1] {
		case "==", "===":
			ok = order == 0 || m[3] != "" && begins
		case "!=":
			ok = order != 0 && (m[3] == "" || !begins)
		case "~=":
			ok = order >= 0 && len(want) > 1 && len(have) >= len(want)-1 &&
				slices.Equal(have[:len(want)-1], want[:len(want)-1])
		case ">=":
			ok = order >= 0
		case "<=":
			ok = order <= 0
		case ">":
			ok = order > 0
		case "<":
			ok = order < 0
		}
		if !ok {
			return false
		}
	}
	return true
}

// compare compares versions, of which the shorter one ends with zeros.
func compare(a, b []int) int {
	for i := range max(len(a), len(b)) {
		var x, y int
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			return x - y
		}
	}
	return 0
}
