package server_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
)

// TestReference checks that docs/api.md has the routes of the OpenAPI document. HARVEST_TEST_UPDATE=1 writes it.
// mission: F1
func TestReference(t *testing.T) {
	t.Parallel()
	type operation struct {
		Summary     string
		Description string
		Tags        []string
		Parameters  []struct{ Name, In, Description string }
	}
	var doc struct {
		Info  struct{ Description string }
		Paths map[string]map[string]operation
	}
	_, text := start(t).do("GET", api.OpenAPI, "")
	if json.Unmarshal([]byte(text), &doc) != nil || len(doc.Paths) == 0 {
		t.Fatalf("the document: %.300s", text)
	}
	rows := map[string][]string{} // by tag
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			op := doc.Paths[path][method]
			about := []string{op.Summary}
			for _, p := range op.Parameters {
				if p.In == "query" {
					about = append(about, strings.TrimSuffix(fmt.Sprintf("`%s`: %s", p.Name, p.Description), ": "))
				}
			}
			scope := strings.TrimSuffix(strings.TrimPrefix(op.Description, "Requires the scope "), ".")
			rows[op.Tags[0]] = append(rows[op.Tags[0]], fmt.Sprintf("| %s `%s` | %s | %s |", strings.ToUpper(method),
				path, cmp.Or(scope, "none"), strings.ReplaceAll(strings.Join(about, "; "), "|", `\|`)))
		}
	}
	var b strings.Builder
	b.WriteString("# HTTP API\n\nThis page lists the routes of a server's OpenAPI 3.1 document, " +
		"`GET /v1/openapi.json`, which has the types of\nrequests and answers, too. " +
		"`GET /docs` is the same for browsers. The key is a bearer token:\n" +
		"`Authorization: Bearer hv_…`; `harvest key create NAME` creates one.\n\n" + doc.Info.Description + "\n")
	for _, tag := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(&b, "\n## %s\n\n| route | scope | does |\n|---|---|---|\n%s\n", tag, strings.Join(rows[tag], "\n"))
	}
	const path = "../../docs/api.md"
	if os.Getenv("HARVEST_TEST_UPDATE") == "1" {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || string(have) != b.String() {
		t.Errorf("docs/api.md is not what the server serves (%v); write it with HARVEST_TEST_UPDATE=1", err)
	}
}
