// Package lint checks the project's rules, as tests. Every finding contains the alternative.
//
// layers.go has the rules for imports, calls.go those for calls, style.go those for comments and sizes, docs.go those
// for pages, and requirements.go those for the table of requirements. exceptions.go lists the exceptions with their
// reasons.
package lint

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/errors"
)

// modulePath is the prefix of the module's import paths.
const modulePath = "github.com/RelevanceAI/harvest"

// Finding is a breach of a rule.
type Finding struct {
	Path    string // of the file or directory, from the module's root
	Line    int    // 0 for the whole file
	Rule    string
	Text    string
	Instead string // the alternative
}

// String formats the finding in one line that editors understand.
func (f Finding) String() string {
	at := f.Path
	if f.Line > 0 {
		at += ":" + strconv.Itoa(f.Line)
	}
	return fmt.Sprintf("%s: %s: %s; %s", at, f.Rule, f.Text, f.Instead)
}

// file is a parsed Go file.
type file struct {
	path  string
	ast   *ast.File
	fset  *token.FileSet
	lines int
	wide  []int // the lines that have more than columns columns
	// imports maps the file's package names to import paths.
	imports map[string]string
}

func (f *file) dir() string         { return path.Dir(f.path) }
func (f *file) pkg() string         { return short(f.dir()) }
func (f *file) isTest() bool        { return strings.HasSuffix(f.path, "_test.go") }
func (f *file) isMain() bool        { return f.ast.Name.Name == "main" }
func (f *file) line(n ast.Node) int { return f.fset.Position(n.Pos()).Line }

// tree is the input of the rules.
type tree struct {
	files []*file
	docs  map[string]string // the pages by path, including the scripts of tests
	all   map[string]bool   // every existing path, including directories
}

// skipped are directories without sources of this project.
var skipped = []string{".git", "bin", "cover", "node_modules", "vendor"}

// load reads the module below root.
func load(root fs.FS) (*tree, error) {
	t := &tree{docs: map[string]string{}, all: map[string]bool{}}
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains(skipped, d.Name()) {
			return fs.SkipDir
		}
		t.all[p] = true
		ext := path.Ext(p)
		if d.IsDir() || ext != ".go" && ext != ".md" && ext != ".txtar" {
			return nil
		}
		text, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		if ext != ".go" {
			t.docs[p] = string(text)
			return nil
		}
		if strings.Contains(p, "testdata/") || strings.HasPrefix(string(text), "//go:build ignore\n") {
			return nil // a program for go generate is not part of its package
		}
		f, err := parse(p, text)
		if err != nil {
			return err
		}
		t.files = append(t.files, f)
		return nil
	})
	return t, errors.Wrapf(err, "read the module")
}

func parse(p string, text []byte) (*file, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, p, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &file{path: p, ast: parsed, fset: fset, lines: strings.Count(string(text), "\n"), imports: map[string]string{}}
	for i, line := range strings.Split(string(text), "\n") {
		if utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > columns {
			f.wide = append(f.wide, i+1)
		}
	}
	for _, spec := range parsed.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		name := path.Base(target)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		f.imports[name] = target
	}
	return f, nil
}

// check applies every rule and removes the exceptions. An unused exception is a finding itself.
func check(t *tree, exceptions map[string]string) []Finding {
	var all []Finding
	for _, rule := range []func(*tree) []Finding{layers, foreign, calls, packageComments, sizes, docComments,
		unfinished, pages, missions, links, decisions} {
		all = append(all, rule(t)...)
	}
	used := map[string]bool{}
	all = slices.DeleteFunc(all, func(f Finding) bool {
		key := f.Path + " " + f.Rule
		if exceptions[key] == "" {
			return false
		}
		used[key] = true
		return true
	})
	for key := range exceptions {
		if p, _, _ := strings.Cut(key, " "); !used[key] {
			all = append(all, Finding{Path: p, Rule: "exceptions", Text: "nothing needs the exception \"" + key + "\"",
				Instead: "remove it from tools/lint/exceptions.go"})
		}
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), a.Line-b.Line, strings.Compare(a.Text, b.Text))
	})
	return all
}
