package lint

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// readmeLines is the maximum length of the README, a minute's reading.
const readmeLines = 150

// architectureBytes is the maximum length of ARCHITECTURE.md, a reading of ten minutes.
const architectureBytes = 12 << 10

// decisionLines is the maximum length of a decision, one page.
const decisionLines = 60

// pages checks that the README is short and explains how to start, and that ARCHITECTURE.md is short.
func pages(t *tree) []Finding {
	var all []Finding
	readme := t.docs["README.md"]
	if n := strings.Count(readme, "\n"); n > readmeLines {
		all = append(all, Finding{"README.md", 0, "pages", fmt.Sprintf("it has %d lines", n),
			fmt.Sprintf("move some to docs/; %d is the most", readmeLines)})
	}
	for _, command := range []string{"make run", "make test"} {
		if !strings.Contains(readme, command) {
			all = append(all, Finding{"README.md", 0, "pages", "it does not say `" + command + "`",
				"say how to run and test a fresh clone"})
		}
	}
	if n := len(t.docs["ARCHITECTURE.md"]); n > architectureBytes {
		all = append(all, Finding{"ARCHITECTURE.md", 0, "pages", fmt.Sprintf("it has %d bytes", n),
			fmt.Sprintf("move some to docs/; %d is the most", architectureBytes)})
	}
	return all
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)

// links checks that pages point at files that exist.
func links(t *tree) []Finding {
	var all []Finding
	for p, text := range t.docs {
		if path.Ext(p) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(m[1], ":") && !t.all[path.Join(path.Dir(p), m[1])] {
				all = append(all, Finding{p, 0, "links", m[1] + " does not exist", "link a file that does"})
			}
		}
	}
	return all
}

var decisionName = regexp.MustCompile(`^docs/decisions/(\d{3})-[a-z0-9-]+\.md$`)

// decisions checks that each decision is named NNN-words.md, has a unique number, fits on a page, and is linked
// from another page.
func decisions(t *tree) []Finding {
	var all []Finding
	numbers := map[string]string{}
	var names []string
	for p := range t.docs {
		if path.Dir(p) == "docs/decisions" {
			names = append(names, p)
		}
	}
	slices.Sort(names)
	for _, p := range names {
		m := decisionName.FindStringSubmatch(p)
		if m == nil {
			all = append(all, Finding{p, 0, "decisions", "its name is not like the others'",
				"name it docs/decisions/NNN-words.md"})
			continue
		}
		if other := numbers[m[1]]; other != "" {
			all = append(all, Finding{p, 0, "decisions", "it has the number of " + other, "take the next free one"})
		}
		numbers[m[1]] = p
		if n := strings.Count(t.docs[p], "\n"); n > decisionLines {
			all = append(all, Finding{p, 0, "decisions", fmt.Sprintf("it has %d lines", n),
				fmt.Sprintf("%d, a page, is the most", decisionLines)})
		}
		if !linked(t, p) {
			all = append(all, Finding{p, 0, "decisions", "no page links it", "add it to the list in docs/decisions.md"})
		}
	}
	return all
}

func linked(t *tree, target string) bool {
	for p, text := range t.docs {
		if strings.HasPrefix(p, "docs/decisions/") {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if path.Join(path.Dir(p), m[1]) == target {
				return true
			}
		}
	}
	return false
}
