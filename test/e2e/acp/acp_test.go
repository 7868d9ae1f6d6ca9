// Package acp tests agents that speak the Agent Client Protocol: the real programs in sandboxes, with stubs as models.
package acp

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// working is a command of a tool that runs until the end of the test.
const working = "touch working; until test -e over; do sleep 0.1; done"

// segv kills the agent with SIGSEGV once its tool works: the program that the bridge has started.
const segv = `cd /workspace/work
until test -e working; do sleep 0.1; done
rm working
found=1
for p in /proc/[0-9]*; do
	parent=$(sed 's/.*) //' $p/stat 2>/dev/null | cut -d' ' -f2)
	case "$(tr '\0' ' ' < /proc/$parent/cmdline 2>/dev/null)" in
	*harvest-acp" -name "*) kill -SEGV $(basename $p); found=0 ;;
	esac
done
exit $found`

// TestLocksInstall checks that npm accepts each lock: some packages name others that no registry has.
func TestLocksInstall(t *testing.T) {
	testenv.Long(t)
	registry, npm := testenv.NPMRegistry(t), testenv.RequireTool(t, "npm", "npm")
	const locks = "../../../internal/session/agent/acp/bridge/locks"
	names, err := os.ReadDir(locks)
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	for _, name := range names {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(locks, name.Name()))); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), npm, "ci", "--dry-run", "--ignore-scripts", "--no-audit", "--no-fund",
			"--registry", registry)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name.Name(), err, out)
		}
	}
}
