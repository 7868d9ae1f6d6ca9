package testenv

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Peer returns the path of a third-party program, or one made of third-party parts, that tests run Harvest
// against. pkg is a package of the module tools/peers, or "../release", which is a module of its own.
func Peer(t testing.TB, pkg string) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "harvest-test-"+strconv.Itoa(os.Geteuid())+"-"+filepath.Base(pkg))
	module := filepath.Join(root(t), "tools", "peers")
	if own := filepath.Join(module, pkg); exists(filepath.Join(own, "go.mod")) {
		module, pkg = own, "."
	}
	path, err := build(context.WithoutCancel(t.Context()), module, program{pkg: pkg}, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// OIDCProvider starts the provider of tools/peers/oidc until the test ends, and returns its issuer.
func OIDCProvider(t testing.TB) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), Peer(t, "./oidc"))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // which ends it
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}
