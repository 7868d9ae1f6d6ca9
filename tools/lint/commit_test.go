package lint_test

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestBuildsCarryTheirCommit checks that `make build` names the commit of the source in the programs that it makes, and
// that they have the go command's stamp of it.
func TestBuildsCarryTheirCommit(t *testing.T) {
	t.Parallel()
	run := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = "../.."
		// The flags are those of the Makefile alone.
		cmd.Env = slices.DeleteFunc(os.Environ(), func(pair string) bool {
			return strings.HasPrefix(pair, "GOFLAGS=") || strings.HasPrefix(pair, "REVISION=")
		})
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	if _, err := os.Stat("../../.git"); err != nil {
		t.Skip("this source is not a clone, so its commit is not known")
	}
	commit, err := run(testenv.RequireTool(t, "git", "git"), "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := run(testenv.RequireTool(t, "make", "make"), "--dry-run", "build")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string][]string{}
	for line := range strings.Lines(steps) {
		fields := strings.Fields(line)
		if i := slices.Index(fields, "-o"); i > 0 && slices.Contains(fields, "build") && i+1 < len(fields) {
			made[fields[i+1]] = fields
		}
	}
	for _, program := range []string{"bin/harvest", "bin/harvest-server"} {
		fields := made[program]
		named := slices.ContainsFunc(fields, func(f string) bool {
			return strings.HasPrefix(f, "github.com/RelevanceAI/harvest/internal/base/release.revision="+commit)
		})
		if !named {
			t.Errorf("%s does not name the commit %s: %q", program, commit, fields)
		}
		args := []string{"build"}
		for _, f := range fields {
			if strings.HasPrefix(f, "-buildvcs") || f == "-trimpath" {
				args = append(args, f)
			}
		}
		path := filepath.Join(t.TempDir(), "program")
		if _, err := run("go", append(args, "-o", path, "./internal/app/programs/pack")...); err != nil {
			t.Fatal(err)
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		stamp := ""
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				stamp = s.Value
			}
		}
		if stamp != commit {
			t.Errorf("%s with the flags %q has the stamp %q, want %s", program, args, stamp, commit)
		}
	}
}
