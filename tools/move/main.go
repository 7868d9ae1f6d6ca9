//go:build ignore

// Command move moves the packages of this repository to the paths in table.txt, and renames those in names.txt. It
// stays in the tree until branches from before the move have been rebased:
//
//	go run tools/move/main.go paths    # move files, rewrite import paths and mentions of paths
//	go run tools/move/main.go names    # rename packages whose directory has another name
//	go run tools/move/main.go show     # print the mentions that paths would rewrite, and change nothing
//
// It works on the files that git tracks below the current directory, and stages its changes.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/RelevanceAI/harvest"

//go:embed table.txt
var tableText string

//go:embed names.txt
var namesText string

// pair is a line of a table: an old word and a new one.
type pair struct{ from, to string }

func parseTable(text string) (all []pair) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 2 && !strings.HasPrefix(line, "#") {
			all = append(all, pair{words[0], words[1]})
		}
	}
	return all
}

// mover moves the files of a checkout.
type mover struct {
	table   []pair
	files   []string
	exists  map[string]bool // files and directories before the move
	mention *regexp.Regexp  // a path in a text
	show    bool
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "move:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: move paths|names|show")
	}
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return err
	}
	m := &mover{table: parseTable(tableText), exists: map[string]bool{}, show: args[0] == "show"}
	for _, f := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		m.files = append(m.files, f)
		for p := f; p != "."; p = path.Dir(p) {
			m.exists[p] = true
		}
	}
	switch args[0] {
	case "paths", "show":
		return m.paths()
	case "names":
		return m.names(parseTable(namesText))
	}
	return fmt.Errorf("usage: move paths|names|show")
}

// target is the new path of a file or directory, and whether the table has it.
func (m *mover) target(p string) (string, bool) {
	best := pair{}
	for _, row := range m.table {
		if (p == row.from || strings.HasPrefix(p, row.from+"/")) && len(row.from) > len(best.from) {
			best = row
		}
	}
	return best.to + strings.TrimPrefix(p, best.from), best.from != ""
}

func (m *mover) paths() error {
	m.mention = regexp.MustCompile(`(^|[^\w./%{}*$-])((?:\./|(?:\.\./)+|` + regexp.QuoteMeta(module) + `/)?)` +
		`([a-z][a-z0-9]*(?:/[\w./-]*[\w])?)`)
	for _, f := range m.files {
		to, _ := m.target(f)
		if to == "" {
			to = f
		}
		info, err := os.Lstat(f)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		changed := text
		if readable(f, text) && info.Mode().IsRegular() {
			if changed, err = m.rewrite(f, text); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
		}
		if m.show {
			continue
		}
		if !bytes.Equal(text, changed) {
			if err := os.WriteFile(f, changed, info.Mode().Perm()); err != nil {
				return err
			}
		}
		if to != f {
			if err := os.MkdirAll(path.Dir(to), 0o755); err != nil {
				return err
			}
			if err := os.Rename(f, to); err != nil {
				return err
			}
			removeEmpty(path.Dir(f))
		}
	}
	if m.show {
		return nil
	}
	return git("add", "-A")
}

// readable reports whether a file has text that may name paths: no pictures, vendored files, results or transcripts.
func readable(f string, text []byte) bool {
	for _, skipped := range []string{"web/", "bench/results/", "tools/move/", "docs/ui/"} {
		if strings.HasPrefix(f, skipped) {
			return false
		}
	}
	return !slices.Contains([]string{".jsonl", ".sum", ".png"}, path.Ext(f)) && !bytes.Contains(text, []byte{0}) &&
		!strings.HasSuffix(f, "package-lock.json")
}

// removeEmpty removes a directory and its parents as far as they are empty.
func removeEmpty(dir string) {
	for ; dir != "." && os.Remove(dir) == nil; dir = path.Dir(dir) {
	}
}

