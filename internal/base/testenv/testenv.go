// Package testenv has the helpers shared by tests of several packages: the built binary, directories, and the
// check for leaks.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// CoverDir is where processes of the binary write their coverage counters, or "". `make cover` sets it.
func CoverDir() string { return os.Getenv("HARVEST_COVERDIR") }

// DataDir returns a data directory for the test, with a path short enough for Unix sockets. At the end of the
// test it is checked by NoLeaks and removed. Users of it must be stopped in cleanups that are registered later.
func DataDir(t testing.TB) string {
	t.Helper()
	parent := os.TempDir()
	if len(parent) > 32 {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "hv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	NoLeaks(t, dir)
	return dir
}

// remove removes dir, but does not descend into remaining mounts: those may be the machine's own files.
func remove(t testing.TB, dir string) {
	t.Helper()
	unmountBelow(dir)
	if left := mountsBelow(dir); len(left) > 0 {
		t.Errorf("%s is not removed, because these are still mounted: %s", dir, strings.Join(left, ", "))
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Errorf("remove the data directory: %v", err)
	}
}

// secretNames are parts of environment variable names that no test may depend on.
var secretNames = []string{"API_KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AWS_", "ANTHROPIC_", "CLAUDE",
	"OPENAI_", "MODAL_", "HARVEST_"}

// CleanEnv returns the environment for processes of the binary: this process's own, without Harvest's
// variables, without secrets, and without IS_SANDBOX.
func CleanEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return name == "IS_SANDBOX" || name == "GOCOVERDIR" || slices.ContainsFunc(secretNames, func(part string) bool {
			return strings.Contains(strings.ToUpper(name), part)
		})
	})
	if dir := CoverDir(); dir != "" {
		env = append(env, "GOCOVERDIR="+dir)
	}
	return env
}

// Root skips the test unless it runs as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("this test needs root: run it with sudo")
	}
}

// RequireTool returns the path of a program. Without it, the test is skipped, or fails if CI=true, where all
// tests must run.
func RequireTool(t testing.TB, name, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing: apt-get install %s", name, debianPackage)
	}
	t.Skipf("%s is missing: apt-get install %s", name, debianPackage)
	return ""
}

// root is the directory of the module.
func root(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		t.Fatal("the module's directory is not known; build tests without -trimpath")
	}
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}
