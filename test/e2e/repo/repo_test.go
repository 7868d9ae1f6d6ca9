package repo

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

func repository(t *testing.T, h *host.Host, name string) (r api.Repo) {
	t.Helper()
	if err := json.Unmarshal([]byte(h.Must("repo", "get", name)), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// newest returns the newest build of a repository.
func newest(t *testing.T, h *host.Host, name string) api.RepoBuilt {
	t.Helper()
	var all []api.RepoBuilt
	if err := json.Unmarshal([]byte(h.Must("repo", "history", name, "-o", "json")), &all); err != nil || len(all) == 0 {
		t.Fatalf("%v, %d builds", err, len(all))
	}
	return all[0]
}

// golang installs Go into the image, without the parts that no build needs.
const golang = `printf 'path-exclude /usr/share/go-*/%s/*\n' test src/cmd >/etc/dpkg/dpkg.cfg.d/go
apt-get update -q && apt-get install -y -q --no-install-recommends golang-go`

// Five sample repositories get images, and refreshes do as much as is necessary.
//
// mission: B4, B5, E3
func TestRepositoryImages(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.NewAgent(t)
	g := host.NewGit(t, "")
	samples := map[string]struct {
		files  map[string]string
		flags  []string
		works  string // a command in the repository
		prints string
	}{
		"npm-sample":  {npmSample(), nil, "cat built.txt", "true"},
		"pnpm-sample": {pnpmSample(), nil, "cat packages/one/built.txt", "true"},
		"yarn-sample": {yarnSample(t), nil, "cat built.txt", "true"},
		"pip-sample":  {pipSample(t), []string{"--root"}, ".venv/bin/python main.py", "42"},
		"go-sample":   {goSample(), []string{"--image", "base", "--setup", golang}, "go run . 2>&1", "42"},
	}
	var adding sync.WaitGroup
	for name, s := range samples {
		s.files["README.md"] = "one\n"
		commit := g.Commit(name, s.files)
		adding.Go(func() {
			said, code := g.Add(h, name, s.flags...)
			if code != 0 {
				t.Errorf("%s: exit code %d\n%s", name, code, said)
				return
			}
			r, b := repository(t, h, name), newest(t, h, name)
			if r.Status != "ready" || r.Commit != commit || r.Image == "" || len(r.Locks) == 0 || !b.Success ||
				b.Mode != "whole" || b.Seconds <= 0 || b.Image != r.Image || b.RecipeDigest == "" {
				t.Errorf("%s: %+v\n%+v", name, r, b)
			}
			if out := h.Must("run", "--network", "none", "--image", "repo/"+name, "-w", "/workspace/"+name, "--", "sh",
				"-c", s.works); out != s.prints {
				t.Errorf("%s: %s prints %q", name, s.works, out)
			}
			if out := h.Must("run", "--image", r.Image, "-w", r.Dir, "--", "sh", "-c",
				"git status --porcelain; id -un >/tmp/me; stat -c %U . | cmp - /tmp/me"); out != "" {
				t.Errorf("%s is not as it was committed, or belongs to somebody else:\n%s", name, out)
			}
		})
	}
	adding.Wait()
	if t.Failed() {
		return
	}
	if b := newest(t, h, "npm-sample"); !strings.HasPrefix(b.Node, "22.") ||
		repository(t, h, "npm-sample").Projects[0].NodeFrom != ".nvmrc" {
		t.Errorf("Node.js %q", b.Node)
	}
	if out := h.Must("schedule", "ls"); strings.Count(out, "refresh-repo") != len(samples) {
		t.Errorf("the schedules are %s", out)
	}
	if _, said, code := h.Run("repo", "refresh"); code != 0 ||
		strings.Count(said, "unchanged since commit") != len(samples) {
		t.Fatalf("refreshes of what has not changed: %d, %s", code, said)
	}
	testSession(t, h, g)
	testRefreshes(t, h, g)
}

// testSession lets an agent work in a repository that is ahead of its image.
func testSession(t *testing.T, h *host.Host, g *host.Git) {
	commit := g.Commit("npm-sample", map[string]string{"README.md": "two\n"})
	args := append([]string{"agent", "--agent", "scripted", "--repo", g.URL("npm-sample"),
		"/run until grep two README.md; do sleep 0.1; done; cat built.txt; ls node_modules"}, g.Network()...)
	if _, said, code := h.Run(args...); code != 0 {
		t.Errorf("the session: %d, %s", code, said)
	}
	id := strings.Fields(h.Must("sessions", "-o", "name"))[0]
	// The turn may end before the event arrives.
	if synced := h.Event(id, 0, "repo.synced").Data.Synced; synced == nil || synced.Error != "" || synced.Behind != 1 {
		t.Errorf("the session has caught up: %+v", synced)
	}
	server := client.New(h.Data)
	defer server.Close()
	s, err := server.Session(t.Context(), id)
	if err != nil || s.Base != commit {
		t.Errorf("the work begins on %s, not on %s: %v", s.Base, commit, err)
	}
	if out := h.Must("diff", id); out != "" {
		t.Errorf("what others have done counts as the agent's: %s", out)
	}
	h.Must("end", "--discard", id)
	box, err := server.Sandbox(t.Context(), s.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	h.Must("image", "rm", box.SnapshotID)
}

// testRefreshes refreshes after commits that need less and more.
func testRefreshes(t *testing.T, h *host.Host, g *host.Git) {
	old := repository(t, h, "npm-sample")
	if old.Behind != 1 {
		t.Errorf("after a session that found the image behind: %+v", old)
	}
	box := h.Must("sandbox", "create", "--image", "repo/npm-sample", "--network", "none")
	h.Must("repo", "refresh", "npm-sample")
	if b := newest(t, h, "npm-sample"); b.Mode != "incremental" || b.From != old.Image || !b.Success {
		t.Errorf("after a commit: %+v", b)
	}
	if now := repository(t, h, "npm-sample"); now.Behind != 0 {
		t.Errorf("after a refresh: %+v", now)
	}
	if out := h.Must("sandbox", "exec", box, "--", "cat", old.Dir+"/README.md"); out != "one" {
		t.Errorf("a sandbox on the old image has %q", out)
	}
	h.Must("image", "inspect", old.Image)
	h.Must("sandbox", "rm", box)

	files := npmSample()
	for name, text := range files {
		files[name] = strings.ReplaceAll(strings.ReplaceAll(text, "7.0.0", "6.0.0"),
			`, "integrity": "`+isNumber+`"`, "")
	}
	commit := g.Commit("npm-sample", files)
	h.Must("repo", "refresh", "npm-sample")
	b, r := newest(t, h, "npm-sample"), repository(t, h, "npm-sample")
	if b.Mode != "whole" || r.Commit != commit || r.Locks["package-lock.json"] == old.Locks["package-lock.json"] {
		t.Errorf("after a change of the lock file: %+v\n%+v", b, r)
	}
	if out := h.Must("run", "--network", "none", "--image", r.Image, "-w", r.Dir, "--", "cat",
		"node_modules/is-number/package.json"); !strings.Contains(out, `"6.0.0"`) {
		t.Errorf("what is installed is %s", out)
	}
	if _, _, code := h.Run("image", "inspect", old.Image); code != 4 {
		t.Errorf("the old image is still there: %d", code)
	}
}

// mission: B4, B5
func TestRepositoryFaults(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	g := host.NewGit(t, "")

	g.Commit("fault", map[string]string{"harvest.json": `{"install": "echo ready >ready", "build": "cat ready"}`,
		"README.md": "one\n"})
	if said, code := g.Add(h, "fault", "--image", "base"); code != 0 ||
		!strings.Contains(said, "== build: cat ready\nready\n") {
		t.Fatalf("exit code %d: %s", code, said)
	}
	good := repository(t, h, "fault")
	// fails causes a failure, after which the last good image stays.
	fails := func(what, stage string, texts ...string) {
		t.Helper()
		_, said, code := h.Run("repo", "refresh", "fault")
		r := repository(t, h, "fault")
		if code == 0 || r.Status != "failed" || r.Image != good.Image || !strings.HasPrefix(r.Reason, stage+": ") {
			t.Errorf("%s: exit code %d, %+v\n%s", what, code, r, said)
		}
		b := newest(t, h, "fault")
		if b.Success || b.Stage != stage || b.Error == "" {
			t.Errorf("%s: %+v", what, b)
		}
		for _, text := range texts {
			if !strings.Contains(said, text) {
				t.Errorf("%s: no %q in %s", what, text, said)
			}
		}
		h.Must("run", "--network", "none", "--image", "repo/fault", "-w", good.Dir, "--", "cat", "ready")
	}
	g.Commit("fault", map[string]string{"harvest.json": `{"install": "echo wrong turn; exit 3"}`})
	fails("a command that fails", "install", "wrong turn", "ended with exit code 3")
	if b := newest(t, h, "fault"); b.Output != "wrong turn" {
		t.Errorf("the last output is %q", b.Output)
	}
	g.Commit("fault", map[string]string{"harvest.json": `{"install": "nosuchprogram --all"}`})
	fails("a program that there is not", "install", "--setup")
	g.Commit("fault", map[string]string{"harvest.json": `{"install": 7}`})
	fails("settings that cannot be read", "detect", "harvest.json")
	g.Commit("fault", map[string]string{"harvest.json": "", "requirements.txt": "--no-index\nnothere==9\n"})
	fails("a lock file that is broken", "install", "No matching distribution")
	g.Away.Store(true)
	fails("a server that is away", "look", "503")
	g.Away.Store(false)
	if err := os.Rename(filepath.Join(g.Dir, "fault.git"), filepath.Join(g.Dir, "gone.git")); err != nil {
		t.Fatal(err)
	}
	fails("a repository that is gone", "look", "the repository is not there")
	if err := os.Rename(filepath.Join(g.Dir, "gone.git"), filepath.Join(g.Dir, "fault.git")); err != nil {
		t.Fatal(err)
	}
	g.Commit("fault", map[string]string{"requirements.txt": "",
		"harvest.json": `{"install": "echo again >ready", "test": "echo no; exit 4"}`})
	h.Must("repo", "refresh", "fault")
	if b, r := newest(t, h, "fault"), repository(t, h, "fault"); r.Status != "ready" || r.Image == good.Image ||
		b.Steps[len(b.Steps)-4].Code != 4 {
		t.Errorf("a repository that is well again, save for its test: %+v\n%+v", r, b)
	}
	if out := h.Must("repo", "log", "fault"); !strings.Contains(out, "== test: echo no") ||
		!strings.Contains(out, "exit code 4") {
		t.Errorf("the log: %s", out)
	}

	job := ""
	for name := range strings.FieldsSeq(h.Must("schedule", "ls", "-o", "name")) {
		if strings.HasPrefix(name, "repo-fault-") {
			job = name
		}
	}
	if out := h.Must("schedule", "run", job); !strings.Contains(out, `"mode":"unchanged"`) {
		t.Errorf("the schedule: %s", out)
	}

	if out := h.Must("repo", "ls"); !strings.Contains(out, "fault  ready") ||
		!strings.Contains(h.Must("repo", "get", good.ID[:len(good.ID)-1]), good.ID) {
		t.Errorf("the list: %s", out)
	}

	g.Commit("slow", map[string]string{"README.md": "one\n"})
	said, code := g.Add(h, "slow", "--image", "base", "--limit", "60s", "--install", "sleep 1000")
	if b := newest(t, h, "slow"); code == 0 || b.Stage != "install" ||
		!strings.Contains(b.Error, "time limit of 1m0s") {
		t.Errorf("a build that takes too long: %d, %+v, %s", code, b, said)
	}
	g.Commit("large", map[string]string{"README.md": "one\n"})
	said, code = g.Add(h, "large", "--image", "base", "--disk", "128MiB", "--install", "head -c 400M /dev/zero >zeros")
	if b := newest(t, h, "large"); code == 0 || b.Stage != "install" || !strings.Contains(b.Error, "disk was full") {
		t.Errorf("a full disk: %d, %+v, %s", code, b, said)
	}
	if out := h.Must("sandbox", "ls", "-o", "name"); out != "" {
		t.Errorf("sandboxes are left: %s", out)
	}
	testBadRepositories(t, h, g)
}

func testBadRepositories(t *testing.T, h *host.Host, g *host.Git) {
	bare := filepath.Join(g.Dir, "empty.git")
	host.RunGit(t, g.Dir, "init", "--quiet", "--bare", "--initial-branch=main", bare)
	if said, code := g.Add(h, "empty", "--image", "base"); code == 0 ||
		!strings.Contains(said, "the repository is empty") {
		t.Errorf("an empty repository: %d, %s", code, said)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"add", "ext::sh -c id"}, 2, "address"},
		{[]string{"add", "https://user:secret@example.org/a/b"}, 2, "password"},
		{[]string{"add", g.URL("a"), "--branch", "--upload-pack=id"}, 2, "branch"},
		{[]string{"add", g.URL("a"), "--name", "../up"}, 2, "name"},
		{[]string{"add", g.URL("fault"), "--name", "fault"}, 5, "registered already"},
		{[]string{"add", g.URL("a"), "--limit", "9h"}, 2, "limit"},
		{[]string{"add", g.URL("fault"), "--name", "nobranch", "--image", "base", "--branch", "missing"},
			4, "no branch"},
		{[]string{"get", "nobody"}, 4, "there is no repository"},
		{[]string{"log", "nobody"}, 4, "there is no repository"},
		{[]string{"log", "fault", "bld_x"}, 4, "no such build"},
		{[]string{"refresh", "nobody", "fault"}, 4, "there is no repository"},
		{[]string{"build", "nobody"}, 4, "there is no repository"},
		{[]string{"history", "nobody"}, 4, "there is no repository"},
		{[]string{"rm", "nobody"}, 4, "there is no repository"},
	} {
		args := append([]string{"repo"}, c.args...)
		if c.args[0] == "add" {
			args = append(args, g.Network()...)
		}
		if _, said, code := h.Run(args...); code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("%q: exit code %d, %s", c.args, code, said)
		}
	}
	h.Must("repo", "rm", "nobranch")
}

