package lint

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
)

// packageLines is the maximum number of lines of a package, without tests and generated files: a person can keep no
// larger package in mind. Lower numbers made twins of packages: a file and a package of one noun.
const packageLines = 5000

// largePackages are the packages with more lines, and their maximum, which only falls.
var largePackages = map[string]int{
	"internal/engine/enginetest": 5740,  // a check of the suite per function
	"internal/modal":             10830, // the handlers of Modal's RPCs
	"tools/bench":                6640,  // a row of the benchmark per file
}

// slack is by how many lines a large package may be below its maximum before the maximum must be lowered.
const slack = 100

// packageSizes checks that packages stay within packageLines, or within their maximum in large.
func packageSizes(t *tree, large map[string]int) []Finding {
	size := map[string]int{}
	for _, f := range t.files {
		if !f.isTest() && !ast.IsGenerated(f.ast) {
			size[f.dir()] += f.lines
		}
	}
	var all []Finding
	find := func(dir, text, instead string) { all = append(all, Finding{dir, 0, "package size", text, instead}) }
	for _, dir := range slices.Sorted(maps.Keys(size)) {
		n, most := size[dir], max(packageLines, large[dir])
		if n > most {
			find(dir, fmt.Sprintf("the package has %d lines", n),
				fmt.Sprintf("split it by subject; %d is the most", most))
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(large)) {
		switch n := size[dir]; {
		case n <= packageLines:
			find(dir, fmt.Sprintf("the package has only %d lines", n), "remove it from largePackages")
		case n < large[dir]-slack:
			find(dir, fmt.Sprintf("the package has only %d lines", n), "lower its number in largePackages")
		}
	}
	return all
}
