package models

import (
	"os"
	"os/exec"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestReadSettings checks that variables and existing files are printed with NUL between them, whatever their content.
func TestReadSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/a b", []byte("{\n\"x\": 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-euc", readSettings, "sh", "ONE", "TWO", "--", dir+"/a b",
		dir+"/gone")
	cmd.Env = append(testenv.CleanEnv(), "ONE=1 '\"\n2")
	out, err := cmd.Output()
	want := "ONE\x001 '\"\n2\x00TWO\x00\x00\x00\x00" + dir + "/a b\x00{\n\"x\": 1}\n\x00"
	if string(out) != want || err != nil {
		t.Errorf("%q, want %q, %v", out, want, err)
	}
}
