package dockerfile

import (
	"slices"

	"github.com/RelevanceAI/harvest/image/dockerfile/plan"
)

// line is a sequence of operations, each on the files of the one before. One machine executes it. Lines are mostly the
// stages of the Dockerfile.
type line struct {
	base  *plan.Vertex // whose files the first step changes; nil: the empty tree
	steps []*plan.Vertex
	needs []*plan.Vertex // of other lines
}

// steps returns the operations that make a layer. The others are images, the build context, and files that the
// Dockerfile itself contains and that no layer consists of.
func steps(p *plan.Plan) map[*plan.Vertex]bool {
	all := map[*plan.Vertex]bool{}
	layers := map[*plan.Vertex]bool{p.Target: true}
	for _, v := range p.Order {
		layers[v.Root()] = true
		if v.Op.GetMerge() != nil {
			for _, in := range v.Inputs {
				layers[in] = true
			}
		}
	}
	for _, v := range p.Order {
		all[v] = v.Image == nil && !v.IsContext() && (!v.IsInline() || layers[v])
	}
	return all
}

// lines arranges the steps of a graph, so that no two lines wait for each other.
func lines(p *plan.Plan) []*line {
	var all []*line
	isStep := steps(p)
	of := map[*plan.Vertex]*line{}
	for _, v := range p.Order {
		if !isStep[v] {
			continue
		}
		root := v.Root()
		l := of[root]
		if l == nil || l.steps[len(l.steps)-1] != root || waits(v, l, of) {
			l = &line{base: root}
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
	seen := map[*line]bool{l: true}
	var reaches func(from *line) bool
	reaches = func(from *line) bool {
		for _, need := range from.needs {
			next := of[need]
			if next == l {
				return true
			}
			if !seen[next] {
				seen[next] = true
				if reaches(next) {
					return true
				}
			}
		}
		return false
	}
	for _, in := range v.Inputs {
		if other := of[in]; other != nil && other != l && reaches(other) {
			return true
		}
	}
	return false
}

func countSteps(p *plan.Plan) int {
	n := 0
	for _, is := range steps(p) {
		if is {
			n++
		}
	}
	return n
}
