package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"strings"
)

// The maximum sizes, in lines. Test functions may be longer, because of their tables.
const (
	fileLines     = 800
	functionLines = 80
)

// columns is the maximum width of a line, in columns; a tab has four. Lines that cannot be broken, such as those of raw
// strings, may be wider: wideLines is their number, which only falls.
const (
	columns   = 120
	wideLines = 283
)

// widths checks that lines do not get wider. added is the number of wide lines above wideLines; a negative one means
// that wideLines must fall.
func widths(t *tree) (added int, all []Finding) {
	for _, f := range t.files {
		for _, line := range f.wide {
			all = append(all, Finding{f.path, line, "columns", fmt.Sprintf("the line has more than %d columns",
				columns),
				"break it after a comma or an operator"})
		}
	}
	return len(all) - wideLines, all
}

// packageComments checks that every package has exactly one comment, in the form that Go's tools expect.
func packageComments(t *tree) []Finding {
	first := map[string]*file{}
	commented := map[string][]*file{}
	for _, f := range t.files {
		if f.isTest() {
			continue
		}
		if first[f.dir()] == nil {
			first[f.dir()] = f
		}
		if f.ast.Doc != nil {
			commented[f.dir()] = append(commented[f.dir()], f)
		}
	}
	var all []Finding
	for dir, f := range first {
		with := commented[dir]
		want := "Package " + f.ast.Name.Name + " "
		if f.isMain() {
			want = "Command "
		}
		switch {
		case len(with) == 0:
			all = append(all, Finding{f.path, 0, "package comment", "package " + dir + " has none",
				"write \"// " + want + "…\" in one file"})
		case len(with) > 1:
			all = append(all, Finding{with[1].path, 0, "package comment", "package " + dir + " has more than one",
				"keep the one in " + with[0].path})
		case !strings.HasPrefix(with[0].ast.Doc.Text(), want):
			all = append(all, Finding{with[0].path, 0, "package comment", "it begins otherwise",
				"begin it with \"" + want + "\""})
		}
	}
	return all
}

func sizes(t *tree) []Finding {
	var all []Finding
	for _, f := range t.files {
		if ast.IsGenerated(f.ast) {
			continue
		}
		if f.lines > fileLines {
			all = append(all, Finding{f.path, 0, "size", fmt.Sprintf("the file has %d lines", f.lines),
				fmt.Sprintf("split it by subject; %d is the most", fileLines)})
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || f.isTest() {
				continue
			}
			if n := f.fset.Position(fn.End()).Line - f.line(fn) + 1; n > functionLines {
				all = append(all, Finding{f.path, f.line(fn), "size", fmt.Sprintf("%s has %d lines", fn.Name.Name, n),
					fmt.Sprintf("split it; %d is the most", functionLines)})
			}
		}
	}
	return all
}

// docComments checks that exported objects have doc comments. A comment on a group of constants or variables
// covers all of them.
func docComments(t *tree) []Finding {
	var all []Finding
	for _, f := range t.files {
		if f.isTest() || f.isMain() {
			continue
		}
		missing := func(n ast.Node, name string) {
			all = append(all, Finding{f.path, f.line(n), "doc comment", name + " has none",
				"write what callers may rely on"})
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
					missing(d, d.Name.Name)
				}
			case *ast.GenDecl:
				undocumented(d, missing)
			}
		}
	}
	return all
}

func undocumented(d *ast.GenDecl, missing func(ast.Node, string)) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && s.Comment == nil && (d.Doc == nil || d.Lparen.IsValid()) {
				missing(s, s.Name.Name)
			}
		case *ast.ValueSpec:
			if s.Doc != nil || s.Comment != nil || d.Doc != nil {
				continue
			}
			for _, name := range s.Names {
				if name.IsExported() {
					missing(name, name.Name)
				}
			}
		}
	}
}

// exportedReceiver reports whether fn is a function, or a method visible outside the package.
func exportedReceiver(fn *ast.FuncDecl) bool {
	if fn.Recv == nil {
		return true
	}
	typ := fn.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

// marks are words that mark unfinished work. They are split here so that the check does not find them.
var marks = []string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "not " + "implemented"}

// unfinished finds marks in comments and string literals.
func unfinished(t *tree) []Finding {
	var all []Finding
	look := func(f *file, n ast.Node, text string) {
		for _, mark := range marks {
			if containsWord(text, mark) {
				all = append(all, Finding{f.path, f.line(n), "unfinished", "it says " + mark,
					"do it, or open an issue and say here what holds today"})
			}
		}
	}
	for _, f := range t.files {
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				look(f, c, c.Text)
			}
		}
		if f.isTest() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				look(f, lit, lit.Value)
			}
			return true
		})
	}
	return all
}

// containsWord reports whether text contains word without adjacent letters.
func containsWord(text, word string) bool {
	for rest := text; ; {
		i := strings.Index(rest, word)
		if i < 0 {
			return false
		}
		before, after := rest[:i], rest[i+len(word):]
		if !endsWithLetter(before) && !beginsWithLetter(after) {
			return true
		}
		rest = after
	}
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

func endsWithLetter(text string) bool { return text != "" && letter(text[len(text)-1]) }

func beginsWithLetter(text string) bool { return text != "" && letter(text[0]) }
