package devcontainer

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// maxFeatures is the maximum number of features of an environment, with their dependencies.
const maxFeatures = 200

// Source returns the feature of a reference, with its files.
type Source func(ctx context.Context, r Reference) (*Feature, error)

// Resolve returns the features of a configuration and those that they depend on, in the order of their installation. It
// follows dependsOn, then overrideFeatureInstallOrder, then installsAfter. The error is Invalid for features that
// depend on one another in a circle; others are those of references and of source.
func Resolve(ctx context.Context, c *Config, source Source) ([]*Feature, error) {
	r := resolver{source: source}
	var queue []*node
	for _, text := range slices.Sorted(maps.Keys(c.Features)) {
		queue = append(queue, &node{text: text, values: c.Features[text]})
	}
	if err := r.collect(ctx, queue); err != nil {
		return nil, err
	}
	if err := r.prefer(c.OverrideFeatureInstallOrder); err != nil {
		return nil, err
	}
	return r.order()
}

// node is a feature in the graph of dependencies.
type node struct {
	text     string // reference
	values   Values
	feature  *Feature
	needs    []*node     // dependsOn
	after    []Reference // installsAfter
	priority int         // by overrideFeatureInstallOrder
}

type resolver struct {
	source Source
	nodes  []*node
}

// collect fetches the features of the queue and those that they depend on, each once.
func (r *resolver) collect(ctx context.Context, queue []*node) error {
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		ref, err := ParseReference(n.text)
		if err != nil {
			return err
		}
		fetched, err := r.source(ctx, ref)
		if err != nil {
			return err
		}
		f := *fetched
		f.Reference, f.Values = ref, n.values
		n.feature = &f
		if slices.ContainsFunc(r.nodes, n.equal) {
			continue
		}
		if len(r.nodes) == maxFeatures {
			err := errors.Newf(errors.Exhausted, "the features depend on more than %d others", maxFeatures)
			return errors.Remedy(err, "remove some features")
		}
		for _, text := range slices.Sorted(maps.Keys(f.DependsOn)) {
			need := &node{text: text, values: f.DependsOn[text]}
			n.needs = append(n.needs, need)
			queue = append(queue, need)
		}
		for _, text := range f.InstallsAfter {
			// A short name, or one of another kind, is no feature that could be installed.
			if soft, err := ParseReference(text); err == nil {
				n.after = append(n.after, soft)
			}
		}
		r.nodes = append(r.nodes, n)
	}
	return nil
}

// prefer sets the priorities: the first has the highest.
func (r *resolver) prefer(order []string) error {
	for i, text := range order {
		ref, err := ParseReference(text)
		if err != nil {
			return errors.Wrapf(err, "overrideFeatureInstallOrder")
		}
		for _, n := range r.nodes {
			if n.is(ref) {
				n.priority = max(n.priority, len(order)-i)
			}
		}
	}
	return nil
}

// order installs in rounds. A round has the features of which all predecessors are installed. Of these, those with the
// highest priority are installed, in a stable order.
func (r *resolver) order() ([]*Feature, error) {
	left := slices.Clone(r.nodes)
	for _, n := range left {
		n.after = slices.DeleteFunc(n.after, func(soft Reference) bool {
			return !slices.ContainsFunc(r.nodes, func(other *node) bool { return other.is(soft) })
		})
	}
	var done []*node
	for len(left) > 0 {
		var round []*node
		highest := 0
		for _, n := range left {
			if n.ready(done) {
				round = append(round, n)
				highest = max(highest, n.priority)
			}
		}
		if len(round) == 0 {
			return nil, circle(left)
		}
		round = slices.DeleteFunc(round, func(n *node) bool { return n.priority < highest })
		slices.SortStableFunc(round, (*node).compare)
		left = slices.DeleteFunc(left, func(n *node) bool { return slices.Contains(round, n) })
		done = append(done, round...)
	}
	all := make([]*Feature, len(done))
	for i, n := range done {
		all[i] = n.feature
	}
	return all, nil
}

func circle(left []*node) error {
	var names []string
	for _, n := range left {
		names = append(names, n.text)
	}
	err := errors.Newf(errors.Invalid, "features depend on one another in a circle: %.500s", strings.Join(names, ", "))
	return errors.Remedy(err, "remove one of them; dependsOn and installsAfter are in their %s", FeatureFile)
}

// ready reports whether all predecessors of a feature are installed.
func (n *node) ready(done []*node) bool {
	for _, need := range n.needs {
		if !slices.ContainsFunc(done, need.equal) {
			return false
		}
	}
	for _, soft := range n.after {
		if !slices.ContainsFunc(done, func(d *node) bool { return d.is(soft) }) {
			return false
		}
	}
	return true
}

// equal reports whether two nodes are the same feature with the same options.
func (n *node) equal(other *node) bool {
	a, b := n.feature, other.feature
	if a.Reference.kind() != b.Reference.kind() || !maps.Equal(n.values, other.values) {
		return false
	}
	if a.Reference.Registry != "" {
		return a.Digest == b.Digest
	}
	return a.Reference.Local == b.Reference.Local && a.Reference.URL == b.Reference.URL
}

// is reports whether the feature has that name, or had it once. Versions do not count.
func (n *node) is(ref Reference) bool {
	own := n.feature.Reference
	if ref.Registry == "" {
		return own.Local == ref.Local && own.URL == ref.URL
	}
	if own.Registry == "" || own.namespace() != ref.namespace() {
		return false
	}
	return own.id() == ref.id() || slices.Contains(n.aliases(), ref.id())
}

// aliases returns the current and the former ids of the feature.
func (n *node) aliases() []string {
	return append([]string{cmp.Or(n.feature.CurrentID, n.feature.ID)}, n.feature.LegacyIDs...)
}

// compare orders the features of a round.
func (n *node) compare(other *node) int {
	a, b := n.feature.Reference, other.feature.Reference
	if a.kind() != b.kind() {
		return collate(a.Text, b.Text)
	}
	if a.Registry == "" {
		return cmp.Or(collate(a.Local, b.Local), collate(a.URL, b.URL), compareValues(n.values, other.values))
	}
	names := 0
	if !slices.ContainsFunc(n.aliases(), func(id string) bool { return slices.Contains(other.aliases(), id) }) {
		names = collate(a.id(), b.id())
	}
	tags := 0
	if a.Tag != "" && b.Tag != "" {
		tags = collate(a.Tag, b.Tag)
	}
	return cmp.Or(collate(a.namespace(), b.namespace()), names, tags, compareValues(n.values, other.values),
		strings.Compare(n.feature.Digest, other.feature.Digest))
}

// compareValues orders options by their number, their names and their values.
func compareValues(a, b Values) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	names, others := slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))
	for i, name := range names {
		if c := cmp.Or(collate(name, others[i]), collate(a[name], b[name])); c != 0 {
			return c
		}
	}
	return 0
}

// ranks are the characters that may be in names, in the order of the Unicode Collation Algorithm.
const ranks = "_-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz"

// collate compares texts as the reference implementation does, by locale: case counts only between texts that are
// otherwise equal.
func collate(a, b string) int {
	x, y := strings.ToLower(a), strings.ToLower(b)
	for i := 0; i < len(x) && i < len(y); i++ {
		if x[i] != y[i] {
			return cmp.Or(strings.IndexByte(ranks, x[i])-strings.IndexByte(ranks, y[i]), int(x[i])-int(y[i]))
		}
	}
	return cmp.Or(len(x)-len(y), strings.Compare(b, a))
}
