package dockerfile

import (
	"slices"

	"github.com/RelevanceAI/harvest/internal/image/dockerfile/plan"
)

// line is a sequence of operations, each on the files of the one before. One machine executes it. Lines are mostly the
// stages of the Dockerfile.
type line struct {
	steps []*plan.Vertex
	needs []*plan.Vertex // of other lines
}

// steps returns the operations that make a layer. The others are images, the build context, and files that the
// Dockerfile itself contains and that no layer consists of.
func steps(p *plan.Plan) map[*plan.Vertex]bool {
	layers := map[*plan.Vertex]bool{p.Target: true}
	for _, v := range p.Order {
		layers[v.Root()] = true
		if v.Op.GetMerge() != nil {
			for _, in := range v.Inputs {
				layers[in] = true
			}
		}
	}
	all := map[*plan.Vertex]bool{}
	for _, v := range p.Order {
		if v.Image == nil && !v.IsContext() && (!v.IsInline() || layers[v]) {
			all[v] = true
		}
	}
	return all
}

// lines arranges the steps of a graph, so that no two lines wait for each other.
func lines(p *plan.Plan, isStep map[*plan.Vertex]bool) []*line {
	var all []*line
	of := map[*plan.Vertex]*line{}
	for _, v := range p.Order {
		if !isStep[v] {
			continue
		}
		root := v.Root()
		l := of[root]
		if l == nil || l.steps[len(l.steps)-1] != root || waits(v, l, of) {
			l = &line{}
			all = append(all, l)
			if root != nil && isStep[root] {
				l.needs = append(l.needs, root)
			}
		}
		l.steps = append(l.steps, v)
		of[v] = l
		for _, in := range v.Inputs {
			if other := of[in]; other != nil && other != l && !slices.Contains(l.needs, in) {
				l.needs = append(l.needs, in)
			}
		}
	}
	return all
}

// waits reports whether an input of v waits for a line l, which v would continue.
func waits(v *plan.Vertex, l *line, of map[*plan.Vertex]*line) bool {
	seen := map[*line]bool{nil: true}
	var reaches func(in *plan.Vertex) bool
	reaches = func(in *plan.Vertex) bool {
		from := of[in]
		if seen[from] {
			return false
		}
		seen[from] = true
		return from == l || slices.ContainsFunc(from.needs, reaches)
	}
	return slices.ContainsFunc(v.Inputs, func(in *plan.Vertex) bool { return of[in] != l && reaches(in) })
}