// rewrite rewrites the mentions of paths in a file, and in Go the import paths first.
func (m *mover) rewrite(f string, text []byte) ([]byte, error) {
	if path.Ext(f) != ".go" {
		return m.mentions(f, text), nil
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, f, text, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	begin, end := 0, 0 // of the imports
	var block []byte
	last := 0
	for i, spec := range parsed.Imports {
		from, to := fset.Position(spec.Pos()).Offset, fset.Position(spec.End()).Offset
		if i == 0 {
			begin, last = from, from
		}
		block = append(block, text[last:from]...)
		block = append(block, m.importSpec(spec)...)
		last, end = to, to
	}
	changed := slices.Concat(m.mentions(f, text[:begin]), block, m.mentions(f, text[end:]))
	return format.Source(changed)
}

// importSpec is an import with the new path. A package that keeps another name than its directory gets that name.
func (m *mover) importSpec(spec *ast.ImportSpec) string {
	old, _ := strconv.Unquote(spec.Path.Value)
	name := ""
	if spec.Name != nil {
		name = spec.Name.Name + " "
	}
	dep, ours := strings.CutPrefix(old, module+"/")
	to, moved := m.target(dep)
	if !ours || !moved {
		return name + spec.Path.Value
	}
	if name == "" && path.Base(to) != path.Base(dep) {
		name = path.Base(dep) + " "
	}
	return name + strconv.Quote(module+"/"+to)
}

// mentions rewrites the paths in a text: those that existed before the move, from the root or from the file.
func (m *mover) mentions(f string, text []byte) []byte {
	var out []byte
	for {
		i := m.mention.FindSubmatchIndex(text)
		if i == nil {
			return append(out, text...)
		}
		prefix, p := string(text[i[4]:i[5]]), string(text[i[6]:i[7]])
		changed := m.mentioned(f, prefix, p)
		out = append(append(out, text[:i[4]]...), changed...)
		if m.show && changed != prefix+p {
			fmt.Printf("%s: %s%s -> %s\n", f, prefix, p, changed)
		}
		text = text[i[7]:]
	}
}

func (m *mover) mentioned(f, prefix, p string) string {
	newDir := path.Dir(f)
	if to, ok := m.target(f); ok {
		newDir = path.Dir(to)
	}
	if strings.HasPrefix(prefix, "..") { // relative to the file
		old := path.Join(path.Dir(f), prefix, p)
		to, moved := m.target(old)
		if !moved {
			to = old
		}
		if !m.exists[old] {
			return prefix + p
		}
		rel, err := filepath.Rel(newDir, to)
		if err != nil || rel == p {
			return prefix + p
		}
		return rel
	}
	if !strings.Contains(p, "/") && (prefix != "./" || path.Ext(f) == ".go") {
		return prefix + p // a word, unless a script or a page means a package
	}
	if to, moved := m.target(p); moved && m.exists[p] {
		return prefix + to
	}
	return prefix + p
}

func git(args ...string) error {
	cmd := exec.Command("git", args...)
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// edit replaces the bytes of a file from offset from to offset to.
type edit struct {
	from, to int
	text     string
}

// names renames packages: the clauses of their files, the names that files import them with, and every use. A pair
// is the directory of a package and its old name.
func (m *mover) names(renamed []pair) error {
	for _, f := range m.files {
		if path.Ext(f) != ".go" || strings.Contains(f, "testdata/") {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		changed, err := rename(f, text, renamed)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		if string(changed) != string(text) {
			if err := os.WriteFile(f, changed, 0o644); err != nil {
				return err
			}
		}
	}
	return git("add", "-A")
}

func rename(f string, text []byte, renamed []pair) ([]byte, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, f, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var edits []edit
	at := func(from, to token.Pos, text string) {
		edits = append(edits, edit{fset.Position(from).Offset, fset.Position(to).Offset, text})
	}
	for _, r := range renamed {
		dir, old, name := r.from, r.to, path.Base(r.from)
		if clause := parsed.Name; path.Dir(f) == dir && strings.TrimSuffix(clause.Name, "_test") == old {
			at(clause.Pos(), clause.End(), name+strings.TrimPrefix(clause.Name, old))
			for _, doc := range parsed.Comments {
				const begin = "// Package "
				if c := doc.List[0]; c.End() < clause.Pos() && strings.HasPrefix(c.Text, begin+old+" ") {
					at(c.Pos()+token.Pos(len(begin)), c.Pos()+token.Pos(len(begin)+len(old)), name)
				}
			}
		}
		for _, spec := range parsed.Imports {
			if target, _ := strconv.Unquote(spec.Path.Value); target != module+"/"+dir {
				continue
			}
			local := old
			if spec.Name != nil {
				local = spec.Name.Name
				if local != old || taken(parsed, name) {
					continue // another name, chosen by the file, or one that it needs
				}
				at(spec.Name.Pos(), spec.Path.Pos(), "")
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && x.Obj == nil {
						at(x.Pos(), x.End(), name)
					}
				}
				return true
			})
		}
	}
	slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
	for _, e := range edits {
		text = slices.Concat(text[:e.from], []byte(e.text), text[e.to:])
	}
	if len(edits) == 0 {
		return text, nil
	}
	return format.Source(text)
}

// taken reports whether a file imports a package under an explicit name.
func taken(f *ast.File, name string) bool {
	return slices.ContainsFunc(f.Imports, func(spec *ast.ImportSpec) bool {
		return spec.Name != nil && spec.Name.Name == name
	})
}
