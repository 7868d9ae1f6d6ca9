package record

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestDiagramShowsTheTransitions checks that the diagram in docs/states.md matches the table.
func TestDiagramShowsTheTransitions(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../../docs/states.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "States of a sandbox")
	if !found {
		t.Fatal("docs/states.md has no section \"States of a sandbox\"")
	}
	_, section, _ = strings.Cut(section, "```mermaid")
	diagram, _, found := strings.Cut(section, "```")
	if !found {
		t.Fatal("the section has no mermaid diagram")
	}
	drawn := map[Status][]Status{}
	for _, m := range regexp.MustCompile(`(?m)^\s*(\w+)\s*-->\s*(\w+)`).FindAllStringSubmatch(diagram, -1) {
		drawn[Status(m[1])] = append(drawn[Status(m[1])], Status(m[2]))
	}
	want := map[Status][]Status{}
	for from, to := range transitions {
		if len(to) > 0 {
			want[from] = slices.Sorted(slices.Values(to))
		}
	}
	for from := range drawn {
		slices.Sort(drawn[from])
	}
	if diff := cmp.Diff(want, drawn); diff != "" {
		t.Errorf("the diagram differs from the table (-table +diagram):\n%s", diff)
	}
}

func TestTransitionsAreComplete(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(slices.Sorted(slices.Values(Statuses)), slices.Sorted(maps.Keys(transitions))); diff != "" {
		t.Errorf("Statuses and the table differ:\n%s", diff)
	}
	reached := map[Status]bool{Creating: true}
	for _, from := range Statuses {
		for _, to := range transitions[from] {
			reached[to] = true
			if !from.Can(to) {
				t.Errorf("%s cannot go to %s, although the table says so", from, to)
			}
		}
		if from.Can(from) || from.Can(Creating) {
			t.Errorf("%s can go back to itself or to creating", from)
		}
	}
	for _, s := range Statuses {
		if !reached[s] {
			t.Errorf("nothing leads to %s", s)
		}
		if ended := s == Terminated || s == Failed; s.Ended() != ended {
			t.Errorf("%s.Ended() = %t, want %t", s, s.Ended(), ended)
		}
	}
}

func TestRequireStatus(t *testing.T) {
	t.Parallel()
	for _, s := range Statuses {
		sb := Sandbox{ID: "sbx_1", Status: s, Reason: "because"}
		err := sb.RequireStatus(Running, Lost)
		if allowed := s == Running || s == Lost; allowed != (err == nil) {
			t.Errorf("%s: %v", s, err)
		}
		if err == nil {
			continue
		}
		kind := map[bool]errors.Kind{true: errors.Gone, false: errors.Conflict}[s.Ended()]
		if !errors.Is(err, kind) || !strings.Contains(errors.Message(err), "sbx_1 is "+string(s)+" (because)") {
			t.Errorf("%s: %v, want one that names id, state and reason", s, err)
		}
		remedy := map[bool]string{true: "create a new sandbox; for details of this one: harvest sandbox get sbx_1",
			false: "wait until it is running or lost"}[s.Ended()]
		if got := errors.RemedyOf(err); got != remedy {
			t.Errorf("%s: remedy %q, want %q", s, got, remedy)
		}
	}
}
