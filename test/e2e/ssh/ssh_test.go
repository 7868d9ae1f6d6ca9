// Package ssh_test connects to sandboxes with the real clients of SSH: ssh, scp, sftp, rsync and git.
package ssh_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// client is a user of SSH with a configuration that harvest ssh-config has installed.
type client struct {
	t    *testing.T
	h    *host.Host
	home string
}

// newClient returns a client of a new host with gVisor and a sandbox named dev.
func newClient(t *testing.T) *client {
	t.Helper()
	testenv.RequireTool(t, "ssh", "openssh-client")
	testenv.RequireTool(t, "rsync", "rsync")
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Must("sandbox", "create", "--name", "dev", "--env", "FROM_SANDBOX=yes")
	return installed(t, h)
}

// installed returns a client of a host.
func installed(t *testing.T, h *host.Host) *client {
	t.Helper()
	c := &client{t: t, h: h, home: t.TempDir()}
	h.Env.Setenv("HOME", c.home)
	h.Must("ssh-config", "--install")
	return c
}

// with returns the client for a subtest.
func (c *client) with(t *testing.T) *client { return &client{t: t, h: c.h, home: c.home} }

func (c *client) config() string { return filepath.Join(c.home, ".ssh", "config") }

// command returns a command of the client's machine. Programs find ssh in PATH, with the client's configuration: ssh
// itself looks for it in the home directory of the system's records, not in HOME.
func (c *client) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c.t.Helper()
	if name == "ssh" || name == "scp" || name == "sftp" {
		args = append([]string{"-F", c.config()}, args...)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(append([]string(nil), c.h.Env.Vars...), "HOME="+c.home, "RSYNC_RSH=ssh -F "+c.config(),
		"GIT_SSH_COMMAND=ssh -F "+c.config(), "GIT_CONFIG_GLOBAL=/dev/null")
	cmd.Dir = c.home
	return cmd
}

