package ssh_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// listening returns a client of a server that listens for SSH, with its port. The client has no harvest: it uses keys.
func listening(t *testing.T) (c *client, port string) {
	t.Helper()
	h := host.New(t, "gvisor", host.GVisor(t))
	port = fmt.Sprint(freePort(t))
	h.Env.Setenv("HARVEST_SERVER_SSH_LISTEN", "127.0.0.1:"+port)
	h.Up()
	h.Must("sandbox", "create", "--name", "dev")
	return &client{t: t, h: h, home: t.TempDir()}, port
}

// key makes a pair of keys, and returns the path of the private one.
func (c *client) key(name string) string {
	c.t.Helper()
	path := filepath.Join(c.home, name)
	cmd := c.command(c.t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	return path
}

// direct returns the arguments of ssh for a connection to the port with a key.
func (c *client) direct(port, key string, more ...string) []string {
	c.t.Helper()
	info, _, _ := c.h.Run("doctor", "-o", "json") // it fails on a machine that lacks something
	if !strings.Contains(info, "SHA256:") {
		c.t.Errorf("doctor does not show the fingerprint of the server's key: %s", info)
	}
	c.write(".ssh/config", nil)
	return append([]string{"-p", port, "-i", key, "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o",
		"BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o",
		"UserKnownHostsFile=" + filepath.Join(c.home, "known")}, more...)
}

// TestKeys connects without harvest, with keys that the server knows, does not know, and no longer knows.
func TestKeys(t *testing.T) {
	t.Parallel()
	c, port := listening(t)
	key := c.key("mine")
	_, stderr, code := c.run("", "ssh", c.direct(port, key, "dev@127.0.0.1", "true")...)
	if code != 255 || !strings.Contains(stderr, "Permission denied (publickey)") {
		t.Fatalf("an unknown key: %q, %d", stderr, code)
	}
	id := c.h.Must("key", "add-ssh", key+".pub")
	if got := c.must("ssh", c.direct(port, key, "dev@127.0.0.1", "echo in")...); got != "in\n" {
		t.Errorf("ssh printed %q", got)
	}
	if list := c.h.Must("key", "ls"); !strings.Contains(list, id) || !strings.Contains(list, "mine") {
		t.Errorf("harvest key ls: %s", list)
	}
	// The same key again, and files that are no public keys.
	for _, path := range []string{key + ".pub", key, "/dev/null", filepath.Join(c.home, "missing")} {
		if _, stderr, code := c.h.Run("key", "add-ssh", path); code == 0 || !strings.Contains(stderr, "try:") {
			t.Errorf("harvest key add-ssh %s: %q, %d", path, stderr, code)
		}
	}
	_, stderr, code = c.run("", "ssh", c.direct(port, key, "nothing@127.0.0.1", "true")...)
	if code != 255 || !strings.Contains(stderr, `there is no sandbox and no session "nothing"`) {
		t.Errorf("an unknown sandbox: %q, %d", stderr, code)
	}
	// A key that may only read, and one of another account.
	reader, other := c.key("reader"), c.key("other")
	c.h.Must("key", "add-ssh", reader+".pub", "--scope", "read")
	c.h.Must("key", "add-ssh", other+".pub", "--account", "acme")
	_, stderr, code = c.run("", "ssh", c.direct(port, reader, "dev@127.0.0.1", "true")...)
	if code != 255 || !strings.Contains(stderr, "exec") {
		t.Errorf("a key that may only read: %q, %d", stderr, code)
	}
	_, stderr, code = c.run("", "ssh", c.direct(port, other, "dev@127.0.0.1", "true")...)
	if code != 255 || !strings.Contains(stderr, "there is no sandbox") {
		t.Errorf("a key of another account: %q, %d", stderr, code)
	}

	// A connection ends with its key.
	c.background(c.direct(port, key, "dev@127.0.0.1", "echo $$; exec sleep 1000")...)
	c.h.Must("key", "rm", id)
	testenv.Eventually(t, "the command of the removed key has ended", func() bool {
		_, _, code := c.h.Run("sandbox", "exec", "dev", "--", "pgrep", "-x", "sleep")
		return code == 1
	})
	_, stderr, code = c.run("", "ssh", c.direct(port, key, "dev@127.0.0.1", "true")...)
	if code != 255 || !strings.Contains(stderr, "Permission denied (publickey)") {
		t.Errorf("a removed key: %q, %d", stderr, code)
	}
	c.audited(id)
}

// TestCurl appends to a file with a client that leaves the offset to the server.
func TestCurl(t *testing.T) {
	t.Parallel()
	curl := testenv.RequireTool(t, "curl", "curl")
	if out, err := exec.CommandContext(t.Context(), curl, "--version").Output(); err != nil ||
		!strings.Contains(string(out), " sftp ") {
		t.Fatalf("%s has no sftp: apt-get install curl: %v", curl, err)
	}
	c, port := listening(t)
	key := c.key("mine")
	c.h.Must("key", "add-ssh", key+".pub")
	c.h.Must("sandbox", "exec", "dev", "--", "sh", "-c", "echo old >/root/log")
	more := c.write("more", []byte("new\n"))
	c.must("curl", "-sS", "--insecure", "-u", "dev:", "--key", key, "--pubkey", key+".pub", "--append", "-T", more,
		"sftp://127.0.0.1:"+port+"/root/log")
	if got := c.h.Must("sandbox", "exec", "dev", "--", "cat", "/root/log"); got != "old\nnew" {
		t.Errorf("the file has %q", got)
	}
}

// audited checks that the audit log has the key, the address, the sandbox and the command of a connection.
func (c *client) audited(key string) {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.h.Data, "audit.log"))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var l api.AuditLine
		if json.Unmarshal([]byte(line), &l) == nil && l.Method == "SSH" && l.Command == "echo in" {
			if l.KeyID != key || l.Account != "personal" || l.Address != "127.0.0.1" || l.Path != "exec" ||
				l.SandboxID != c.h.Sandbox("dev").ID {
				c.t.Errorf("the audit log has %s", line)
			}
			return
		}
	}
	c.t.Errorf("the command is not in the audit log: %s", text)
}

