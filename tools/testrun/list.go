package main

import (
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/RelevanceAI/harvest/client/errors"
)

// pkg is a package that has tests.
type pkg struct {
	path   string // import path
	name   string // path from the root of the repository
	dir    string
	module string   // directory of its module
	size   int64    // of the test files, in bytes: a first estimate of their duration
	long   []string // top-level tests that are long, or have long parts
	binary string   // set by compile
}

// modules are the modules of the repository whose tests run, by their directories.
var modules = []string{".", "client", "tools"}

// locate returns the module that a pattern of packages belongs to, and the pattern from the directory of that module.
func locate(pattern string) (module, within string) {
	for _, m := range modules[1:] {
		if rest, ok := strings.CutPrefix(path.Clean(pattern)+"/", m+"/"); ok {
			return m, "./" + strings.TrimSuffix(rest, "/")
		}
	}
	return ".", pattern
}

// list finds the packages of patterns that have tests. Patterns are relative to the root of the repository, as for go
// list, but ./... has the packages of all modules.
func list(ctx context.Context, patterns []string) (all []*pkg, err error) {
	within := map[string][]string{}
	for _, p := range patterns {
		if path.Clean(p) == "..." {
			for _, m := range modules {
				within[m] = append(within[m], "./...")
			}
			continue
		}
		m, rest := locate(p)
		within[m] = append(within[m], rest)
	}
	for _, m := range modules {
		if len(within[m]) == 0 {
			continue
		}
		found, err := listModule(ctx, m, within[m])
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// listModule finds the packages of a module that have tests.
func listModule(ctx context.Context, module string, patterns []string) ([]*pkg, error) {
	args := append([]string{"-C", module, "list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, patterns...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Wrapf(err, "go %v", args)
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return nil, errors.Wrapf(err, "find the root of the repository")
	}
	var all []*pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, errors.Wrapf(err, "read the list of packages")
		}
		name, err := filepath.Rel(root, p.Dir)
		if err != nil {
			return nil, errors.Wrapf(err, "name a package")
		}
		found := &pkg{path: p.ImportPath, name: name, dir: p.Dir, module: module}
		files := append(p.TestGoFiles, p.XTestGoFiles...)
		if len(files) == 0 {
			continue
		}
		texts := map[string][]byte{}
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, errors.Wrapf(err, "read a test file")
			}
			texts[file] = text
			found.size += int64(len(text))
		}
		if found.long, err = longTests(texts); err != nil {
			return nil, err
		}
		all = append(all, found)
	}
}

// marks are the functions that make a test, or a part of it, long.
var marks = []string{"testenv.Long", "testenv.CloseWhileUsed", "testing.Short", "enginetest.Run"}

// longTests returns the top-level tests of a package that call one of marks, also in subtests and through
// functions of the test files. It identifies functions and methods by name alone, so it may return a test too
// many.
func longTests(texts map[string][]byte) (names []string, err error) {
	calls := map[string][]string{} // by function: the mentioned names
	for name, text := range texts {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, errors.Wrapf(err, "parse %s", name)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				calls[f.Name.Name] = append(calls[f.Name.Name], mentions(f.Body)...)
			}
		}
	}
	seen := map[string]bool{}
	var long func(name string) bool
	long = func(name string) bool {
		if slices.Contains(marks, name) {
			return true
		}
		if seen[name] {
			return false
		}
		seen[name] = true
		return slices.ContainsFunc(calls[name], long)
	}
	for name := range calls {
		clear(seen)
		if isTest(name) && long(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func isTest(name string) bool {
	rest, ok := strings.CutPrefix(name, "Test")
	return ok && name != "TestMain" && (rest == "" || !unicode.IsLower([]rune(rest)[0]))
}

// mentions returns the identifiers of a function's body, and those of packages and methods as x.Name and Name.
func mentions(body *ast.BlockStmt) (names []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				names = append(names, x.Name+"."+n.Sel.Name)
			}
			names = append(names, n.Sel.Name)
			ast.Inspect(n.X, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					names = append(names, id.Name)
				}
				return true
			})
			return false
		case *ast.Ident:
			names = append(names, n.Name)
		}
		return true
	})
	return names
}

// split separates the packages that first names from the rest.
func split(list []*pkg, first []string) (named, rest []*pkg) {
	for _, p := range list {
		if slices.ContainsFunc(first, func(f string) bool { return strings.HasPrefix(f, p.name+":") }) {
			named = append(named, p)
		} else {
			rest = append(rest, p)
		}
	}
	return named, rest
}
