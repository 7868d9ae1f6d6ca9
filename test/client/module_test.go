package client_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// module is the directory of the module that programs require.
const module = "../../client"

// goIn runs go in a directory and returns its output.
func goIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestClientRequiresOneModule checks that programs that import the client get a WebSocket library and nothing else, and
// that no package of the client, its tests included, needs more.
func TestClientRequiresOneModule(t *testing.T) {
	t.Parallel()
	var required struct {
		Require []struct{ Path string }
		Replace []struct{ New struct{ Path string } }
	}
	if err := json.Unmarshal([]byte(goIn(t, module, "mod", "edit", "-json")), &required); err != nil {
		t.Fatal(err)
	}
	const library = "github.com/coder/websocket"
	if len(required.Require) != 1 || required.Require[0].Path != library || len(required.Replace) != 0 {
		t.Errorf("client/go.mod requires %v and replaces %v, want %s and nothing", required.Require, required.Replace,
			library)
	}
	const ours = "github.com/RelevanceAI/harvest/client"
	deps := goIn(t, module, "list", "-test", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./...")
	for _, path := range strings.Fields(deps) {
		if path != ours && path != library {
			t.Errorf("packages of the client need the module %s", path)
		}
	}
}

// TestProgramOfReadme builds the program in README.md in a module that requires the client alone, and runs it.
//
// mission: E10
func TestProgramOfReadme(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## From Go\n")
	_, code, _ := strings.Cut(section, "```go\n")
	code, _, found := strings.Cut(code, "```\n")
	if !found {
		t.Fatal("README.md has no program in the section From Go")
	}
	client, err := filepath.Abs(module)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	_, requirements, _ := strings.Cut(string(text), "module github.com/RelevanceAI/harvest/client\n")
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod": "module example.org/program\n" + requirements +
			"\nrequire github.com/RelevanceAI/harvest/client v0.0.0\n\n" +
			"replace github.com/RelevanceAI/harvest/client => " + client + "\n",
		"go.sum": string(sums),
		"main.go": "package main\n\nimport (\n\t\"context\"\n\t\"fmt\"\n\t\"log\"\n\t\"os\"\n\t\"time\"\n\n" +
			"\t\"github.com/RelevanceAI/harvest/client\"\n)\n\n" + code,
	} {
		testenv.WriteFile(t, filepath.Join(dir, name), []byte(content))
	}
	goIn(t, dir, "build", "-o", "program", ".")

	h := host.New(t, "fake", nil)
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "program"))
	cmd.Env = append(os.Environ(), "HARVEST_URL="+h.Up(),
		"HARVEST_API_KEY="+h.Must("key", "create", "program", "--quiet"))
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "42\n" {
		t.Errorf("the program printed %q, %v; want 42", out, err)
	}
}
