package plan_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/image/dockerfile/plan"
)

// TestSources lists the paths of a context that Dockerfiles name.
func TestSources(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"FROM a\nCOPY a b/ ../c /x/\nCOPY [\"d e\", \"/x\"]\nADD f https://example.org/g /x/": {
			"a", "b", "c", "d e", "f"},
		"FROM a AS one\nFROM b\nCOPY --from=one /a /b\nCOPY . /x":               {""},
		"FROM a\nCOPY *.txt sub/?[ab] /x/":                                      {"*.txt", "sub/?[ab]"},
		"ARG D=one\nFROM a\nARG E=$D\nENV F=${E}/two\nCOPY $F/x /x\nCOPY $D /y": {"one/two/x", "one"},
		"FROM a\nARG GIVEN=no\nCOPY $GIVEN/x /x":                                {"yes/x"},
		"FROM a\nCOPY known/dir-$UNKNOWN/x /x":                                  {"known"},
		"FROM a\nCOPY <<EOF /x\ntext\nEOF\nARG M=m\nRUN --mount=type=bind,source=$M,target=/m " +
			"--mount=type=cache,target=/c true": {"m"},
		"FROM a\nRUN --mount=target=/m true": {""},
		"COPY a b":                           nil,
		"FROM a\nODD":                        nil,
		"":                                   nil,
	} {
		if diff := cmp.Diff(want, plan.Sources(text, map[string]string{"GIVEN": "yes"})); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

// TestSourcesAreBounded checks that values which double with each line are given up, and not the paths before them.
func TestSourcesAreBounded(t *testing.T) {
	t.Parallel()
	text := "FROM a\nENV A=0123456789\n" + strings.Repeat("ENV A=$A$A\n", 60) + "COPY a/$A b/" +
		strings.Repeat("$A", 5000) + " c/x /y/\n"
	got := plan.Sources(text, map[string]string{"B": "b"})
	if len(got) != 3 || len(got[0]) > 64<<10 || got[1] != "b" || got[2] != "c/x" {
		t.Errorf("%d paths: %.200q", len(got), got)
	}
}