// TestRepositoryBuildsAtOnceAndKilled checks that a build in progress is joined, and that builds in progress when their
// server died are recorded as interrupted.
//
// mission: B5, A9
func TestRepositoryBuildsAtOnceAndKilled(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	g := host.NewGit(t, "")
	g.Commit("killed", map[string]string{"README.md": "one\n"})
	flags := append([]string{"--image", "base", "--install", "echo installing; until [ -e go ]; do sleep 0.1; done"},
		g.Network()...)
	begun := h.Command(t.Context(), append([]string{"repo", "add", g.URL("killed"), "--name", "killed"}, flags...)...)
	said, err := begun.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := begun.Start(); err != nil {
		t.Fatal(err)
	}
	host.Expect(t, said, "installing\n")
	first := newest(t, h, "killed")
	h.Must("repo", "refresh", "-d", "killed")
	h.Must("repo", "build", "-d", "killed")
	if b := newest(t, h, "killed"); b.ID != first.ID || b.Status != "running" ||
		repository(t, h, "killed").Status != "building" {
		t.Errorf("a build that others want, too: %+v", b)
	}
	pid := h.Server().PID
	_ = begun.Process.Kill()
	_ = begun.Wait()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b := newest(t, h, "killed") // of the next server
	if r := repository(t, h, "killed"); b.ID != first.ID || b.Status != "interrupted" || r.Status != "failed" ||
		r.Image != "" {
		t.Errorf("after the server was killed: %+v\n%+v", b, r)
	}
	testenv.Eventually(t, "the sandbox of the build is gone",
		func() bool { return h.Must("sandbox", "ls", "-o", "name") == "" })
	g.Commit("killed", map[string]string{"go": "on\n"})
	h.Must("repo", "refresh", "killed")
	if r := repository(t, h, "killed"); r.Status != "ready" || r.Image == "" {
		t.Errorf("after a refresh: %+v", r)
	}
	img := repository(t, h, "killed").Image
	h.Must("repo", "rm", "killed")
	if _, _, code := h.Run("image", "inspect", img); code != 4 {
		t.Errorf("the image of a repository that was removed: exit code %d", code)
	}
	if out := h.Must("schedule", "ls"); strings.Contains(out, "refresh-repo") {
		t.Errorf("the schedule of a repository that was removed is left: %s", out)
	}
}

