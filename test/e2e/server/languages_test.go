package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// exampleOutput is the output of the programs in examples, without the events of the start.
const exampleOutput = `42
refused: "/missing" does not exist
event: sandbox.starting
event: sandbox.ready
event: sandbox.terminated
`

// The examples in other languages work as the documentation says. The one in TypeScript is compiled, with the types
// that openapi-typescript generates from the server's OpenAPI document.
// mission: F1
func TestExamplesInOtherLanguages(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.New(t, "gvisor", host.GVisor(t))
	url := h.Up()
	key := h.Must("key", "create", "languages", "--quiet")
	run := func(t *testing.T, dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(testenv.CleanEnv(), "HARVEST_URL="+url, "HARVEST_API_KEY="+key)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s\n%s", name, args, err, out, h.Log())
		}
		return string(out)
	}
	check := func(t *testing.T, out string) {
		t.Helper()
		var lines []string
		for line := range strings.Lines(out) {
			line, _, _ = strings.Cut(line, ": check the path")
			if line = strings.TrimSuffix(line, "\n"); line != "event: sandbox.stage" {
				lines = append(lines, line+"\n")
			}
		}
		if got := strings.Join(lines, ""); got != exampleOutput {
			t.Errorf("output of the example:\n%s\nwant\n%s", got, exampleOutput)
		}
	}
	examples := filepath.Join("..", "..", "..", "examples")
	t.Run("python", func(t *testing.T) {
		python := testenv.RequireTool(t, "python3", "python3")
		check(t, run(t, filepath.Join(examples, "python"), python, "run.py"))
	})
	t.Run("typescript", func(t *testing.T) {
		npm := testenv.RequireTool(t, "npm", "npm")
		registry := testenv.NPMRegistry(t)
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(examples, "typescript"))); err != nil {
			t.Fatal(err)
		}
		run(t, dir, npm, "ci", "--registry", registry, "--cache", filepath.Join(t.TempDir(), "npm"))
		run(t, dir, npm, "run", "generate")
		run(t, dir, npm, "run", "build")
		check(t, run(t, dir, npm, "--silent", "start"))
	})
}
