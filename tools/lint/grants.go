package lint

import (
	"slices"
	"strconv"
	"strings"
)

// unusedGrants returns the grants of layers that no import of the module uses. Imports by tests do
// not count: they need no grant.
func unusedGrants(t *tree, rows []row) []Finding {
	used := map[[2]string]bool{} // row and grant
	for _, f := range t.files {
		i := slices.IndexFunc(rows, func(r row) bool { return fits(r.pkg, f.pkg()) })
		if i < 0 || f.isTest() {
			continue
		}
		for _, spec := range f.ast.Imports {
			target, _ := strconv.Unquote(spec.Path.Value)
			dep, ours := strings.CutPrefix(target, modulePath+"/")
			dep = short(dep)
			if !ours || slices.Contains(above, dep) {
				continue
			}
			for _, p := range rows[i].may {
				if fits(p, dep) {
					used[[2]string{rows[i].pkg, p}] = true
				}
			}
		}
	}
	var all []Finding
	for _, r := range rows {
		for _, p := range r.may {
			if !used[[2]string{r.pkg, p}] {
				all = append(all, Finding{"tools/lint/layers.go", 0, "grants",
					"nothing in " + r.pkg + " imports " + p, "remove the grant"})
			}
		}
	}
	return all
}
