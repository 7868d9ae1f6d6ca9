package testenv

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Peer returns the path of a program of others, or made of others' parts, which a package of the module internal/peers is. Tests run ours against it.
func Peer(t testing.TB, pkg string) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "harvest-test-"+strconv.Itoa(os.Geteuid())+"-"+filepath.Base(pkg))
	path, err := build(filepath.Join(root(t), "internal", "peers"), pkg, dir, how{})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// OIDCProvider starts the provider of internal/peers/oidc, until the test ends, and returns its issuer.
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
		_ = stdin.Close() // at which it ends
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}
