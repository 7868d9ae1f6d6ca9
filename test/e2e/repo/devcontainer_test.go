package repo

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// devContainer is a repository that describes its environment: an image by a Dockerfile with arguments and a target,
// two features, of which one is installed after the other, and commands in all forms.
func devContainer() map[string]string {
	return map[string]string{
		".devcontainer/devcontainer.json": `// comments are allowed
{
	"name": "sample",
	"build": {"dockerfile": "../tools/sample.docker", "context": "..", "args": {"WORD": "built"}, "target": "dev"},
	"features": {
		"./features/second": {"greeting": "good day"},
		"./features/first": {},
	},
	"containerEnv": {"FROM_CONTAINER": "one"},
	"remoteEnv": {"FROM_REMOTE": "two", "PATH": "${containerEnv:PATH}:/opt/extra"},
	"remoteUser": "dev",
	"secrets": {"SAMPLE_TOKEN": {"description": "A token"}},
	"workspaceFolder": "/code",
	"forwardPorts": [3000, 9229],
	"portsAttributes": {"3000": {"label": "Web"}, "9229": {"onAutoForward": "ignore"}},
	"mounts": ["type=volume,source=sample-cache,target=/cache", "type=bind,source=/etc,target=/host"],
	"onCreateCommand": "id -un >created && pwd >>created",
	"updateContentCommand": ["cp", "NOTES.md", "updated"],
	"postCreateCommand": {"one": "sleep 0.2; echo one >>posted", "two": ["sh", "-c", "echo two >>posted"]},
	"postStartCommand": "echo $FROM_CONTAINER $FROM_REMOTE ${localEnv:UNKNOWN:nothing} >>started; echo $PATH >path",
	"runArgs": ["--cap-add=SYS_PTRACE"],
}`,
		"tools/sample.docker": `FROM base AS dev
ARG WORD
COPY README.md /etc/readme
RUN useradd -m -s /bin/bash dev && echo $WORD >/etc/word
FROM dev AS unused
RUN false
`,
		".devcontainer/features/first/devcontainer-feature.json": `{"id": "first", "version": "1.0.0", "name": "First",
	"containerEnv": {"FIRST": "/opt/first"}, "onCreateCommand": "echo feature >>from-feature"}`,
		".devcontainer/features/first/install.sh": "#!/bin/sh\necho first $_REMOTE_USER >>/etc/features\n",
		".devcontainer/features/second/devcontainer-feature.json": `{"id": "second", "version": "1.0.0",
	"installsAfter": ["./features/first"], "dependsOn": {"./features/first": {}},
	"entrypoint": "echo entrypoint $(id -u) >/entered",
	"options": {"greeting": {"type": "string", "default": "hello"}}}`,
		".devcontainer/features/second/install.sh": "#!/bin/sh\necho second $GREETING $FIRST >>/etc/features\n",
		"README.md": "read me\n", "NOTES.md": "one\n",
	}
}

// removeCache removes the volume of the dev container.
func removeCache(h *host.Host) {
	h.T.Helper()
	found := 0
	for _, name := range strings.Fields(h.Must("volume", "ls", "-o", "name")) {
		if strings.HasPrefix(name, "dev-") && strings.HasSuffix(name, "-sample-cache") {
			h.Must("volume", "rm", name)
			found++
		}
	}
	if found != 1 {
		h.T.Errorf("the dev container has %d volumes", found)
	}
}

