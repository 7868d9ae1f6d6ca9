package session_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// gitServer is git's own HTTP server (git-http-backend(1)) with the part of GitHub's API that sessions need.
// Repositories of the owner "public" are readable without a token. The others need one.
type gitServer struct {
	t    *testing.T
	root string
	addr string

	mu     sync.Mutex
	tokens []string          // guarded by mu; that are good
	calls  []string          // guarded by mu; "METHOD /path body" of the API
	issue  func() (any, int) // guarded by mu; answers requests for an installation's token
	pull   map[string]any    // guarded by mu; the open pull request; nil for none
}

func newGitServer(t *testing.T) *gitServer {
	t.Helper()
	testenv.RequireTool(t, "git", "git")
	host := ""
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			host = n.IP.String()
		}
	}
	if host == "" {
		t.Skip("this machine has no address but the loopback's, which sandboxes never reach; give it one: ip address " +
			"add 10.99.0.1/32 dev lo")
	}
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gitServer{t: t, root: t.TempDir(), addr: l.Addr().String()}
	s := &http.Server{Handler: g, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return g
}

func (g *gitServer) setTokens(tokens ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tokens = tokens
}

func (g *gitServer) good(token string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return token != "" && slices.Contains(g.tokens, token)
}

func (g *gitServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/api/v3/") {
		g.serveAPI(w, r)
		return
	}
	user, password, _ := r.BasicAuth()
	read := strings.HasPrefix(r.URL.Path, "/public/") && r.URL.Query().Get("service") != "git-receive-pack" &&
		!strings.HasSuffix(r.URL.Path, "git-receive-pack")
	if !read && !g.good(password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	h := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + g.root,
		"GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=" + user}, Stderr: &bytes.Buffer{}}
	h.ServeHTTP(w, r)
}

func (g *gitServer) serveAPI(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	_, _ = body.ReadFrom(r.Body)
	path := strings.TrimPrefix(r.URL.Path, "/api/v3")
	g.mu.Lock()
	g.calls = append(g.calls, r.Method+" "+path+" "+body.String())
	issue := g.issue
	g.mu.Unlock()
	var answer any
	status := http.StatusOK
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case strings.Count(token, ".") == 2 && strings.HasSuffix(path, "/installation"):
		answer = map[string]int{"id": 7}
	case strings.Count(token, ".") == 2 && path == "/app/installations/7/access_tokens" && issue != nil:
		answer, status = issue()
	case !g.good(token):
		answer, status = map[string]string{"message": "Bad credentials"}, http.StatusUnauthorized
	case r.Method == http.MethodDelete && path == "/installation/token":
		g.setTokens()
		status = http.StatusNoContent
	case r.Method == http.MethodGet && path == "/repos/owner/project":
		answer = map[string]string{"default_branch": "main"}
	case strings.HasSuffix(path, "/pulls") || strings.HasSuffix(path, "/pulls/12"):
		answer, status = g.servePull(r.Method, body.Bytes())
	default:
		answer, status = map[string]string{"message": "Not Found"}, http.StatusNotFound
	}
	w.WriteHeader(status)
	if answer != nil {
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// servePull answers requests for the repository's only pull request.
func (g *gitServer) servePull(method string, body []byte) (answer any, status int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case method == http.MethodGet && g.pull == nil:
		return []any{}, http.StatusOK
	case method == http.MethodGet:
		return []any{maps.Clone(g.pull)}, http.StatusOK
	case method == http.MethodPost && g.pull == nil:
		g.pull, status = map[string]any{"number": 12, "html_url": "http://" + g.addr + "/pull/12"}, http.StatusCreated
	case method == http.MethodPatch && g.pull != nil:
		status = http.StatusOK
	default:
		return map[string]string{"message": "Validation Failed"}, http.StatusUnprocessableEntity
	}
	if err := json.Unmarshal(body, &g.pull); err != nil {
		return map[string]string{"message": err.Error()}, http.StatusBadRequest
	}
	return maps.Clone(g.pull), status
}

// setPull changes the pull request as a person does on GitHub, and returns its title and its body.
func (g *gitServer) setPull(change map[string]any) (title, body string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.Copy(g.pull, change)
	return g.pull["title"].(string), g.pull["body"].(string)
}

// called returns the API's calls with this prefix.
func (g *gitServer) called(prefix string) (found []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.calls {
		if strings.HasPrefix(c, prefix) {
			found = append(found, c)
		}
	}
	return found
}

func (g *gitServer) url(name string) string { return "http://" + g.addr + "/" + name + ".git" }

func (g *gitServer) dir(name string) string { return filepath.Join(g.root, name+".git") }

