package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/testenv"
	"github.com/RelevanceAI/harvest/model/modeltest"
)

// modelKey is the key that the stub of the model lets in. It must be nowhere but in the server.
const modelKey = "sk-ant-CANARY-7d1f0a52c4"

// The real programs of agents, without the rest of the agent image, which takes much longer to build: what they do is the same.
const cliDockerfile = `FROM base
RUN useradd --create-home --uid 1000 agent && mkdir /workspace && chown agent:agent /workspace
COPY --chmod=755 claude opencode /usr/local/bin/
ENV HOME=/home/agent
USER agent
WORKDIR /workspace
`

// programs are the npm packages that have them, by their names, and the file in each.
var programs = map[string][2]string{
	"claude":   {"@anthropic-ai/claude-code-linux-x64", "claude"},
	"opencode": {"opencode-linux-x64-baseline", "bin/opencode"},
}

// cliImages returns a directory of this machine for the image "cli" in the pinned versions of the programs, with what it is built of; processes that
// do this at the same time wait for one another.
func cliImages(registry func() string) (string, error) {
	text, err := os.ReadFile("../../image/agent/files/package.json")
	var pinned struct{ Dependencies map[string]string }
	if err = errors.Join(err, json.Unmarshal(text, &pinned)); err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	name := "cli"
	for _, p := range []string{"claude", "opencode"} {
		name += "-" + pinned.Dependencies[programs[p][0]]
	}
	dir := filepath.Join(cache, "harvest-test", name)
	if err := os.MkdirAll(filepath.Join(dir, "context"), 0o700); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	for p, pkg := range programs {
		to := filepath.Join(dir, "context", p)
		if _, err := os.Stat(to); err == nil {
			continue
		}
		temp := filepath.Join(dir, "npm")
		cmd := exec.Command("npm", "install", "--registry", registry(), "--prefix", temp, "--ignore-scripts", "--no-audit", "--no-fund", "--force", pkg[0]+"@"+pinned.Dependencies[pkg[0]])
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", errors.Errorf("npm install: %v: %s", err, out)
		}
		if err := errors.Join(os.Rename(filepath.Join(temp, "node_modules", pkg[0], pkg[1]), to), os.RemoveAll(temp)); err != nil {
			return "", err
		}
	}
	return dir, os.WriteFile(filepath.Join(dir, "context", "Dockerfile"), []byte(cliDockerfile), 0o600)
}

// newCLIHost returns a host with the image "cli", whose models are the stub's: the address and the key are in the environment of its
// server, as on a personal machine.
func newCLIHost(t *testing.T, stub *modeltest.Stub) *host {
	t.Helper()
	setup := gvisorSetup(t)
	testenv.Root(t)
	testenv.RequireTool(t, "npm", "npm")                                     // from which the real agents come
	cache, err := cliImages(func() string { return testenv.NPMRegistry(t) }) // once on this machine
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(cache, "images")
	buildCLIImage(t, cache, library, setup)
	base := imagetest.Library(t)
	h := newHost(t, "gvisor", func(env *testscript.Env) error {
		if err := setup(env); err != nil {
			return err
		}
		// Of its own: sessions add images to it when they end.
		images := filepath.Join(env.Getenv("HARVEST_DATA"), "images")
		return errors.Join(os.Remove(images), os.MkdirAll(images, 0o700))
	})
	images := filepath.Join(h.data, "images")
	shareImage(t, filepath.Dir(base.Root(imagetest.Base(t, base))), images, "base")
	cli, err := os.Readlink(filepath.Join(library, ".names", "cli"))
	if err != nil {
		t.Fatal(err)
	}
	shareImage(t, filepath.Join(library, filepath.Base(cli)), images, "cli")
	h.env.Setenv("HARVEST_AGENTS_IMAGE", "cli")
	if stub != nil {
		h.env.Setenv("ANTHROPIC_BASE_URL", stub.URL)
		h.env.Setenv("ANTHROPIC_API_KEY", modelKey)
	}
	return h
}

var cliImageOnce sync.Mutex

// buildCLIImage builds the image "cli" in library, if it is not there.
func buildCLIImage(t *testing.T, cache, library string, setup func(env *testscript.Env) error) {
	t.Helper()
	cliImageOnce.Lock()
	defer cliImageOnce.Unlock()
	name := filepath.Join(library, ".names", "cli")
	if _, err := os.Lstat(name); err == nil {
		return
	}
	base := imagetest.Library(t)
	shareImage(t, filepath.Dir(base.Root(imagetest.Base(t, base))), library, "base")
	h := newHost(t, "gvisor", func(env *testscript.Env) error {
		err := setup(env)
		images := filepath.Join(env.Getenv("HARVEST_DATA"), "images")
		return errors.Join(err, os.Remove(images), os.Symlink(library, images))
	})
	begun := time.Now()
	h.must("image", "build", filepath.Join(cache, "context"), "-t", "cli")
	t.Logf("the image with the programs of agents was built in %s", time.Since(begun).Round(time.Second))
}

// project makes a repository with one commit in the host's data directory, and returns its directory.
func (h *host) project() string {
	h.t.Helper()
	dir := filepath.Join(h.t.TempDir(), "project")
	err := os.MkdirAll(dir, 0o755)
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "README.md"), []byte("# A project\n"), 0o644)); err != nil {
		h.t.Fatal(err)
	}
	runGit(h.t, dir, "init", "-q", "-b", "main")
	runGit(h.t, dir, "add", "-A")
	runGit(h.t, dir, "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "-q", "-m", "one")
	return dir
}

// in runs a command line in a directory.
func (h *host) in(dir string, args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	var out, err strings.Builder
	cmd := h.command(h.t.Context(), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &err
	_ = cmd.Run()
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}
