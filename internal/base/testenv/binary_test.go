package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// writeProgram writes a module with one main package that prints text.
func writeProgram(t *testing.T, module, text string) {
	t.Helper()
	for name, content := range map[string]string{
		"go.mod":  "module example.org/program\n\ngo 1.26\n",
		"main.go": "package main\n\nfunc main() { print(`" + text + "`) }\n",
	} {
		if err := os.WriteFile(filepath.Join(module, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func output(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestBuild(t *testing.T) {
	t.Parallel()
	module, dir := t.TempDir(), t.TempDir()
	writeProgram(t, module, "one")
	var wg sync.WaitGroup
	paths := make([]string, 3)
	for i := range paths {
		wg.Go(func() {
			path, err := build(t.Context(), module, program{pkg: "."}, dir, false)
			if err != nil {
				t.Error(err)
			}
			paths[i] = path
		})
	}
	wg.Wait()
	if paths[0] != paths[1] || paths[1] != paths[2] || output(t, paths[0]) != "one" {
		t.Errorf("builds at the same time: %q", paths)
	}
	writeProgram(t, module, "two")
	two, err := build(t.Context(), module, program{pkg: "."}, dir, false)
	if err != nil || two == paths[0] {
		t.Fatalf("the changed program is %s, %v", two, err)
	}
	if output(t, two) != "two" || output(t, paths[0]) != "one" {
		t.Error("a later build changed an earlier binary")
	}
	old := time.Now().Add(-2 * kept)
	if err := os.Chtimes(paths[0], old, old); err != nil {
		t.Fatal(err)
	}
	if again, err := build(t.Context(), module, program{pkg: "."}, dir, false); err != nil || again != two {
		t.Errorf("the same program is %s, %v; want %s", again, err, two)
	}
	if _, err := os.Stat(paths[0]); !os.IsNotExist(err) {
		t.Errorf("the old binary is still there: %v", err)
	}
}

func TestBuildFails(t *testing.T) {
	t.Parallel()
	module := t.TempDir()
	writeProgram(t, module, "` + 1 + `")
	if path, err := build(t.Context(), module, program{pkg: "."}, t.TempDir(), false); err == nil {
		t.Errorf("a program that does not compile is built as %s", path)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := build(t.Context(), module, program{pkg: "."}, file, false); err == nil {
		t.Error("a file is taken for the directory")
	}
}

func TestBinaryByEnvironment(t *testing.T) {
	t.Setenv("HARVEST_TEST_BINARY", "/some/harvest")
	if got := Binary(t); got != "/some/harvest" {
		t.Errorf("Binary returned %s", got)
	}
}

func TestRootOfTheModule(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(filepath.Join(root(t), "go.mod")); err != nil {
		t.Error(err)
	}
}