// git runs git as a person does.
func (g *gitServer) git(dir string, args ...string) string {
	g.t.Helper()
	cmd := exec.CommandContext(g.t.Context(), "git",
		append([]string{"-C", dir, "-c", "user.name=T", "-c", "user.email=t@example.org", "-c",
			"protocol.file.allow=always"}, args...)...)
	cmd.Env = append(testenv.CleanEnv(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// add makes a repository, and a clone of it that a person works in, with files.
func (g *gitServer) add(name string, files map[string]string) (clone string) {
	g.t.Helper()
	if err := os.MkdirAll(g.dir(name), 0o755); err != nil {
		g.t.Fatal(err)
	}
	g.git(g.dir(name), "init", "-q", "--bare", "-b", "main")
	g.git(g.dir(name), "config", "http.receivepack", "true")
	clone = g.t.TempDir()
	g.git(clone, "init", "-q", "-b", "main")
	g.git(clone, "remote", "add", "origin", g.dir(name))
	if files != nil {
		g.push(clone, files, "Begin")
	}
	return clone
}

// fill gives an empty repository two commits of main, the first with so many files of a MiB that cannot be compressed.
func (g *gitServer) fill(name string, files int) {
	g.t.Helper()
	cmd := exec.CommandContext(g.t.Context(), "git", "-C", g.dir(name), "-c", "core.compression=0", "-c",
		"fastimport.unpackLimit=1", "fast-import", "--quiet")
	cmd.Env = append(testenv.CleanEnv(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	in, err := cmd.StdinPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	const who = "committer T <t@example.org> 1700000000 +0000\n"
	_, err = io.WriteString(in, "commit refs/heads/main\n"+who+"data 5\nBegin\n")
	random := rand.NewChaCha8([32]byte{})
	for n := range files {
		if err == nil {
			_, err = fmt.Fprintf(in, "M 100644 inline blobs/%d\ndata %d\n", n, 1<<20)
		}
		if err == nil {
			_, err = io.CopyN(in, random, 1<<20)
		}
	}
	if err == nil {
		_, err = io.WriteString(in,
			"\ncommit refs/heads/main\n"+who+"data 4\nMore\nM 100644 inline more\ndata 2\nx\n\n")
	}
	if err := errors.Join(err, in.Close(), cmd.Wait()); err != nil {
		g.t.Fatalf("git fast-import: %v\n%s", err, out.String())
	}
}

// push commits files and pushes them to main.
func (g *gitServer) push(clone string, files map[string]string, message string, flags ...string) {
	g.t.Helper()
	for name, text := range files {
		file := filepath.Join(clone, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			g.t.Fatal(err)
		}
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			if err := os.Symlink(target, file); err != nil {
				g.t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			g.t.Fatal(err)
		}
	}
	g.git(clone, "add", "-A")
	g.git(clone, append([]string{"commit", "-q", "-m", message}, flags...)...)
	g.git(clone, "push", "-q", "--force", "origin", "HEAD:main")
}

// reach is a sandbox that may connect to the server.
func (g *gitServer) reach() spec.Request {
	return spec.Request{Network: spec.Network{Mode: "allow", Allow: []string{g.addr}}}
}

// vault returns secrets.
func vault(t *testing.T, pairs secret.Pairs) *secret.Vault {
	t.Helper()
	v, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "secret.key")})
	if err != nil {
		t.Fatal(err)
	}
	if pairs != nil {
		setSecret(t, v, pairs)
	}
	return v
}

func setSecret(t *testing.T, v *secret.Vault, pairs secret.Pairs) {
	t.Helper()
	if _, err := v.Set(t.Context(), account, "git", pairs, secret.Replace); err != nil {
		t.Fatal(err)
	}
}

// outcome waits until a session is ready or has failed, and returns why it has.
func (w *watcher) outcome(t *testing.T) string {
	t.Helper()
	for {
		e := w.next(t, "that the session is ready or has ended")
		if e.typ == records.EventStatus && e.data.Status == records.Ready {
			return ""
		}
		if e.typ == records.EventEnded {
			return e.data.Reason
		}
	}
}

// sh runs a script in a session's sandbox.
func (h *house) sh(t *testing.T, id, script string) string {
	t.Helper()
	x, err := h.fleet.Exec(t.Context(), account, mustGet(t, h, id).SandboxID,
		fleet.ExecRequest{Args: []string{"/bin/sh", "-ec", script}, Workdir: mustGet(t, h, id).Dir})
	if err != nil {
		t.Fatal(err)
	}
	result, err := x.Wait(t.Context())
	if err != nil || result.ReturnCode != 0 {
		t.Fatalf("%s: %+v, %v", script, result, err)
	}
	return strings.TrimSpace(result.Stdout)
}

func wantEqual(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}
