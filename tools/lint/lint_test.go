package lint

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

func TestHouseRules(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	tree, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.files) < 20 {
		t.Fatalf("only %d files were found: the rules look at the wrong directory", len(tree.files))
	}
	for _, f := range check(tree, exceptions) {
		t.Error(f)
	}
}

// TestWidths checks that no line is added that is too wide.
func TestWidths(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	tree, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	switch added, all := widths(tree); {
	case added > 0:
		t.Errorf("%d lines of Go are too wide, %d more than wideLines allows; look for yours among them:", len(all),
			added)
		for _, f := range all {
			t.Log(f)
		}
	case added < 0:
		t.Errorf("%d lines of Go are too wide: lower wideLines", len(all))
	}
	text := "// Package x is.\npackage x\n\nvar X = \"" + strings.Repeat("ü", columns) + "\"\n"
	f, err := parse("x/x.go", []byte(text))
	if err != nil || !slices.Equal(f.wide, []int{4}) {
		t.Errorf("%v, %v", f, err)
	}
}

// requirements is a table, to which fixtures add rows.
const requirements = "# Requirements\n\n| number | requirement | proof |\n|---|---|---|\n" +
	"| A1 | code runs | `fleet.TestRun` |\n" +
	"| A2 | soon | not proven by a test: it is measured |\n" +
	"| 10.7 | details stay inside | `fleet.TestRun`, `links.txtar` |\n"

// requirementTest names a requirement above a test and another one within it.
const requirementTest = "package fleet\n\n// mission: A1\nfunc TestRun() {\n\t// mission: 10.7\n}\n\n" +
	"// mission: A1\nfunc help() {}\n"

// good are files that keep every rule; fixtures change one thing in them.
var good = map[string]string{
	"README.md":                 "# x\n\n`make run` and `make test`\n",
	"ARCHITECTURE.md":           "[why](docs/decisions/001-one.md)\n",
	"docs/decisions/001-one.md": "# One\n",
	"client/errors/errors.go":   "// Package errors is.\npackage errors\n",
	"internal/engine/volume/volume.go": "// Package volume is.\npackage volume\n\nimport " +
		"\"github.com/RelevanceAI/harvest/client/errors\"\n\n// Name is.\nvar Name = errors.Newf\n",
	"internal/fleet/fleet.go":          "// Package fleet is.\npackage fleet\n",
	"internal/fleet/fleet_test.go":     requirementTest,
	"cmd/harvest/testdata/links.txtar": "# mission: 10.7\n",
	"docs/requirements.md":             requirements,
	"cmd/harvest/main.go": "// Command harvest is.\npackage main\n\nimport \"os\"\n\n" +
		"func main() { os.Exit(1) }\n",
}

// lint applies the rules to good with changes; "" removes a file.
func lint(t *testing.T, changes, exceptions map[string]string) []Finding {
	t.Helper()
	files := fstest.MapFS{}
	for p, text := range good {
		files[p] = &fstest.MapFile{Data: []byte(text)}
	}
	for p, text := range changes {
		if text == "" {
			delete(files, p)
			continue
		}
		files[p] = &fstest.MapFile{Data: []byte(text)}
	}
	tree, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	return check(tree, exceptions)
}

func TestGoodFilesHaveNoFinding(t *testing.T) {
	t.Parallel()
	for _, f := range lint(t, nil, nil) {
		t.Error(f)
	}
}

// volume returns a file of package volume with that body, and with imports.
func volume(imports, body string) string {
	for path := range strings.FieldsSeq(imports) {
		body = "import \"" + path + "\"\n" + body
	}
	return "package volume\n\n" + body
}