// TestRepositoryToken checks that a token gives git access, also to the repository's own commands, which have a
// placeholder, and appears nowhere.
//
// mission: E7, F6
func TestRepositoryToken(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	setup := host.GVisor(t)
	h := host.New(t, "gvisor", setup)
	const token = "canary-9c1f7d7c2b5e4a60"
	g := host.NewGit(t, token)
	g.Commit("private", map[string]string{"README.md": "one\n"})
	if said, code := g.Add(h, "private", "--image", "base"); code == 0 || !strings.Contains(said, "requires a token") ||
		!strings.Contains(said, "--secret") {
		t.Errorf("without a token: %d, %s", code, said)
	}
	h.Must("repo", "rm", "private")
	h.Env.Setenv("GIT_TOKEN", token)
	h.Must("secret", "set", "git", "GIT_TOKEN")
	h.Env.Setenv("GIT_TOKEN", "")
	said, code := g.Add(h, "private", "--image", "base", "--secret", "git", "--install",
		`git config --list --show-origin; git ls-remote -q origin && exit 1
git -c credential.helper='!f() { echo username=x; echo "password=$GIT_TOKEN"; }; f' ls-remote -q origin
printf %s "$GIT_TOKEN" | sha256sum`)
	value := fmt.Sprintf("%x", sha256.Sum256([]byte(token)))
	if code != 0 || !strings.Contains(said, "\tHEAD\n") || !strings.Contains(said, "  -\n") ||
		strings.Contains(said, value) || strings.Contains(said, token) {
		t.Errorf("with a token: %d, %s", code, said)
	}
	g.Commit("private", map[string]string{"README.md": "two\n"})
	h.Must("repo", "refresh", "private")
	layer := filepath.Join(h.Data, "images")
	if real, err := filepath.EvalSymlinks(layer); err == nil {
		layer = real
	}
	for _, where := range append(host.InFiles(t, h.Data, token), host.InFiles(t, layer, token)...) {
		t.Errorf("the token is in %s", where)
	}
}

