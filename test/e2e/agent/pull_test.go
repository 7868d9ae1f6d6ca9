package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// pulls is the part of GitHub's REST API for the only pull request of a repository.
type pulls struct {
	mu   sync.Mutex
	open map[string]any // guarded by mu; nil for none
}

func (p *pulls) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var answer any
	switch {
	case !strings.Contains(r.URL.Path, "/pulls"):
		answer = map[string]any{"default_branch": "main"}
	case r.Method == http.MethodGet && p.open == nil:
		answer = []any{}
	case r.Method == http.MethodGet:
		answer = []any{p.open}
	case r.Method == http.MethodPost && p.open == nil:
		p.open = map[string]any{"number": 12, "html_url": "https://github.example/pull/12"}
		fallthrough
	default:
		if json.NewDecoder(r.Body).Decode(&p.open) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer = p.open
	}
	if r.Method == http.MethodPost {
		w.WriteHeader(http.StatusCreated)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (p *pulls) text(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, _ := p.open[name].(string)
	return text
}

// TestPullRequestOfClaude checks that the real Claude writes the text of a pull request, by the repository's template,
// and that the text is updated after a later turn.
// mission: E1, E3, E7
func TestPullRequestOfClaude(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const token = "ghp_CANARY52d1b7a0f3"
	run := func(command string) modeltest.Step {
		return modeltest.Step{Call: "Bash", Input: map[string]any{"command": command, "description": "work"}}
	}
	// The stub answers the request for a text, which names no script, with the last step of the turn before.
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("work", run("echo a >a && git add a && git commit -qm 'Add a'"),
		modeltest.Step{Say: "Add the file a\n\n## What\n\nThe file a."})
	stub.Script("more", run("echo b >b && git add b && git commit -qm 'Add b'"),
		modeltest.Step{Say: "Add two files\n\n## What\n\nThe files a and b."})
	h := host.NewCLI(t, stub)
	hub := &pulls{}
	server := httptest.NewServer(hub)
	t.Cleanup(server.Close)
	g := host.NewGit(t, token)
	g.Commit("owner/sample", map[string]string{"README.md": "one\n", ".github/pull_request_template.md": "## What\n"})
	host.RunGit(t, g.Dir, "-C", filepath.Join(g.Dir, "owner", "sample.git"), "config", "http.receivepack", "true")
	address := strings.TrimPrefix(g.Server.URL, "http://")
	_, port, _ := strings.Cut(address, ":")
	h.Must("secret", "set", "git", "GIT_HOST=10.0.2.2:"+port, "GIT_PASSWORD="+token, "GITHUB_API_URL="+server.URL)
	h.Must("agent", "--agent", "claude", "--repo", g.URL("owner/sample"), "--network", "allow="+address, "-e",
		"ENABLE_TOOL_SEARCH=false", "-o", "json", "[work] on it")
	id := h.Session()
	pull := func() (made api.PullRequest) {
		t.Helper()
		if err := json.Unmarshal([]byte(h.Must("pr", id, "-o", "json")), &made); err != nil {
			t.Fatal(err)
		}
		return made
	}
	if made := pull(); !made.New || !made.Draft || made.Summary != "agent" || made.Note != "" {
		t.Errorf("%+v", made)
	}
	if title, body := hub.text("title"), hub.text("body"); title != "Add the file a" ||
		!strings.HasPrefix(body, "## What\n\nThe file a.\n\n---\n") {
		t.Errorf("%q %q", title, body)
	}
	h.Must("send", "-o", "json", id, "[more] of it")
	if made := pull(); made.New || !made.Updated || made.Summary != "agent" {
		t.Errorf("%+v", made)
	}
	if title, body := hub.text("title"), hub.text("body"); title != "Add two files" ||
		!strings.HasPrefix(body, "## What\n\nThe files a and b.\n") {
		t.Errorf("%q %q", title, body)
	}
	if _, said, code := h.Run("attach", id); code != 0 ||
		strings.Count(said, "Harvest asks the agent for the text of a pull request") != 2 ||
		strings.Contains(said, "This request is from Harvest") {
		t.Errorf("the conversation shows: %d, %s", code, said)
	}
	held := h.Must("sandbox", "exec", "--user", "0", h.Box(), "--", "sh", "-c",
		"cat /dev/shm/.harvest-git/credentials; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; true")
	if !strings.Contains(held, "ghp_") || strings.Contains(held, token) {
		t.Errorf("the sandbox has %q", held)
	}
	if branch := host.RunGit(t, filepath.Join(g.Dir, "owner", "sample.git"), "log", "--format=%s", "-2",
		"harvest/"+strings.TrimPrefix(id, "ses_")); branch != "Add b\nAdd a" {
		t.Errorf("the branch has %q", branch)
	}
	box := h.Box()
	h.Must("end", id)
	if events := h.Must("sandbox", "events", box); !strings.Contains(events,
		"credential.used git POST 10.0.2.2/owner/sample.git/git-receive-pack 200\n") || strings.Contains(events,
		token) {
		t.Errorf("the events are %s", events)
	}
}
