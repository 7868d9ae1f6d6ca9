package mcp

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// installing is held while packages are installed.
var installing sync.Mutex

// npmProgram installs the packages of a directory of testdata, and returns the directory in which they are.
func npmProgram(t *testing.T, name string) string {
	t.Helper()
	npm := testenv.RequireTool(t, "npm", "npm")
	installing.Lock()
	defer installing.Unlock()
	dir := testenv.Cache(t, "mcp-"+name, "test/e2e/mcp/testdata/"+name)
	if _, err := os.Stat(filepath.Join(dir, "ready")); err == nil {
		return dir
	}
	err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700),
		os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))))
	if err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(t.Context(), npm, "ci", "--registry", testenv.NPMRegistry(t), "--ignore-scripts",
		"--no-audit", "--no-fund")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	testenv.WriteFile(t, filepath.Join(dir, "ready"), nil)
	return dir
}

// inspector returns the command line of the MCP inspector, which uses the official SDK for TypeScript.
func inspector(t *testing.T) string {
	t.Helper()
	testenv.RequireTool(t, "node", "nodejs")
	modules := filepath.Join(npmProgram(t, "inspector"), "node_modules")
	// The program reads its version from the package that it is usually a part of.
	testenv.WriteFile(t, filepath.Join(modules, "@modelcontextprotocol", "package.json"),
		[]byte(`{"name":"@modelcontextprotocol/inspector","version":"1.0.3"}`))
	return filepath.Join(modules, ".bin", "mcp-inspector-cli")
}

// TestInspector has the MCP inspector list and call tools, prompts and resources, over stdio and over HTTP.
func TestInspector(t *testing.T) {
	t.Parallel()
	program := inspector(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	url := h.Up()
	key := h.Must("key", "create", "tools", "--quiet")
	harvest := h.Command(t.Context(), "mcp")
	dir := project(t, h)
	ask := func(server []string, flags ...string) (out string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, append(append([]string{"--cli"}, server...), flags...)...)
		cmd.Dir, cmd.Env = dir, append(harvest.Env, "PWD="+dir)
		said, err := cmd.Output()
		if err != nil {
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				said = append(said, exit.Stderr...)
			}
			t.Fatalf("inspector %q: %v: %.2000s", flags, err, said)
		}
		return string(said)
	}
	var env []string
	for _, pair := range harvest.Env { // the inspector passes on none of its own
		if !strings.HasSuffix(pair, "=") {
			env = append(env, "-e", pair)
		}
	}
	for name, server := range map[string][]string{
		"stdio": append(env, harvest.Path, "mcp"),
		"http":  {url + "/mcp", "--transport", "http", "--header", "Authorization: Bearer " + key},
	} {
		var list struct {
			Tools []struct{ Name string }
		}
		if err := json.Unmarshal([]byte(ask(server, "--method", "tools/list")), &list); err != nil ||
			len(list.Tools) < 15 {
			t.Errorf("%s: %d tools, %v", name, len(list.Tools), err)
		}
		call := func(tool string, arguments ...string) string {
			t.Helper()
			flags := []string{"--method", "tools/call", "--tool-name", tool}
			for _, one := range arguments {
				flags = append(flags, "--tool-arg", one)
			}
			return ask(server, flags...)
		}
		for _, c := range []struct {
			out, want string
		}{
			{call("environment_create", "name="+name), "harvest/" + name},
			{call("run", "environment="+name, "command=expr 40 + 2", "explanation=add"), `42\n`},
			{call("run", "environment=absent", "command=true", "explanation=x"), `"isError": true`},
			{ask(server, "--method", "resources/read", "--uri", "harvest://environments"), name + ": running"},
			{ask(server, "--method", "resources/templates/list"), "harvest://sessions/{session}/transcript"},
			{ask(server, "--method", "prompts/get", "--prompt-name", "work_in_sandbox", "--prompt-args",
				"task=tidy up"),
				"The task: tidy up"},
			{call("environment_remove", "environment="+name, "discard=true"), "Removed"},
		} {
			if !strings.Contains(c.out, c.want) {
				t.Errorf("%s: %q is missing in %.2000s", name, c.want, c.out)
			}
		}
	}
}
