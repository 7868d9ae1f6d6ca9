package main

import (
	"archive/zip"
	"bytes"
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

	"github.com/RelevanceAI/harvest/internal/testenv"
)

// gitHost is a server of git repositories, with git's own program behind it.
type gitHost struct {
	t       *testing.T
	dir     string
	server  *httptest.Server
	away    atomic.Bool // it answers 503
	fetches atomic.Int64
	token   string            // who gives no such password is not let in; "" lets everybody in
	large   map[string]string // contents of large files, by their digests
}

func newGitHost(t *testing.T, token string) *gitHost {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	g := &gitHost{t: t, dir: t.TempDir(), token: token}
	backend := &cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + g.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"},
	}
	g.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		switch {
		case g.away.Load():
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
	t.Cleanup(g.server.Close)
	return g
}

// batch says where large files are (https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md).
func (g *gitHost) batch(w http.ResponseWriter, r *http.Request) {
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
		objects = append(objects, map[string]any{"oid": o.OID, "size": o.Size, "actions": map[string]any{"download": map[string]any{"href": "http://" + r.Host + "/large/" + o.OID}}})
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": objects})
}

// pointer is what git has instead of a large file that the server keeps.
func (g *gitHost) pointer(content string) string {
	oid := fmt.Sprintf("%x", sha256.Sum256([]byte(content)))
	if g.large == nil {
		g.large = map[string]string{}
	}
	g.large[oid] = content
	return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(content))
}

// url is where sandboxes find a repository: this machine's loopback, which their network has to allow.
func (g *gitHost) url(name string) string {
	_, port, _ := strings.Cut(strings.TrimPrefix(g.server.URL, "http://"), ":")
	return "http://10.0.2.2:" + port + "/" + name + ".git"
}

// network are the flags that let a sandbox reach the server.
func (g *gitHost) network() []string {
	return []string{"--network", "default", "--network", "allow=" + strings.TrimPrefix(g.server.URL, "http://")}
}

// commit makes a commit with these files on the repository's branch main, which is made if missing, and returns its id. A file without text goes.
func (g *gitHost) commit(name string, files map[string]string) string {
	g.t.Helper()
	bare, work := filepath.Join(g.dir, name+".git"), filepath.Join(g.dir, name)
	if _, err := os.Stat(bare); err != nil {
		g.git(g.dir, "init", "--quiet", "--bare", "--initial-branch=main", bare)
		g.git(g.dir, "init", "--quiet", "--initial-branch=main", work)
		g.git(work, "remote", "add", "origin", bare)
	}
	for file, text := range files {
		path := filepath.Join(work, file)
		if text == "" {
			if err := os.Remove(path); err != nil {
				g.t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			g.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			g.t.Fatal(err)
		}
	}
	g.git(work, "add", "--all")
	g.git(work, "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "--quiet", "--allow-empty", "-m", "change")
	g.git(work, "push", "--quiet", "origin", "main")
	return g.git(work, "rev-parse", "HEAD")
}

func (g *gitHost) git(dir string, args ...string) string {
	g.t.Helper()
	return runGit(g.t, dir, args...)
}

// runGit runs git in a directory and returns its output.
func runGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// isNumber is the digest of the package that the Node samples need, as the registry has it.
const isNumber = "sha512-41Cifkg6e8TylSpdtTpeLVMqvSBEVzTttHvERD741+pnZ8ANv0004MRL43QKPDlK9cGvNp6NZWZUBlbGXYxxng=="

const builds = `"scripts": {"build": "node -e \"require('fs').writeFileSync('built.txt', String(require('is-number')(5)))\"", "test": "node -e \"process.exit(0)\""}`

// npmSample is a repository of npm.
func npmSample() map[string]string {
	return map[string]string{
		".gitignore": "node_modules\nbuilt.txt\n",
		".nvmrc":     "22\n",
		"package.json": `{"name": "npm-sample", "version": "1.0.0", ` + builds +
			`, "dependencies": {"is-number": "7.0.0"}}`,
		"package-lock.json": `{"name": "npm-sample", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {
			"": {"name": "npm-sample", "version": "1.0.0", "dependencies": {"is-number": "7.0.0"}},
			"node_modules/is-number": {"version": "7.0.0", "integrity": "` + isNumber + `"}}}`,
	}
}

// pnpmSample is a workspace of pnpm.
func pnpmSample() map[string]string {
	return map[string]string{
		".gitignore":                  "node_modules\nbuilt.txt\n",
		"package.json":                `{"name": "pnpm-sample", "private": true}`,
		"pnpm-workspace.yaml":         "packages:\n  - packages/*\n",
		"packages/one/package.json":   `{"name": "one", "version": "1.0.0", ` + builds + `, "dependencies": {"is-number": "7.0.0"}}`,
		"packages/other/package.json": `{"name": "other", "version": "1.0.0", "dependencies": {"one": "workspace:*"}}`,
		"pnpm-lock.yaml": `lockfileVersion: '9.0'

settings:
  autoInstallPeers: true
  excludeLinksFromLockfile: false

importers:

  .: {}

  packages/one:
    dependencies:
      is-number:
        specifier: 7.0.0
        version: 7.0.0

  packages/other:
    dependencies:
      one:
        specifier: workspace:*
        version: link:../one

packages:

  is-number@7.0.0:
    resolution: {integrity: ` + isNumber + `}
    engines: {node: '>=0.12.0'}

snapshots:

  is-number@7.0.0: {}
`,
	}
}

// yarnSample is a repository of Yarn 1, which asks a registry of its own unless it is told the one that npm asks here.
func yarnSample(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		".gitignore":   "node_modules\nbuilt.txt\n",
		".yarnrc":      "registry \"" + testenv.NPMRegistry(t) + "\"\n",
		"package.json": `{"name": "yarn-sample", "version": "1.0.0", ` + builds + `, "dependencies": {"is-number": "7.0.0"}}`,
		"yarn.lock":    "# yarn lockfile v1\n\n\nis-number@7.0.0:\n  version \"7.0.0\"\n  integrity " + isNumber + "\n",
	}
}

// pipSample is a repository of pip with a wheel of its own, since an index may be out of reach.
func pipSample(t *testing.T) map[string]string {
	t.Helper()
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for _, f := range []struct{ name, text string }{
		{"tiny.py", "answer = 42\n"},
		{"tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"},
		{"tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n"},
	} {
		w, err := z.Create(f.name)
		if err == nil {
			_, err = w.Write([]byte(f.text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"requirements.txt":                 "--no-index\n--find-links ./wheels\ntiny==1.0\n",
		"wheels/tiny-1.0-py3-none-any.whl": wheel.String(),
		"main.py":                          "import tiny\nprint(tiny.answer)\n",
	}
}

// goSample is a module of Go.
func goSample() map[string]string {
	return map[string]string{
		"go.mod":       "module example.org/sample\n\ngo 1.19\n",
		"main.go":      "package main\n\nfunc main() { println(answer()) }\n\nfunc answer() int { return 42 }\n",
		"main_test.go": "package main\n\nimport \"testing\"\n\nfunc TestAnswer(t *testing.T) {\n\tif answer() != 42 {\n\t\tt.Fatal(\"wrong\")\n\t}\n}\n",
	}
}