func TestRules(t *testing.T) {
	t.Parallel()
	const ours = "github.com/RelevanceAI/harvest/"
	const source, test = "internal/engine/volume/x.go", "internal/engine/volume/x_test.go"
	long := strings.Repeat("\n", 81)
	for name, c := range map[string]struct {
		path, text string
		want       string // part of the one finding; "" for none
	}{
		"import of a layer above": {source, volume(ours+"internal/fleet", ""),
			"internal/engine/volume/x.go:3: layers: engine/volume may not import fleet; imports point down"},
		"import beside it that the row does not allow": {source,
			volume(ours+"internal/engine/gateway", ""),
			"layers: engine/volume may not import engine/gateway; volumes know nothing"},
		"a server in a base package": {"internal/base/logf/x.go",
			"// Package logf is.\npackage logf\n\nimport _ \"" + ours + "internal/server\"\n", "imports point down"},
		"import of a command": {test, volume(ours+"cmd/harvest", ""),
			"may not import cmd/harvest"},
		"tests may import": {test, volume(ours+"internal/fleet", ""), ""},
		"a helper of tests": {"internal/fleet/x.go",
			"package fleet\n\nimport _ \"" + ours + "internal/base/testenv\"\n", "import it in tests only"},
		"helpers use helpers": {"internal/image/imagetest/x.go",
			"// Package imagetest is.\npackage imagetest\n\nimport _ \"" + ours + "internal/base/testenv\"\n", ""},
		"the bottom imports nothing": {"client/errors/x.go",
			"package errors\n\nimport _ \"" + ours + "internal/base/logf\"\n",
			"client/errors may not import base/logf; imports point down"},
		"gvisor outside its engine": {"internal/fleet/x.go",
			"package fleet\n\nimport _ \"gvisor.dev/gvisor/pkg/log\"\n",
			"ask the engine through its contract"},
		"a yaml of a subpackage": {source, volume("github.com/goccy/go-yaml/ast", ""),
			"engine/volume may not import github.com/goccy/go-yaml/ast"},
		"the standard errors":   {source, volume("errors", ""), "import " + ours + "client/errors"},
		"testing in plain code": {source, volume("testing", ""), "move it to a _test.go file"},
		"slog":                  {source, volume("log/slog", ""), "write logf.Infof(ctx, …)"},
		"a package without a row": {"cats/cats.go", "// Package cats is.\npackage cats\n",
			"package cats has no row"},
		"fmt.Errorf": {source, volume("fmt", "var x = fmt.Errorf"),
			"internal/engine/volume/x.go:4: fmt.Errorf: there is a use of fmt.Errorf; write errors.Wrapf"},
		"fmt.Errorf by another name": {source, "package volume\n\nimport f \"fmt\"\n\nvar x = f.Errorf\n",
			"fmt.Errorf"},
		"fmt.Errorf in a test": {test, volume("fmt", "var x = fmt.Errorf"), ""},
		"fmt.Println":          {source, volume("fmt", "var x = fmt.Println"), "io.Writer"},
		"fmt.Println in a command": {"cmd/harvest/x.go",
			"package main\n\nimport \"fmt\"\n\nvar x = fmt.Println\n", ""},
		"println": {source, volume("", "func f() { println() }"), "logf.Debugf"},
		"os.Exit": {source, volume("os", "func f() { os.Exit(1) }"), "return an error"},
		"time.Sleep": {source, volume("time", "func f() { time.Sleep(1) }"),
			"wait for the event itself"},
		"exec.Command": {"cmd/harvest/x.go",
			"package main\n\nimport \"os/exec\"\n\nvar x = exec.Command\n", "exec.CommandContext"},
		"exec.CommandContext is fine": {"cmd/harvest/x.go",
			"package main\n\nimport \"os/exec\"\n\nvar x = exec.CommandContext\n", ""},
		"net.Dial": {source, volume("net", "var x = net.Dial"),
			"connect with netguard.Rules"},
		"a net.Dialer": {source, volume("net", "var x net.Dialer"),
			"connect with netguard.Rules"},
		"tls.Dial": {source, volume("crypto/tls", "var x = tls.Dial"),
			"connect with netguard.Rules"},
		"http.DefaultClient": {source, volume("net/http", "var x = http.DefaultClient"),
			"connect with netguard.Rules"},
		"http.DefaultTransport": {source, volume("net/http", "var x = http.DefaultTransport"),
			"connect with netguard.Rules"},
		"a client without transport": {source, volume("net/http", "var x = &http.Client{Timeout: 1}"),
			"http.Client without a Transport"},
		"a client with a transport": {source, volume("net/http", "var x = &http.Client{Transport: nil}"), ""},
		"a transport that dials": {source, volume("net/http", "var x = &http.Transport{MaxIdleConns: 1}"),
			"http.Transport without a DialContext"},
		"a transport with a dialer": {source,
			volume("net/http", "var x = &http.Transport{DialContext: dial}"), ""},
		"a transport under rules": {source,
			volume("net/http", "var x = rules.NewTransport(&http.Transport{MaxIdleConns: 1})"), ""},
		"a tar header without a time": {source, volume("archive/tar", "var x = &tar.Header{Size: 1}"),
			"tar.Header without a ModTime"},
		"a tar header with a time":    {source, volume("archive/tar", "var x = tar.Header{ModTime: now}"), ""},
		"a tar header in tests":       {test, volume("archive/tar", "var x = tar.Header{Size: 1}"), ""},
		"http.DefaultClient in tests": {test, volume("net/http", "var x = http.DefaultClient"), ""},
		"panic":                       {source, volume("", "func f() { panic(1) }"), "return errors.Errorf"},
		"context.Background": {source, volume("context", "var x = context.Background()"),
			"context.WithoutCancel"},
		"context.Background in main": {"cmd/harvest/x.go",
			"package main\n\nimport \"context\"\n\nvar x = context.Background()\n", ""},
		"func init":                {source, volume("", "func init() {}"), "there is a func init"},
		"a method init":            {source, volume("", "type t int\n\nfunc (t) init() {}"), ""},
		"a second package comment": {source, "// Package volume is.\npackage volume\n", "has more than one"},
		"another package comment": {"internal/engine/volume/volume.go", "// This is it.\npackage volume\n",
			"begin it with \"Package volume \""},
		"no package comment": {"internal/engine/volume/volume.go", "package volume\n",
			"package internal/engine/volume has none"},
		"a long file": {test, volume("", strings.Repeat("\n", 801)),
			"the file has 803 lines"},
		"a long function":           {source, volume("", "func f() {"+long+"}"), "f has 82 lines"},
		"a long function of a test": {test, volume("", "func f() {"+long+"}"), ""},
		"generated files are long": {source, "// Code generated by x. DO NOT EDIT.\n\n" + volume("",
			"func f() {"+long+"}"), ""},
		"no comment on a function": {source, volume("", "func F() {}"), "doc comment: F has none"},
		"no comment on a method": {source, volume("", "// T is.\ntype T[K any] int\n\nfunc (*T[K]) F() {}"),
			"doc comment: F has none"},
		"methods of what is hidden": {source, volume("", "type t int\n\nfunc (t) F() {}"), ""},
		"no comment on a type":      {source, volume("", "type T int"), "doc comment: T has none"},
		"a type in a group": {source, volume("", "// All.\ntype (\n\tT int\n)"),
			"doc comment: T has none"},
		"no comment on a constant": {source, volume("", "const (\n\ta = 1\n\tC = 1\n)"),
			"doc comment: C has none"},
		"a comment on a group":        {source, volume("", "// All.\nconst (\n\tB = 1\n\tC = 1\n)"), ""},
		"a comment behind a constant": {source, volume("", "const C = 1 // is"), ""},
		"unfinished": {test, volume("", "// "+marks[0]+": more\n"),
			"unfinished: it says " + marks[0]},
		"unfinished text": {source, volume("", "var x = \"this is "+marks[4]+"\""),
			"unfinished: it says " + marks[4]},
		"part of a word": {source, volume("", "// MAS"+marks[0]+"N and "+marks[0]+"S\n"), ""},
		"a long README": {"README.md", good["README.md"] + strings.Repeat("\n", 150),
			"move some to docs/"},
		"a README without a command": {"README.md", "`make run`\n", "it does not say `make test`"},
		"a long ARCHITECTURE.md": {"ARCHITECTURE.md", good["ARCHITECTURE.md"] + strings.Repeat("x\n", 6<<10),
			"move some to docs/"},
		"an unknown requirement": {test, volume("", "// mission: A1, A13\n"),
			"internal/engine/volume/x_test.go:3: missions: there is no requirement A13"},
		"an unknown number": {test, volume("", "// mission: 10.8\n"),
			"there is no requirement 10.8"},
		"a requirement of nonsense": {test, volume("", "// mission: all\n"),
			"there is no requirement all"},
		"requirements": {test, volume("", "// mission: A2, 10.7 A1\n"), ""},
		"requirements of scripts": {"cmd/harvest/testdata/x.txtar", "# mission: G1\n",
			"there is no requirement G1"},
		"no requirements": {"docs/requirements.md", "", "there is no requirement A1"},
		"a requirement twice": {"docs/requirements.md", requirements + "| A1 | again | `fleet.TestRun` |\n",
			"docs/requirements.md:8: missions: A1 has two rows"},
		"a requirement with an odd number": {"docs/requirements.md", requirements + "| A1a | x | `fleet.TestRun` |\n",
			"docs/requirements.md:8: missions: invalid number \"A1a\""},
		"a requirement without a proof": {"docs/requirements.md", requirements + "| A3 | x | none |\n",
			"docs/requirements.md:8: missions: A3 names no test"},
		"a requirement with a fourth column": {"docs/requirements.md", requirements + "| A3 | x | `y` | x |\n",
			"docs/requirements.md:8: missions: the row has 4 cells"},
		"a proof that does not exist": {"docs/requirements.md", requirements + "| A3 | x | `fleet.TestNone` |\n",
			"A3 names the test fleet.TestNone, which does not exist"},
		"a proof without its package": {"docs/requirements.md", requirements + "| A3 | x | `TestRun` |\n",
			"A3 names the test TestRun, which does not exist"},
		"a helper as proof": {"docs/requirements.md", strings.Replace(requirements, "fleet.TestRun", "fleet.help", 1),
			"A1 names the test fleet.help, which does not exist"},
		"a script that does not exist": {"cmd/harvest/testdata/links.txtar", "",
			"10.7 names the test links.txtar, which does not exist"},
		"a proof of another number": {"docs/requirements.md", requirements + "| A3 | x | `fleet.TestRun` |\n",
			"fleet.TestRun proves A3 in the table, but its comments do not say so"},
		"a script of another number": {"cmd/harvest/testdata/links.txtar", "# mission: A1\n",
			"links.txtar proves 10.7 in the table, but its comments do not say so"},
		"a proof that is found at last": {"docs/requirements.md", strings.Replace(requirements,
			"not proven by a test: it is measured", "`fleet.TestRun`", 1), "A2 names a test"},
		"a dead link": {"docs/x.md", "[x](y.md#z)", "docs/x.md: links: y.md does not exist"},
		"living links": {"docs/x.md",
			"[x](../README.md#z) [y](https://example.org/) [z](#here) [d](decisions)", ""},
		"a decision's name": {"docs/decisions/two.md", "# Two\n", "name it docs/decisions/NNN-words.md"},
		"a decision's number": {"docs/decisions/001-two.md", "# Two\n",
			"it has the number of docs/decisions/001-one.md"},
		"a long decision":         {"docs/decisions/001-one.md", strings.Repeat("\n", 61), "a page, is the most"},
		"a decision nobody links": {"docs/decisions/002-two.md", "# Two\n", "no page links it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := lint(t, map[string]string{c.path: c.text}, nil)
			if c.want == "" {
				for _, f := range found {
					t.Error(f)
				}
				return
			}
			for _, f := range found {
				if f.Instead == "" {
					t.Errorf("%s does not say what to do", f)
				}
				if strings.Contains(f.String(), c.want) {
					return
				}
			}
			t.Errorf("findings %v, want one with %q", found, c.want)
		})
	}
}

