package main

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// block is a block of statements in a file, as named in the profile.
type block struct{ file, place string }

// count is the number of statements in a block, and whether any run reached it.
type count struct {
	statements int
	reached    bool
}

// run prints the table of the profiles' packages. It returns an error if the total is below the minimum share,
// or if a package with code is in no profile.
func run(args []string, module fs.FS, out io.Writer) error {
	opts, profiles, err := parseFlags(args)
	if err != nil {
		return err
	}
	blocks := map[block]count{}
	for _, name := range profiles {
		if err := read(module, name, blocks); err != nil {
			return err
		}
	}
	source, err := packages(module, opts.exclude)
	if err != nil {
		return err
	}
	byPackage, whole := sum(blocks, source, opts.module)
	for _, pkg := range slices.Sorted(maps.Keys(byPackage)) {
		fmt.Fprintf(out, "%6.1f %%  %5d of %5d  %s\n", byPackage[pkg].share(), byPackage[pkg].reached,
			byPackage[pkg].all, pkg)
	}
	fmt.Fprintf(out, "%6.1f %%  %5d of %5d  in all\n", whole.share(), whole.reached, whole.all)
	for _, pkg := range slices.Sorted(maps.Keys(source.dirs)) {
		if _, ok := byPackage[pkg]; !ok {
			return errors.Errorf("package %s is in no profile: nothing tests it", pkg)
		}
	}
	if whole.share() >= opts.least {
		return nil
	}
	left, err := opts.leftOut(module)
	if err != nil {
		return err
	}
	if left > 0 && whole.share() >= opts.some {
		fmt.Fprintf(out, "%.1f %% is less than %.1f %%, but %d tests had no time: %.1f %% is enough\n", whole.share(),
			opts.least, left, opts.some)
		return nil
	}
	return errors.Errorf("%.1f %% of the statements are covered; %.1f %% are wanted", whole.share(), opts.least)
}

// leftOut returns the number of tests that had no time, whose statements are not covered for that reason.
func (o options) leftOut(module fs.FS) (int, error) {
	if o.left == "" {
		return 0, nil
	}
	text, err := fs.ReadFile(module, o.left)
	return strings.Count(string(text), "\n"), errors.Wrapf(err, "read the tests that had no time")
}

// read adds a profile's blocks. A block is reached if any profile has reached it.
func read(module fs.FS, name string, blocks map[block]count) error {
	f, err := module.Open(name)
	if err != nil {
		return errors.Wrapf(err, "open the profile")
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		if text == "" || strings.HasPrefix(text, "mode: ") {
			continue
		}
		b, c, err := parseLine(text)
		if err != nil {
			return errors.Wrapf(err, "%s:%d", name, n)
		}
		if old := blocks[b]; old.reached {
			c.reached = true
		}
		blocks[b] = c
	}
	return errors.Wrapf(lines.Err(), "read the profile")
}

// parseLine parses "path/file.go:12.3,14.5 2 1": a place, the number of statements, and the number of
// executions.
func parseLine(text string) (block, count, error) {
	colon := strings.LastIndexByte(text, ':')
	fields := strings.Fields(text[colon+1:])
	if colon < 0 || len(fields) != 3 {
		return block{}, count{}, errors.Errorf("%q is not a line of a profile", text)
	}
	statements, err1 := strconv.Atoi(fields[1])
	times, err2 := strconv.ParseUint(fields[2], 10, 64)
	if err1 != nil || err2 != nil || statements < 0 {
		return block{}, count{}, errors.Errorf("%q is not a line of a profile", text)
	}
	return block{text[:colon], fields[0]}, count{statements, times > 0}, nil
}

// code is the code to count: files by path, and their directories.
type code struct{ files, dirs map[string]bool }

// packages finds the files to count: with functions, not generated, not tests, not excluded.
func packages(module fs.FS, exclude []string) (code, error) {
	all := code{map[string]bool{}, map[string]bool{}}
	err := fs.WalkDir(module, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() != "." && d.Name()[0] == '.' ||
			slices.Contains(exclude, p)):
			return fs.SkipDir
		case d.IsDir() || path.Ext(p) != ".go" || strings.HasSuffix(p, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(module, p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(f) && slices.ContainsFunc(f.Decls, hasStatements) {
			all.files[p] = true
			all.dirs[path.Dir(p)] = true
		}
		return nil
	})
	return all, errors.Wrapf(err, "read the module")
}

func hasStatements(d ast.Decl) bool {
	fn, ok := d.(*ast.FuncDecl)
	return ok && fn.Body != nil && len(fn.Body.List) > 0
}

// tally counts statements.
type tally struct{ reached, all int }

func (t tally) share() float64 {
	if t.all == 0 {
		return 100
	}
	return 100 * float64(t.reached) / float64(t.all)
}

// sum adds up the blocks to count.
func sum(blocks map[block]count, source code, module string) (byPackage map[string]tally, whole tally) {
	byPackage = map[string]tally{}
	for b, c := range blocks {
		p, ours := strings.CutPrefix(b.file, module+"/")
		if !ours || !source.files[p] {
			continue
		}
		t := byPackage[path.Dir(p)]
		t.all += c.statements
		whole.all += c.statements
		if c.reached {
			t.reached += c.statements
			whole.reached += c.statements
		}
		byPackage[path.Dir(p)] = t
	}
	return byPackage, whole
}