// TestEnds connects to a sandbox that is suspended, over a server that was killed, and to one that has ended.
func TestEnds(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	c.h.Must("sandbox", "suspend", "dev")
	if got := c.must("ssh", "dev.harvest", "echo awake"); got != "awake\n" {
		t.Errorf("a suspended sandbox: %q", got)
	}
	c.h.Kill()
	if got := c.must("ssh", "dev.harvest", "echo again"); got != "again\n" {
		t.Errorf("after the server was killed: %q", got)
	}
	c.h.Must("sandbox", "rm", "dev")
	_, stderr, code := c.run("", "ssh", "dev.harvest", "true")
	if code != 255 || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "harvest: ") {
		t.Errorf("a sandbox that has ended: %q, %d", stderr, code)
	}
	_, stderr, code = c.run("", "sftp", "-b", "/dev/null", "dev.harvest")
	if code == 0 || !strings.Contains(stderr, "harvest: ") {
		t.Errorf("sftp to a sandbox that has ended: %q, %d", stderr, code)
	}
}

// TestHangUp checks that the command of a client that goes away ends, as with sshd a terminal's does.
func TestHangUp(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	for _, args := range [][]string{{"dev.harvest"}, {"-tt", "dev.harvest"}} {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := c.command(ctx, "ssh", append(args, "exec sleep 1000")...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "the command runs", func() bool {
			_, _, code := c.h.Run("sandbox", "exec", "dev", "--", "pgrep", "-x", "sleep")
			return code == 0
		})
		cancel()
		_ = cmd.Wait() // which was killed
		testenv.Eventually(t, "the command has ended", func() bool {
			_, _, code := c.h.Run("sandbox", "exec", "dev", "--", "pgrep", "-x", "sleep")
			return code == 1
		})
	}
}

// TestConfig installs the configuration twice, keeps what the user has written, and removes it.
func TestConfig(t *testing.T) {
	t.Parallel()
	h := host.New(t, "fake", nil)
	home := t.TempDir()
	h.Env.Setenv("HOME", home)
	path := filepath.Join(home, ".ssh", "config")
	own := "Port 2222\nHost mine\n\tUser me\n"
	for range 2 {
		h.Must("ssh-config", "--install")
		text, err := os.ReadFile(path)
		if err != nil || strings.Count(string(text), "Host *.harvest\n") != 1 {
			t.Fatalf("the configuration is %s, %v", text, err)
		}
		if err := os.WriteFile(path, append(text, own...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"other": "port 2222", "mine": "user me", "x.harvest": "user harvest"} {
		out, err := exec.CommandContext(t.Context(), "ssh", "-F", path, "-G", name).Output()
		if err != nil || !strings.Contains(string(out), want+"\n") {
			t.Errorf("the configuration of %s lacks %q: %s, %v", name, want, out, err)
		}
	}
	h.Must("ssh-config", "--remove")
	if text, err := os.ReadFile(path); err != nil || string(text) != own+own {
		t.Errorf("the user's part is %q, %v", text, err)
	}
	h.Must("ssh-config", "--remove")
	half := "# >>> harvest: written by harvest ssh-config --install >>>\nHost x\n"
	if err := os.WriteFile(path, []byte(half), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := h.Run("ssh-config", "--install"); code == 0 || !strings.Contains(stderr, "by hand") {
		t.Errorf("a block without an end: %q, %d", stderr, code)
	}
	if _, stderr, code := h.Run("ssh-config", "--install", "--remove"); code != 2 {
		t.Errorf("both flags: %q, %d", stderr, code)
	}
	if got := h.Must("ssh-config"); !strings.HasPrefix(got, "Host *.harvest\n") {
		t.Errorf("harvest ssh-config prints %q", got)
	}
}