func TestExceptions(t *testing.T) {
	t.Parallel()
	breach := map[string]string{"internal/engine/volume/x.go": volume("", "func f() { panic(1) }\n\nfunc init() {}")}
	found := lint(t, breach, map[string]string{"internal/engine/volume/x.go panic": "a reason"})
	if len(found) != 1 || found[0].Rule != "init" {
		t.Errorf("findings %v, want the init only", found)
	}
	found = lint(t, nil, map[string]string{"internal/engine/volume/x.go panic": "a reason"})
	if len(found) != 1 || !strings.Contains(found[0].Text, "nothing needs the exception") {
		t.Errorf("findings %v, want the exception", found)
	}
}

func TestEveryRuleSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, r := range rows {
		if r.hint == "" && !fits("cmd/...", r.pkg) && !fits("tools/bench/...", r.pkg) {
			t.Errorf("the row of %s has no hint", r.pkg)
		}
	}
	for key, reason := range exceptions {
		if len(reason) < 10 {
			t.Errorf("the exception %q has no reason", key)
		}
	}
}

func TestBrokenFilesAreReported(t *testing.T) {
	t.Parallel()
	if _, err := load(fstest.MapFS{"x.go": &fstest.MapFile{Data: []byte("pack")}}); err == nil ||
		!strings.Contains(err.Error(), "x.go") {
		t.Errorf("error %v", err)
	}
}
