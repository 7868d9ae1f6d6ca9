package lint

import (
	"go/ast"
	"path"
	"slices"
	"strings"
)

// dialers are the packages whose connections accounts do not choose, or that have their own rules for them.
var dialers = []string{"base/netguard", "base/testenv", "base/trace", "client/...", "engine/fake",
	"engine/gateway/netstack", "engine/gvisor/...", "engine/modal/...", "engine/proc", "fleet/broker",
	"s3/embedded/serve",
	"session/agent/opencode/bridge", "test/...", "tools/bench/..."}

const guarded = "connect with netguard.Rules of the account"

// forbidden lists the calls that are forbidden except in the packages of in. Tests may use them.
var forbidden = []struct {
	call string // import path and name, or the name of a builtin; "pkg.Print*" stands for all that begin so
	in   []string
	hint string
}{
	{"fmt.Errorf", nil,
		"write errors.Wrapf or errors.Errorf for operators, errors.Newf or errors.Explainf for clients"},
	{"fmt.Print*", commands, "write to an io.Writer that the caller gives, or log with logf"},
	{"print", nil, "log with logf.Debugf(ctx, …)"},
	{"println", nil, "log with logf.Debugf(ctx, …)"},
	{"os.Exit", nil, "return an error; only main and the entries of helper processes end a process"},
	{"time.Sleep", []string{"engine/enginetest/..."}, "wait for the event itself, or select on a timer and ctx.Done()"},
	{"os/exec.Command", nil, "write exec.CommandContext, so that the program ends with its caller"},
	{"panic", []string{"engine/enginetest", "image/imagetest", "store/storetest", "test/stubs/modeltest"},
		"return errors.Errorf(…)"},
	{"context.Background", []string{"engine/enginetest/...", "test/stubs/s3test"},
		"pass the caller's ctx on, or context.WithoutCancel(ctx) for what must outlive it"},
	{"context.TO" + "DO", nil, "pass the caller's ctx on"},
	{"net/http.ListenAndServe*", nil, "use an http.Server with time limits, and shut it down"},
	{"net/http.Get", nil, "use http.NewRequestWithContext"},
	{"net/http.Post*", nil, "use http.NewRequestWithContext"},
	{"net/http.Head", nil, "use http.NewRequestWithContext"},
	{"net/http.DefaultClient", dialers, guarded},
	{"net/http.DefaultTransport", dialers, guarded},
	{"net.Dial*", dialers, guarded},
	{"crypto/tls.Dial*", dialers, guarded},
	{"os.Setenv", nil, "pass an environment to what needs it"},
	{"os.Chdir", nil, "pass a directory to what needs it"},
}

// calls checks the functions that code uses, called or not, and that there is no func init.
func calls(t *tree) []Finding {
	var all []Finding
	for _, f := range t.files {
		if f.isTest() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					all = append(all, Finding{f.path, f.line(n), "init", "there is a func init",
						"do it where it is needed, or in main"})
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && f.imports[x.Name] != "" {
					all = append(all, forbid(f, n, f.imports[x.Name]+"."+n.Sel.Name)...)
				}
			case *ast.CompositeLit:
				all = append(all, bareClient(f, n)...)
				all = append(all, bareTransport(f, n)...)
				all = append(all, undated(f, n)...)
			case *ast.CallExpr:
				if x, ok := n.Fun.(*ast.Ident); ok {
					all = append(all, forbid(f, n, x.Name)...)
				}
			}
			return true
		})
	}
	return all
}

// bareClient finds an http.Client without a Transport, which uses http.DefaultTransport.
func bareClient(f *file, lit *ast.CompositeLit) []Finding {
	if !lacks(f, lit, "net/http", "Client", "Transport") ||
		slices.ContainsFunc(dialers, func(p string) bool { return fits(p, f.pkg()) }) {
		return nil
	}
	return []Finding{{f.path, f.line(lit), "http.Client", "there is an http.Client without a Transport", guarded}}
}

// bareTransport finds an http.Transport that dials by itself, in a file that does not put it under rules. The command
// line connects for the person who runs it.
func bareTransport(f *file, lit *ast.CompositeLit) []Finding {
	if !lacks(f, lit, "net/http", "Transport", "DialContext") || fits("cmd/harvest", f.pkg()) ||
		slices.ContainsFunc(dialers, func(p string) bool { return fits(p, f.pkg()) }) {
		return nil
	}
	guards := false
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.SelectorExpr)
		guards = guards || ok && call.Sel.Name == "NewTransport"
		return !guards
	})
	if guards {
		return nil
	}
	return []Finding{{f.path, f.line(lit), "http.Transport", "there is an http.Transport without a DialContext",
		guarded}}
}

// undated finds a tar.Header without a ModTime. The file would have the date 1970-01-01, which misleads make and
// Python's caches.
func undated(f *file, lit *ast.CompositeLit) []Finding {
	if !lacks(f, lit, "archive/tar", "Header", "ModTime") {
		return nil
	}
	return []Finding{{f.path, f.line(lit), "tar.Header", "there is a tar.Header without a ModTime",
		"set the time of the file, or of the write"}}
}

// lacks reports whether lit is a literal of the struct pkg.name without that field.
func lacks(f *file, lit *ast.CompositeLit, pkg, name, field string) bool {
	t, ok := lit.Type.(*ast.SelectorExpr)
	if !ok || t.Sel.Name != name {
		return false
	}
	if x, ok := t.X.(*ast.Ident); !ok || f.imports[x.Name] != pkg {
		return false
	}
	return !slices.ContainsFunc(lit.Elts, func(e ast.Expr) bool {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return false
		}
		key, ok := kv.Key.(*ast.Ident)
		return ok && key.Name == field
	})
}

func forbid(f *file, n ast.Node, name string) []Finding {
	for _, rule := range forbidden {
		stem, open := strings.CutSuffix(rule.call, "*")
		hit := name == rule.call || open && strings.HasPrefix(name, stem)
		if !hit || slices.ContainsFunc(rule.in, func(p string) bool { return fits(p, f.pkg()) }) {
			continue
		}
		if f.isMain() && (name == "os.Exit" || name == "context.Background") {
			continue
		}
		short := path.Base(name)
		return []Finding{{f.path, f.line(n), short, "there is a use of " + short, rule.hint}}
	}
	return nil
}