// TestDevContainer builds the image of a repository from its devcontainer.json, and starts sessions in it.
//
// mission: B4
func TestDevContainer(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.NewAgent(t)
	g := host.NewGit(t, "")
	g.Commit("sample", devContainer())
	said, code := g.Add(h, "sample")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, said)
	}
	for _, want := range []string{"found .devcontainer/devcontainer.json", "runArgs is ignored",
		"recommends the secret SAMPLE_TOKEN (A token): store it",
		"== updateContentCommand"} {
		if !strings.Contains(said, want) {
			t.Errorf("the log lacks %q: %s", want, said)
		}
	}
	if r := repository(t, h, "sample"); r.DevContainer != ".devcontainer/devcontainer.json" {
		t.Errorf("the repository: %+v", r)
	}
	inside := func(command string) string {
		t.Helper()
		return h.Must("run", "--image", "repo/sample", "-w", "/workspace/sample", "--", "sh", "-c", command)
	}
	for command, want := range map[string]string{
		"cat /etc/word /etc/readme":          "built\nread me",
		"cat /etc/features":                  "first dev\nsecond good day /opt/first",
		"cat created":                        "dev\n/workspace/sample",
		"cat updated":                        "one",
		"cat from-feature":                   "feature",
		"id -un; readlink /code; ls posted":  "dev\n/workspace/sample",
		"echo $FROM_CONTAINER $FROM_REMOTE":  "one",
		"git status --short | wc -l | xargs": "3",
	} {
		if got := inside(command + " 2>/dev/null || :"); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}

	// A session runs the commands of its own, in its first sandbox and in a later one.
	args := append([]string{"agent", "--agent", "scripted", "--repo", g.URL("sample"), "-o", "text"}, g.Network()...)
	_, said, code = h.Run(append(args, "say hello")...)
	if code != 0 || !strings.Contains(said, "recommends the secret SAMPLE_TOKEN (A token)") {
		t.Errorf("a session: %d, %s", code, said)
	}
	in := func(command string) string {
		t.Helper()
		return h.Must("sandbox", "exec", h.Box(), "--", "sh", "-c", "cd /code; "+command)
	}
	for command, want := range map[string]string{
		"sort posted": "one\ntwo", "cat started": "one two nothing", "grep -c :/opt/extra$ path": "1",
		"id -un; echo $FROM_REMOTE": "dev\ntwo", "cat /entered": "entrypoint 0", "grep -c ' /cache ' /proc/mounts": "1",
	} {
		if got := in(command); got != want {
			t.Errorf("in the session, %s: %q, want %q", command, got, want)
		}
	}
	if got := h.Sandbox(h.Box()).Ports; len(got) != 1 || got[0] != 3000 {
		t.Errorf("the ports of the session: %v", got)
	}
	if got := h.Must("sandbox", "get", h.Box()); !strings.Contains(got, "3000 (Web)") {
		t.Errorf("the session's sandbox: %s", got)
	}

	// In a later sandbox of the session only what belongs to each start runs again.
	h.Must("sandbox", "rm", h.Box())
	h.Must("send", h.Session(), "say hello again")
	if got := in("sort posted; cat started"); got != "one\ntwo\none two nothing\none two nothing" {
		t.Errorf("after the session woke: %q", got)
	}
	h.Must("end", h.Session(), "--discard")
	removeCache(h)

	// A commit that changes other files leads to a shorter build.
	refreshed := func(file, text, mode string) {
		t.Helper()
		g.Commit("sample", map[string]string{file: text})
		h.Must("repo", "refresh", "sample")
		if b := newest(t, h, "sample"); b.Mode != mode || !b.Success {
			t.Errorf("after a change of %s: %+v", file, b)
		}
	}
	refreshed("NOTES.md", "changed\n", "incremental")
	if got := inside("cat updated /etc/readme; wc -l <created"); got != "changed\nread me\n2" {
		t.Errorf("the shorter build has %q", got)
	}
	// A file that the Dockerfile copies, or the Dockerfile itself, leads to a whole one.
	refreshed("README.md", "changed, too\n", "whole")
	refreshed("tools/sample.docker", devContainer()["tools/sample.docker"]+"# more\n", "whole")
	if got := inside("cat /etc/readme"); got != "changed, too" {
		t.Errorf("the whole build has %q", got)
	}
	// Another description leads to a whole one. Its commands fail with what they said.
	g.Commit("sample", map[string]string{".devcontainer/devcontainer.json": `{"image": "base",
	"onCreateCommand": {"good": "true", "bad": "echo this is why >&2; exit 3"}}`})
	_, said, code = h.Run("repo", "refresh", "sample")
	if code == 0 || !strings.Contains(said, "onCreateCommand bad of .devcontainer/devcontainer.json failed with exit "+
		"code 3: this is why") {
		t.Errorf("a command that fails: %d, %s", code, said)
	}
	// harvest.json ignores the description.
	g.Commit("sample", map[string]string{"harvest.json": `{"devcontainer": ""}`})
	h.Must("repo", "refresh", "sample")
	if r := repository(t, h, "sample"); r.DevContainer != "" || r.Status != "ready" {
		t.Errorf("without the description: %+v", r)
	}
}