// run runs a command of the client's machine to its end.
func (c *client) run(stdin, name string, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	var out, err bytes.Buffer
	cmd := c.command(c.t.Context(), name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &err
	if e := cmd.Run(); cmd.ProcessState == nil {
		c.t.Fatal(e)
	}
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// must runs a command that must succeed, and returns its output.
func (c *client) must(name string, args ...string) string {
	c.t.Helper()
	stdout, stderr, code := c.run("", name, args...)
	if code != 0 {
		c.t.Fatalf("%s %q: exit code %d\n%s%s\n%s", name, args, code, stdout, stderr, c.h.Log())
	}
	return stdout
}

// write writes a file of the client's machine, and returns its path.
func (c *client) write(name string, content []byte) string {
	c.t.Helper()
	path := filepath.Join(c.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		c.t.Fatal(err)
	}
	return path
}

func random(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.Read(data) // never fails
	return data
}

// TestCommands runs commands with ssh: their output, input, environment, status, signals and terminals.
func TestCommands(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	for _, test := range []struct {
		name, stdin    string
		args           []string
		stdout, stderr string
		code           int
	}{
		{name: "command", args: []string{"dev.harvest", "echo out; echo err >&2; exit 7"}, stdout: "out\n",
			stderr: "err\n", code: 7},
		{name: "input", stdin: "some input", args: []string{"dev.harvest", "cat; echo $?"}, stdout: "some input0\n"},
		{name: "environment", args: []string{"-o", "SetEnv=COLOUR=blue", "dev.harvest", "echo $COLOUR $FROM_SANDBOX"},
			stdout: "blue yes\n"},
		{name: "shell", stdin: "echo in $0; exit 3\n", args: []string{"-T", "dev.harvest"}, stdout: "in bash\n",
			code: 3},
		{name: "terminal", args: []string{"-tt", "dev.harvest", "stty size; tty | grep -c /dev/pts"},
			stdout: "24 80\r\n1\r\n"},
		{name: "signal", args: []string{"dev.harvest", "kill -TERM $$"}, code: 255},
		{name: "subsystem", args: []string{"-s", "dev.harvest", "netconf"}, code: 255,
			stderr: "subsystem request failed on channel 0\r\n"},
		{name: "unknown", args: []string{"nothing.harvest", "true"}, code: 255,
			stderr: "harvest: there is no sandbox and no session \"nothing\"; " +
				"harvest sandbox ls and harvest sessions list them\r\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := c.with(t)
			stdout, stderr, code := c.run(test.stdin, "ssh", test.args...)
			if stdout != test.stdout || !strings.HasPrefix(stderr, test.stderr) || code != test.code {
				t.Errorf("got %q, %q, %d\nwant %q, %q, %d", stdout, stderr, code, test.stdout, test.stderr, test.code)
			}
		})
	}
	t.Run("harvest ssh", func(t *testing.T) {
		stdout, stderr, code := c.h.Run("ssh", "dev", "--", "-o", "SetEnv=COLOUR=red", "echo $COLOUR; exit 4")
		if stdout != "red\n" || code != 4 {
			t.Errorf("got %q, %q, %d", stdout, stderr, code)
		}
	})
	t.Run("large", func(t *testing.T) {
		c := c.with(t)
		data := random(8 << 20)
		stdout, stderr, code := c.run(string(data), "ssh", "dev.harvest", "tee /root/large")
		if stdout != string(data) || code != 0 {
			t.Errorf("%d bytes of %d came back: %q, %d", len(stdout), len(data), stderr, code)
		}
		if got := c.must("ssh", "dev.harvest", "cat /root/large"); got != string(data) {
			t.Errorf("%d bytes of %d were kept", len(got), len(data))
		}
	})
}

// TestFiles copies files with scp, sftp and rsync.
func TestFiles(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	data := random(3 << 20)
	file := c.write("file", data)
	same := func(t *testing.T, path string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d came back, %v", len(got), len(data), err)
		}
	}
	for _, protocol := range [][]string{{"-p"}, {"-p", "-O"}} {
		c.must("scp", append(protocol, file, "dev.harvest:/root/copy")...)
		c.must("scp", append(protocol, "dev.harvest:/root/copy", filepath.Join(c.home, "back"))...)
		same(t, filepath.Join(c.home, "back"))
	}
	t.Run("sftp", func(t *testing.T) {
		c := c.with(t)
		// The first half is there already: both directions continue it.
		c.must("ssh", "dev.harvest",
			"mkdir -p /root/in && head -c 1000000 /root/copy >/root/in/half && echo old >/root/in/new")
		c.write("half", data[:1000000])
		script := c.write("script", []byte("#!/bin/sh\n"))
		if err := os.Chmod(script, 0o755); err != nil {
			t.Fatal(err)
		}
		batch := c.write("batch", []byte(strings.Join([]string{
			"cd /root/in", "pwd", "reput " + file + " half", "reget half " + filepath.Join(c.home, "half"),
			"rename half new", "chmod 600 new", "ln -s new link", "ln new hard", "mkdir dir", "rmdir dir", "ls -l",
			"df -h", "put " + script + " script", "get -p link " + filepath.Join(c.home, "linked"),
			"rm hard", "-rm nothing", "",
		}, "\n")))
		out := c.must("sftp", "-b", batch, "dev.harvest")
		if !strings.Contains(out, "Remote working directory: /root/in") || !strings.Contains(out, "-rw-------") {
			t.Errorf("sftp printed %s", out)
		}
		same(t, filepath.Join(c.home, "half"))
		same(t, filepath.Join(c.home, "linked"))
		left := "cd /root/in && ls | xargs && readlink link && stat -c %a new script"
		if got := c.must("ssh", "dev.harvest", left); got !=
			"link new script\nnew\n600\n755\n" {
			t.Errorf("sftp left %q", got)
		}
	})
	t.Run("rsync", func(t *testing.T) {
		c := c.with(t)
		for i := range 100 {
			c.write(filepath.Join("tree", string(rune('a'+i%10)), string(rune('a'+i/10))), random(100*i))
		}
		c.must("rsync", "-a", "--stats", filepath.Join(c.home, "tree")+"/", "dev.harvest:/root/tree/")
		out := c.must("rsync", "-a", "--stats", filepath.Join(c.home, "tree")+"/", "dev.harvest:/root/tree/")
		if !strings.Contains(out, "Number of regular files transferred: 0\n") {
			t.Errorf("a second time, rsync does: %s", out)
		}
		c.must("rsync", "-a", "dev.harvest:/root/tree/", filepath.Join(c.home, "tree2"))
		c.must("diff", "-r", "tree", "tree2")
	})
}

// TestGit clones from a sandbox, and pushes to it.
func TestGit(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	c.must("ssh", "dev.harvest", "git init -q --bare -b main /root/project.git")
	c.must("git", "clone", "-q", "ssh://dev.harvest/root/project.git")
	work := filepath.Join(c.home, "project")
	c.write("project/file", []byte("content"))
	c.must("git", "-C", work, "add", "file")
	c.must("git", "-C", work, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "first")
	c.must("git", "-C", work, "push", "-q", "origin", "HEAD:main")
	if got := c.must("ssh", "dev.harvest", "git --git-dir /root/project.git show main:file"); got != "content" {
		t.Errorf("the sandbox has %q", got)
	}
}

// TestMaster uses one connection for many commands at once.
func TestMaster(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	socket := filepath.Join(c.home, "master")
	c.must("ssh", "-o", "ControlPersist=yes", "-M", "-S", socket, "-fN", "dev.harvest")
	defer c.must("ssh", "-S", socket, "-O", "exit", "dev.harvest")
	done := make(chan string, 8)
	for range cap(done) {
		go func() {
			out, _, code := c.run("", "ssh", "-S", socket, "dev.harvest", "sleep 0.1; echo done")
			if code != 0 {
				out = "it failed"
			}
			done <- out
		}()
	}
	for range cap(done) {
		if out := <-done; out != "done\n" {
			t.Errorf("a command printed %q", out)
		}
	}
	testenv.Eventually(t, "the commands have ended", func() bool {
		return !strings.Contains(c.h.Must("sandbox", "ps", "dev"), "running")
	})
}
