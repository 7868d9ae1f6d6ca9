package mcp

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// command returns the command of an environment whose command line contains text.
func command(t *testing.T, h *host.Host, environment, text string) (found api.Process) {
	t.Helper()
	testenv.Eventually(t, "the command "+text, func() bool {
		var all []api.Process
		if err := json.Unmarshal([]byte(h.Must("sandbox", "ps", environment, "-o", "json")), &all); err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if strings.Contains(strings.Join(p.Args, " "), text) {
				found = p
			}
		}
		return found.ID != ""
	})
	return found
}

// TestEndOfCalls checks that a cancelled call ends its command, and that the command of a client that has gone
// continues: the next client reads its output, and its changes are kept.
func TestEndOfCalls(t *testing.T) {
	t.Parallel()
	h := host.New(t, "gvisor", host.GVisor(t))
	dir := project(t, h)
	u := overStdio(t, h, dir)
	u.must("environment_create", args{"name": "k"})

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := u.session.CallTool(ctx, &sdk.CallToolParams{Name: "run", Arguments: args{"environment": "k",
			"command": "sleep 1001", "explanation": "wait"}})
		ended <- err
	}()
	command(t, h, "k", "sleep 1001")
	cancel()
	if err := <-ended; err == nil {
		t.Error("the cancelled call succeeded")
	}
	testenv.Eventually(t, "the command has ended", func() bool { return command(t, h, "k", "sleep 1001").Exit != nil })

	go func() {
		_, _ = u.session.CallTool(context.WithoutCancel(t.Context()), &sdk.CallToolParams{Name: "run",
			Arguments: args{"environment": "k", "explanation": "wait",
				"command": "until test -e /tmp/over; do sleep 0.1; done; echo continued >late.txt; echo I went on"}})
	}()
	id := command(t, h, "k", "I went on").ID
	if err := u.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = u.session.Wait()
	h.Must("sandbox", "exec", "k", "--", "touch", "/tmp/over")
	u = overStdio(t, h, dir)
	u.must("run_output", args{"environment": "k", "command": id, "wait_seconds": 100}, "I went on", "exit code 0",
		"committed ")
	u.must("read", args{"environment": "k", "path": "late.txt"}, "continued")
	u.must("environment_remove", args{"environment": "k", "discard": true})
}

// TestAddress checks an environment of a repository's address: its work is pushed there.
func TestAddress(t *testing.T) {
	t.Parallel()
	h := host.New(t, "gvisor", host.GVisor(t))
	g := host.NewGit(t, "")
	g.Commit("far", map[string]string{"a.txt": "far away\n"})
	host.RunGit(t, filepath.Join(g.Dir, "far.git"), "config", "http.receivepack", "true")
	u := overStdio(t, h, t.TempDir(), g.Network()...)
	u.fails("environment_create", args{"name": "absent", "repository": g.URL("absent")}, "cannot clone")
	u.must("environment_list", args{}, "There are no environments")
	u.must("environment_create", args{"name": "far", "repository": g.URL("far")}, "/workspace/far", "harvest/far")
	u.must("hand_back", args{"environment": "far"}, "Nothing has changed")
	u.must("edit", args{"environment": "far", "path": "a.txt", "old_text": "far", "new_text": "near",
		"explanation": "Bring it near"}, "committed ")
	u.must("hand_back", args{"environment": "far", "branch": "near"}, "Pushed the work to the branch near")
	if text := host.RunGit(t, filepath.Join(g.Dir, "far.git"), "show", "near:a.txt"); text != "near away" {
		t.Errorf("a.txt: %q", text)
	}
	u.must("environment_remove", args{"environment": "far"}, "Removed")
	u.must("environment_create", args{"name": "bare"}, "working directory /workspace/project")
	u.fails("hand_back", args{"environment": "bare", "branch": "-x"}, "invalid branch")
	u.must("run", args{"environment": "bare", "command": "git checkout -q -b other && echo x >x && git add x && " +
		"git commit -qm own", "explanation": "Use git"}, "exit code 0")
	u.must("environment_remove", args{"environment": "bare", "discard": true})
}

// TestDelegation checks that an agent gets the branch of an environment, and that its work comes back.
func TestDelegation(t *testing.T) {
	t.Parallel()
	h := host.New(t, "gvisor", host.GVisor(t))
	dir := project(t, h)
	u := overStdio(t, h, dir)
	u.must("environment_create", args{"name": "k"})
	u.must("write", args{"environment": "k", "path": "plan.txt", "content": "cherry\n", "explanation": "Write a plan"})
	text := u.must("agent_start", args{"environment": "k", "agent": "scripted", "approval": "ask",
		"prompt": "/run cat plan.txt\n/write made.txt by another agent\n/say I have done it."},
		"Started the session ses_",
		"agent_wait {")
	_, id, _ := strings.Cut(text, `{"session": "`)
	id, _, _ = strings.Cut(id, `"`)
	u.must("agent_wait", args{"session": id}, "I have done it.", "the turn is completed",
		"harvest/"+strings.TrimPrefix(id, "ses_"))
	u.must("diff", args{"session": id}, "+by another agent")
	u.must("agent_send", args{"session": id, "prompt": "/approve touch allowed.txt\n/say So be it."}, "Sent")
	text = u.must("agent_wait", args{"session": id}, "waits for an answer", "touch allowed.txt", `"question": "`)
	_, question, _ := strings.Cut(text, `"question": "`)
	question, _, _ = strings.Cut(question, `"`)
	u.must("agent_send", args{"session": id, "question": question, "allow": true}, "Sent")
	u.must("agent_wait", args{"session": id}, "So be it.")
	u.must("diff", args{"session": id}, "allowed.txt")
	res, err := u.session.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "harvest://sessions/" + id +
		"/transcript"})
	if err != nil || !strings.Contains(res.Contents[0].Text, "I have done it.") {
		t.Errorf("transcript: %+v, %v", res, err)
	}
	u.must("hand_back", args{"environment": "k"}, "harvest/k")
	u.must("hand_back", args{"session": id, "branch": "delegated"}, "The branch delegated")
	if text := git(t, dir, "show", "delegated:made.txt"); text != "by another agent\n" {
		t.Errorf("made.txt: %q", text)
	}
	u.fails("agent_wait", args{"session": "ses_absent"}, "ses_absent")
	h.Must("end", id)
	u.must("environment_remove", args{"environment": "k"})
}
