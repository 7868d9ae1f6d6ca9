package lint

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
)

// requirementsPage has the table of the requirements: number, requirement, proof.
const requirementsPage = "docs/requirements.md"

// unproven are the requirements that no test can prove, with the reasons.
var unproven = map[string]string{
	"A2":  "no test decides by measured time: the benchmark measures it",
	"8.8": "the order in which a test and its code were written is not in the tree",
}

var (
	missionComment    = regexp.MustCompile(`(?m)^\s*(?://|#) mission: (.*)$`)
	requirementNumber = regexp.MustCompile(`^([A-F]|\d+\.)\d+$`)
	proofName         = regexp.MustCompile("`([^`]+)`")
)

// requirement is a row of the table.
type requirement struct {
	number string
	proofs []string // tests as pkg.TestName, and scripts by file name
	line   int
}

// missions checks that the requirements named in comments are in the table, and that the table names proofs that
// exist and name their requirements.
func missions(t *tree) []Finding {
	table, all := readRequirements(t.docs[requirementsPage])
	known := map[string]bool{}
	for _, r := range table {
		known[r.number] = true
	}
	look := func(p, text string, line int) {
		for _, id := range missionsIn(text) {
			if !known[id] {
				all = append(all, Finding{p, line, "missions", "there is no requirement " + id,
					"name one of " + requirementsPage + ", several with commas"})
			}
		}
	}
	for _, f := range t.files {
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				look(f.path, c.Text, f.line(c))
			}
		}
	}
	for p, text := range t.docs {
		if path.Ext(p) == ".txtar" {
			look(p, text, 0)
		}
	}
	return append(all, checkProofs(t, table)...)
}

// missionsIn returns the numbers in comments that name requirements.
func missionsIn(text string) []string {
	var ids []string
	for _, m := range missionComment.FindAllStringSubmatch(text, -1) {
		ids = append(ids, strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	return ids
}

// readRequirements reads the rows of the table, and reports malformed and duplicate ones.
func readRequirements(text string) ([]requirement, []Finding) {
	var table []requirement
	var all []Finding
	seen := map[string]bool{}
	line := 0
	for row := range strings.Lines(text) {
		line++
		find := func(text, instead string) {
			all = append(all, Finding{requirementsPage, line, "missions", text, instead})
		}
		row = strings.TrimSpace(row)
		if !strings.HasPrefix(row, "|") || strings.HasPrefix(row, "|-") || strings.HasPrefix(row, "| number |") {
			continue
		}
		cells := strings.Split(strings.Trim(row, "|"), "|")
		number := strings.TrimSpace(cells[0])
		switch {
		case len(cells) != 3:
			find(fmt.Sprintf("the row has %d cells", len(cells)), "write number, requirement and proof")
			continue
		case !requirementNumber.MatchString(number):
			find(fmt.Sprintf("invalid number %q", number), "write one such as A3 or 4.6")
			continue
		case seen[number]:
			find(number+" has two rows", "remove one")
		}
		seen[number] = true
		r := requirement{number: number, line: line}
		for _, m := range proofName.FindAllStringSubmatch(cells[2], -1) {
			r.proofs = append(r.proofs, m[1])
		}
		table = append(table, r)
	}
	return table, all
}

// checkProofs checks that every requirement names tests that name it, except for those of unproven.
func checkProofs(t *tree, table []requirement) []Finding {
	var all []Finding
	tests := proofs(t)
	for _, r := range table {
		find := func(text, instead string) {
			all = append(all, Finding{requirementsPage, r.line, "missions", text, instead})
		}
		switch reason := unproven[r.number]; {
		case reason == "" && len(r.proofs) == 0:
			find(r.number+" names no test", "name one such as `fleet.TestExecute` or `run.txtar`")
		case reason != "" && len(r.proofs) > 0:
			find(r.number+" names a test", "remove it from unproven in tools/lint/requirements.go")
		}
		for _, name := range r.proofs {
			numbers, exists := tests[name]
			switch {
			case !exists:
				find(fmt.Sprintf("%s names the test %s, which does not exist", r.number, name),
					"name one such as `fleet.TestExecute` or `run.txtar`")
			case !numbers[r.number]:
				find(fmt.Sprintf("%s proves %s in the table, but its comments do not say so", name, r.number),
					"write // mission: "+r.number+" above it, or at the part that proves it")
			}
		}
	}
	return all
}

// proofs returns the numbers that each test names in its comments, those within it included.
func proofs(t *tree) map[string]map[string]bool {
	tests := map[string]map[string]bool{}
	add := func(name, text string) {
		if tests[name] == nil {
			tests[name] = map[string]bool{}
		}
		for _, id := range missionsIn(text) {
			tests[name][id] = true
		}
	}
	for _, f := range t.files {
		if !f.isTest() {
			continue
		}
		for _, d := range f.ast.Decls {
			test, ok := d.(*ast.FuncDecl)
			if !ok || test.Recv != nil || !strings.HasPrefix(test.Name.Name, "Test") {
				continue
			}
			name := f.pkg() + "." + test.Name.Name
			add(name, "")
			for _, group := range f.ast.Comments {
				if group == test.Doc || test.Pos() <= group.Pos() && group.End() <= test.End() {
					for _, c := range group.List {
						add(name, c.Text)
					}
				}
			}
		}
	}
	for p, text := range t.docs {
		if path.Ext(p) == ".txtar" {
			add(path.Base(p), text)
		}
	}
	return tests
}
