package pulls

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/session/text"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// TestSplitSummary checks that title and description are found in replies as agents format them, and are bounded.
func TestSplitSummary(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string][2]string{
		"Fix it\n\nIt was broken.\n":                               {"Fix it", "It was broken."},
		"# Fix it\n## What\nIt.":                                   {"Fix it", "## What\nIt."},
		"Title: Fix it\n\nBody":                                    {"Fix it", "Body"},
		"**Title: Fix it**\n\nBody":                                {"Fix it", "Body"},
		"```markdown\n`Fix it`\n\nUse:\n```sh\nmake\n```\nok\n```": {"Fix it", "Use:\n```sh\nmake\n```\nok"},
		"Fix it": {"Fix it", ""},
		"":       {"", ""},
	} {
		if head, body := splitSummary(reply); head != want[0] || body != want[1] {
			t.Errorf("%q: %q, %q", reply, head, body)
		}
	}
	head, body := splitSummary(strings.Repeat("é ", 500) + "\n" + strings.Repeat("é", maxSummary))
	if len(head) > text.MaxTitle+len("…") || len(body) > maxSummary+50 ||
		!strings.HasSuffix(body, "\n\n[the rest is left out]") || strings.ContainsRune(body, '\uFFFD') {
		t.Errorf("%q, %d bytes", head, len(body))
	}
}

// TestFillTemplate checks that all headings of a template are in the text of a pull request, in their order.
func TestFillTemplate(t *testing.T) {
	t.Parallel()
	const template = "<!-- # not this\n# nor this -->\n# What ##\n```\n# a comment\n```\n## Test\n#hash\n####### seven"
	if got := headings(template); !slices.Equal(got, []string{"What", "Test"}) {
		t.Errorf("%q", got)
	}
	for text, kept := range map[string]bool{
		"# What\nx\n## Test\ny":            true,
		"# What\n## More\nx\n### Test\ny":  true,
		"## Test\ny\n# What\nx":            false,
		"# What\nx":                        false,
		"x":                                false,
		"# What\n```\n## Test\n```\nnever": false,
	} {
		want := text
		if !kept {
			want += "\n\n" + template
		}
		if got := fill(template, text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	if got := fill("- [ ] tested", "- [x] tested"); got != "- [x] tested" {
		t.Errorf("a template without headings: %q", got)
	}
}

// TestListOfCommits checks that the list of commits is bounded.
func TestListOfCommits(t *testing.T) {
	t.Parallel()
	var subjects []string
	for i := range maxSubjects + 7 {
		subjects = append(subjects, fmt.Sprint("commit ", i))
	}
	if got := list(subjects); strings.Count(got, "\n") != maxSubjects || !strings.HasPrefix(got, "- commit 0\n") ||
		!strings.HasSuffix(got, "\n- and 7 more commits") {
		t.Errorf("%q", got)
	}
}

// TestMarkOfPullRequest checks that Harvest's own text is recognized, also with the line ends of browsers, and that
// text that a person has changed is not.
func TestMarkOfPullRequest(t *testing.T) {
	t.Parallel()
	body := "## What\n\nA text."
	p := Proposal{Session: "ses_1", Work: workspace.Work{Head: "abc"}}
	k := p.mark(pullText{title: "T", body: body})
	for name, c := range map[string]struct {
		body string
		own  bool
	}{
		"as written":       {k.attach(body), true},
		"by a browser":     {strings.ReplaceAll(k.attach(body), "\n", "\r\n") + "\r\n", true},
		"changed":          {k.attach(body + " More."), false},
		"with text behind": {k.attach(body) + "\nMore.", false},
		"of a person":      {body, false},
		"empty":            {"", false},
	} {
		got, rest := readMark(c.body)
		if own := got.body == digest(rest) && got.head == "abc"; own != c.own {
			t.Errorf("%s: %+v, %q", name, got, rest)
		}
	}
}
