// Package mcp tests harvest mcp and the route /mcp: clients of the Model Context Protocol work in sandboxes.
package mcp

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestStory checks the work of an agent from its beginning to its end: an environment with the user's uncommitted work,
// commands, changes with the messages of their commits, the branch in the user's repository, and a client that was
// killed and comes back by the name of the environment.
func TestStory(t *testing.T) {
	h := host.New(t, "gvisor", host.GVisor(t))
	dir := project(t, h)
	u := overStdio(t, h, dir)
	u.must("environment_create", args{"name": "k"}, "harvest/k", "working directory /workspace/project")
	u.must("run", args{"environment": "k", "command": "cat notes.txt README.md; pwd", "explanation": "look"},
		"walnut", "# A changed project", "/workspace/project\n", "exit code 0", "environment k")

	files(u)
	commands(u)

	u.must("diff", args{"environment": "k"}, "Say hello in Python", "Rename the greeting", "hello.py", "+print(\"hi\")")
	if text := u.must("diff", args{"environment": "k", "summary": true}); strings.Contains(text, "+print") ||
		strings.Contains(text, "walnut") {
		t.Errorf("summary: %s", text)
	}
	u.fails("environment_remove", args{"environment": "k"}, "not handed back", "hand_back")

	if err := u.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	u = overStdio(t, h, dir)
	u.must("environment_list", args{}, "k: running", "from "+dir)
	u.must("environment_create", args{"name": "k"}, "exists already", "working directory /workspace/project")
	u.must("hand_back", args{"environment": "k", "branch": "work"}, "The branch work of "+dir)
	log := git(t, dir, "log", "--format=%s|%an", "main..work")
	for _, line := range []string{"Rename the greeting|", "Say hello in Python|", "Make a file|",
		"Uncommitted changes at the start of the environment|"} {
		if !strings.Contains(log, line) {
			t.Errorf("%q is missing in: %s", line, log)
		}
	}
	if text := git(t, dir, "show", "work:hello.py"); text != "print(\"hi\")\n" {
		t.Errorf("hello.py: %q", text)
	}
	if _, err := os.Stat(filepath.Join(dir, "hello.py")); err == nil {
		t.Error("hand_back has changed the user's files")
	}
	h.Must("down") // as a server in the background ends when it is idle
	states(u, h)
	u.must("environment_remove", args{"environment": "k"}, "Removed")
	u.must("environment_list", args{}, "copy: running")
	if strings.Contains(u.must("environment_list", args{}), "k: ") {
		t.Error("a removed environment is listed")
	}
	u.must("environment_remove", args{"environment": "copy", "discard": true}, "Removed")
}

// files checks the tools for files.
func files(u *user) {
	u.t.Helper()
	u.must("write", args{"environment": "k", "path": "hello.py", "content": "print(\"hello\")\n",
		"explanation": "Say hello in Python"}, "committed ", "on harvest/k", "1 file changed")
	u.must("edit", args{"environment": "k", "path": "hello.py", "old_text": "hello", "new_text": "hi",
		"explanation": "Rename the greeting"}, "Replaced 1", "committed ")
	u.must("read", args{"environment": "k", "path": "hello.py"}, "print(\"hi\")", "working directory")
	u.must("run", args{"environment": "k", "command": "python3 hello.py", "explanation": "try it"}, "hi\n")
	u.fails("edit", args{"environment": "k", "path": "hello.py", "old_text": "absent", "new_text": "x",
		"explanation": "x"}, "does not contain old_text", "read the file")
	u.fails("read", args{"environment": "k", "path": "absent.txt"}, "absent.txt", "list")
	u.must("list", args{"environment": "k"}, "hello.py  12 bytes", "README.md", "entries of /workspace/project")
	u.must("list", args{"environment": "k", "glob": "*.py"}, "hello.py\n", "1 files")
	u.must("search", args{"environment": "k", "pattern": "WAL.UT", "ignore_case": true}, "notes.txt:1:walnut")
	u.must("search", args{"environment": "k", "pattern": "nowhere"}, "no matches")
	u.must("run", args{"environment": "k", "command": "seq 1 9000 >long.txt", "explanation": "Make a file"},
		"committed ")
	u.must("read", args{"environment": "k", "path": "long.txt"}, "1\n2\n", "of 9000", `"offset": `)
	u.must("read", args{"environment": "k", "path": "long.txt", "offset": 8999, "limit": 5}, "8999\n9000\n",
		"lines 8999 to 9000 of 9000")
}

