package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// codexVersion is that of the npm package.
const codexVersion = "0.171.0"

// Codex returns the path of the Codex program on this machine. It downloads it if it is not there.
func Codex(t *testing.T) string {
	t.Helper()
	dir := testenv.Cache(t, "codex-"+codexVersion)
	program := filepath.Join(dir, "package", "vendor", "x86_64-unknown-linux-musl", "bin", "codex")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), testenv.RequireTool(t, "npm", "npm"), "pack", "--registry",
		testenv.NPMRegistry(t), "--pack-destination", dir, "@openai/codex@"+codexVersion+"-linux-x64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm pack: %v: %s", err, out)
	}
	file := filepath.Join(dir, "openai-codex-"+codexVersion+"-linux-x64.tgz")
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", file, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("unpack Codex: %v: %s", err, out)
	}
	return program
}

// geminiVersion is that of the npm package.
const geminiVersion = "0.61.0"

// Gemini returns the path of the Gemini CLI on this machine. It downloads it if it is not there.
func Gemini(t *testing.T) string {
	t.Helper()
	testenv.RequireTool(t, "node", "nodejs")
	dir := testenv.Cache(t, "gemini-"+geminiVersion)
	program := filepath.Join(dir, "node_modules", ".bin", "gemini")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	cmd := exec.CommandContext(t.Context(), testenv.RequireTool(t, "npm", "npm"), "install", "--registry",
		testenv.NPMRegistry(t), "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund",
		"@google/gemini-cli@"+geminiVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v: %s", err, out)
	}
	return program
}

// OpenCode returns the path of the OpenCode program on this machine, in the version of the agent image. It downloads it
// if it is not there.
func OpenCode(t *testing.T) string {
	t.Helper()
	cache, versions := cliDir(t)
	locked(t, cache, func() { fetchPrograms(t, cache, versions) })
	return filepath.Join(cache, "context", "opencode")
}

// ClaudeCode returns the path of the Claude Code program on this machine, in the version of the agent image. It
// downloads it if it is not there.
func ClaudeCode(t *testing.T) string {
	t.Helper()
	cache, versions := cliDir(t)
	locked(t, cache, func() { fetchPrograms(t, cache, versions) })
	return filepath.Join(cache, "context", "claude")
}
