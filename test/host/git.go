package host

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// Git is a server of git repositories, with git's own program behind it.
type Git struct {
	T       *testing.T
	Dir     string
	Server  *httptest.Server
	Away    atomic.Bool // it answers 503
	fetches atomic.Int64
	token   string            // the password of requests; "" asks for none
	large   map[string]string // contents of large files, by their digests
}

// NewGit starts a server of git repositories. token is the password that it asks for; "" asks for none.
func NewGit(t *testing.T, token string) *Git {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	g := &Git{T: t, Dir: t.TempDir(), token: token}
	backend := &cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + g.Dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_CONFIG_GLOBAL=/dev/null"},
	}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		switch {
		case g.Away.Load():
			http.Error(w, "away", http.StatusServiceUnavailable)
		case password != g.token:
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
		case strings.HasSuffix(r.URL.Path, "/info/lfs/objects/batch"):
			g.batch(w, r)
		case strings.HasPrefix(r.URL.Path, "/large/"):
			_, _ = io.WriteString(w, g.large[strings.TrimPrefix(r.URL.Path, "/large/")])
		default:
			if strings.HasSuffix(r.URL.Path, "git-upload-pack") {
				g.fetches.Add(1)
			}
			backend.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(g.Server.Close)
	return g
}

// batch says where large files are (https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md).
func (g *Git) batch(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Objects []struct {
			OID  string `json:"oid"`
			Size int64  `json:"size"`
		} `json:"objects"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	objects := []any{}
	for _, o := range asked.Objects {
		objects = append(objects, map[string]any{"oid": o.OID, "size": o.Size,
			"actions": map[string]any{"download": map[string]any{"href": "http://" + r.Host + "/large/" + o.OID}}})
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": objects})
}

// Pointer is what git has instead of a large file that the server keeps.
func (g *Git) Pointer(content string) string {
	oid := fmt.Sprintf("%x", sha256.Sum256([]byte(content)))
	if g.large == nil {
		g.large = map[string]string{}
	}
	g.large[oid] = content
	return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(content))
}

// URL is where sandboxes find a repository: this machine's loopback, which their network has to allow.
func (g *Git) URL(name string) string {
	_, port, _ := strings.Cut(strings.TrimPrefix(g.Server.URL, "http://"), ":")
	return "http://10.0.2.2:" + port + "/" + name + ".git"
}

// Network are the flags that let a sandbox reach the server.
func (g *Git) Network() []string {
	return []string{"--network", "default", "--network", "allow=" + strings.TrimPrefix(g.Server.URL, "http://")}
}

// Commit makes a commit with these files on the branch main of a repository, and returns its id. It makes the
// repository if there is none. A file without text is removed.
func (g *Git) Commit(name string, files map[string]string) string {
	g.T.Helper()
	bare, work := filepath.Join(g.Dir, name+".git"), filepath.Join(g.Dir, name)
	if _, err := os.Stat(bare); err != nil {
		RunGit(g.T, g.Dir, "init", "--quiet", "--bare", "--initial-branch=main", bare)
		RunGit(g.T, g.Dir, "init", "--quiet", "--initial-branch=main", work)
		RunGit(g.T, work, "remote", "add", "origin", bare)
	}
	for file, text := range files {
		path := filepath.Join(work, file)
		if text == "" {
			if err := os.Remove(path); err != nil {
				g.T.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			g.T.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			g.T.Fatal(err)
		}
	}
	RunGit(g.T, work, "add", "--all")
	RunGit(g.T, work, "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "--quiet", "--allow-empty",
		"-m", "change")
	RunGit(g.T, work, "push", "--quiet", "origin", "main")
	return RunGit(g.T, work, "rev-parse", "HEAD")
}

// RunGit runs git in a directory and returns its output.
func RunGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Add registers a repository at the host, until the test ends, and returns the output of its build and the exit code.
func (g *Git) Add(h *Host, name string, flags ...string) (said string, code int) {
	g.T.Helper()
	g.T.Cleanup(func() {
		if out, err := h.Command(context.WithoutCancel(g.T.Context()), "repo", "rm",
			name).CombinedOutput(); err != nil && !strings.Contains(string(out), "there is no repository") {
			g.T.Errorf("remove %s: %v, %s", name, err, out)
		}
	})
	args := append([]string{"repo", "add", g.URL(name), "--name", name}, g.Network()...)
	_, said, code = h.Run(append(args, flags...)...)
	return said, code
}