// commands checks long output, time limits, exit codes and commands in the background.
func commands(u *user) {
	u.t.Helper()
	text := u.must("run", args{"environment": "k", "command": "seq 1 30000; echo end >&2", "explanation": "count"},
		"1\n2\n3\n", "end\n", "bytes left out", "run_output {", "exit code 0")
	if len(text) > 40<<10 {
		u.t.Errorf("%d bytes of output", len(text))
	}
	_, id, _ := strings.Cut(text, `"command": "`)
	id, _, _ = strings.Cut(id, `"`)
	u.must("run_output", args{"environment": "k", "command": id, "offset": 8893}, "2001\n2002", "the rest: run_output")
	u.must("run", args{"environment": "k", "command": "exit 3", "explanation": "fail"}, "exit code 3")
	u.fails("run", args{"environment": "k", "command": "echo begun; sleep 1000", "timeout_seconds": 1,
		"explanation": "wait"}, "begun", "time limit of 1 s", "background: true")
	u.must("run", args{"environment": "k", "command": "for i in 1 2 3 4; do echo step $i; sleep 0.4; done",
		"explanation": "go on"}, "step 4")
	u.mu.Lock()
	heard := strings.Join(u.heard, "\n")
	u.mu.Unlock()
	if !strings.Contains(heard, "step 1") {
		u.t.Errorf("progress: %s", heard)
	}
	text = u.must("run", args{"environment": "k", "background": true, "explanation": "serve",
		"command": "echo ready; " +
			"exec python3 -m http.server 8123 --bind 127.0.0.1"}, "in the background", "run_output {")
	_, id, _ = strings.Cut(text, `"command": "`)
	id, _, _ = strings.Cut(id, `"`)
	testenv.Eventually(u.t, "the command is ready", func() bool {
		text, _ := u.call("run_output", args{"environment": "k", "command": id})
		return strings.Contains(text, "ready") && strings.Contains(text, "the command is running")
	})
	var address string
	testenv.Eventually(u.t, "the port answers", func() bool {
		text, failed := u.call("port", args{"environment": "k", "port": 8123})
		address, _, _ = strings.Cut(text, "\n")
		return !failed
	})
	resp, err := http.Get(address + "/notes.txt")
	if err != nil {
		u.t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "walnut\n" {
		u.t.Errorf("%s: %q, %v", address, body, err)
	}
	u.must("run_output", args{"environment": "k", "command": id, "stop": true}, "exit code 137")
	u.fails("port", args{"environment": "k", "port": 8123}, "nothing listens", "background: true")
	u.fails("run_output", args{"environment": "k", "command": "prc_absent"}, "not known")
	u.fails("run", args{"environment": "absent", "command": "true", "explanation": "x"}, `"absent": does not exist`,
		"environment_list")
}

// states checks snapshots, copies, and an environment that has ended.
func states(u *user, h *host.Host) {
	u.t.Helper()
	u.must("snapshot", args{"environment": "k", "name": "good"}, "Took the snapshot good", "restore {")
	u.must("fork", args{"environment": "k", "name": "copy"}, "environment copy")
	u.must("write", args{"environment": "copy", "path": "only.txt", "content": "x", "explanation": "In the copy"},
		"on harvest/copy")
	u.must("run", args{"environment": "k", "command": "rm notes.txt && touch /root/mark", "explanation": "Break it"},
		"committed ")
	u.must("restore", args{"environment": "k", "snapshot": "good"}, "the state before is the snapshot img_")
	u.must("run", args{"environment": "k", "command": "cat notes.txt; ls /root/mark only.txt", "explanation": "look"},
		"walnut", "No such file", "exit code 2")
	u.fails("restore", args{"environment": "k", "snapshot": "absent"}, "absent")
	h.Must("sandbox", "rm", "k") // as the idle limit does
	u.must("environment_list", args{}, "k: ended, continues")
	u.must("read", args{"environment": "k", "path": "notes.txt"}, "walnut", "continues with its files")
}

// TestHTTP checks the tools over HTTP: another client continues the environment, rights are those of the key, and
// directories of the user are out of reach.
func TestHTTP(t *testing.T) {
	h := host.New(t, "gvisor", host.GVisor(t))
	url := h.Up()
	key := h.Must("key", "create", "tools", "--quiet")
	if _, err := overHTTP(t, url, "hv_wrong"); err == nil || !strings.Contains(err.Error(), "nauthorized") {
		t.Errorf("a wrong key: %v", err)
	}
	u, err := overHTTP(t, url, key)
	if err != nil {
		t.Fatal(err)
	}
	u.must("environment_create", args{"name": "w"}, "working directory /workspace/project", "harvest/w")
	u.fails("environment_create", args{"repository": "/etc"}, "no access to directories")
	u.must("write", args{"environment": "w", "path": "a.txt", "content": "one\n", "explanation": "Begin with one"},
		"committed ")
	u.must("run", args{"environment": "w", "explanation": "look",
		"command": "for i in 1 2 3; do echo step $i; sleep 0.4; done; git log --oneline"}, "Begin with one",
		"step 3", "exit code 0")
	u.mu.Lock()
	if !slices.ContainsFunc(u.heard, func(text string) bool { return strings.Contains(text, "step 1") }) {
		t.Errorf("progress: %q", u.heard)
	}
	u.mu.Unlock()
	u.fails("hand_back", args{"environment": "w"}, "no origin")
	u.must("run_output", args{"environment": "w", "command": background(u)}, "over", "exit code 0")

	again, err := overHTTP(t, url, key)
	if err != nil {
		t.Fatal(err)
	}
	again.must("read", args{"environment": "w", "path": "a.txt"}, "one")
	res, err := again.session.ReadResource(t.Context(), &sdk.ReadResourceParams{
		URI: "harvest://environments/w/files/workspace/project/a.txt"})
	if err != nil || len(res.Contents) != 1 || res.Contents[0].Text != "one\n" {
		t.Errorf("resource: %+v, %v", res, err)
	}
	if _, err := again.session.ReadResource(t.Context(), &sdk.ReadResourceParams{
		URI: "harvest://environments/absent/files/a"}); err == nil {
		t.Error("a resource of an absent environment")
	}
	local := overStdio(t, h, project(t, h))
	local.must("run", args{"environment": "w", "command": "ls", "explanation": "look"}, "a.txt")
	again.must("environment_remove", args{"environment": "w", "discard": true}, "Removed")
}

// background starts a command in the background, and waits for its end.
func background(u *user) string {
	u.t.Helper()
	text := u.must("run", args{"environment": "w", "command": "sleep 1; echo over", "background": true,
		"explanation": "later"})
	_, id, _ := strings.Cut(text, `"command": "`)
	id, _, _ = strings.Cut(id, `"`)
	u.must("run_output", args{"environment": "w", "command": id, "wait_seconds": 60}, "over", "exit code 0")
	return id
}