// TestRepositoryAddReportsRefusal checks that a repository whose host the network policy refuses is reported as
// refused, with the remedy.
// mission: A9, B4
func TestRepositoryAddReportsRefusal(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	for _, c := range []struct {
		address string
		network string
		want    []string
	}{
		{"https://git.nowhere.example/a/b", "allow=example.org",
			[]string{"the network policy of the sandbox refused git.nowhere.example: ",
				"--network allow=git.nowhere.example"}},
		{"http://10.255.1.2/a/b", "default",
			[]string{"the network policy of the sandbox refused 10.255.1.2: ", "--network allow=10.255.1.2"}},
		{"http://intranet/a/b", "default",
			[]string{"the network policy of the sandbox refused intranet: a name without a dot",
				"--network allow=intranet"}},
		{"http://127.0.0.1:9/a/b", "default",
			[]string{"inside a sandbox, 127.0.0.1 is the sandbox itself", "--network allow=127.0.0.1:PORT"}},
	} {
		_, said, code := h.Run("repo", "add", c.address, "--name", "refused", "--image", "base", "--network", c.network)
		for _, want := range c.want {
			if code == 0 || !strings.Contains(said, want) {
				t.Errorf("%s: exit code %d, %q is missing: %s", c.address, code, want, said)
			}
		}
		h.Run("repo", "rm", "refused")
	}
}
