package lint

import (
	"cmp"
	"fmt"
	"go/doc"
	"maps"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// catalogPage is the page that lists all packages.
const catalogPage = "docs/packages.md"

// parts are the sections of the list, from the top of the layers to the bottom.
var parts = []struct{ dir, title string }{
	{"cmd/harvest", "programs"},
	{"internal/app", "the server as a whole"},
	{"internal/cli", "the commands of clients"},
	{"internal/server", "the HTTP API"},
	{"web", "the page"},
	{"internal/mcp", "tools for agents elsewhere"},
	{"internal/ssh", "clients of SSH"},
	{"internal/modal", "Modal's protocol"},
	{"internal/store", "records"},
	{"internal/session", "agents at work"},
	{"internal/fleet", "sandboxes"},
	{"internal/s3", "volumes in S3"},
	{"internal/engine", "engines of sandboxes"},
	{"internal/devcontainer", "environments of repositories"},
	{"internal/image", "root file systems"},
	{"internal/base", "building blocks"},
	{"client", "a module of its own, for programs"},
	{"test", "hosts and stubs for tests of the whole system"},
	{"tools", "programs of developers, a module of its own"},
}

const catalogHead = `# Packages

This page is made from the comments of the packages. In tools,
` + "`HARVEST_TEST_UPDATE=1 go test -run TestCatalog ./lint`" + ` writes it.
[Architecture](../ARCHITECTURE.md) explains the layers.
`

// catalog returns the page that lists all packages with the first sentence of their comments. A package without a
// subject is an error.
func catalog(t *tree) (string, error) {
	about := map[string]string{} // by directory
	for _, f := range t.files {
		if f.isTest() {
			continue
		}
		about[f.dir()] = cmp.Or(about[f.dir()], summary(f))
	}
	var page strings.Builder
	page.WriteString(catalogHead)
	dirs := slices.Sorted(maps.Keys(about))
	listed := 0
	for _, s := range parts {
		fmt.Fprintf(&page, "\n## %s: %s\n\n| package | summary |\n|---|---|\n", s.dir, s.title)
		for _, dir := range dirs {
			if dir == s.dir || strings.HasPrefix(dir, s.dir+"/") {
				fmt.Fprintf(&page, "| `%s` | %s |\n", dir, about[dir])
				listed++
			}
		}
	}
	if listed != len(dirs) {
		return "", errors.Errorf("%d of %d packages have no subject: add it to tools/lint/catalog.go",
			len(dirs)-listed, len(dirs))
	}
	return page.String(), nil
}

// summary returns the first sentence of a package's comment without the words "Package name", and without "is". It
// returns "" if the file has no such comment.
func summary(f *file) string {
	if f.ast.Doc == nil {
		return ""
	}
	text := strings.TrimSuffix(new(doc.Package).Synopsis(f.ast.Doc.Text()), ".")
	if rest, ok := strings.CutPrefix(text, "Package "+f.ast.Name.Name+" "); ok {
		text = strings.TrimPrefix(rest, "is ")
	}
	return strings.ReplaceAll(text, "|", "\\|")
}
