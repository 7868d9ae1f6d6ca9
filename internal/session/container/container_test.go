package container_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/container"
	"github.com/RelevanceAI/harvest/internal/session/shell"
	"github.com/RelevanceAI/harvest/test/stubs/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// described returns an image of a dev container with this description.
func described(t *testing.T, description, dir string) image.Image {
	t.Helper()
	c, err := devcontainer.Parse("devcontainer.json", []byte(description))
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := devcontainer.Metadata(nil).With(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	at, err := json.Marshal(map[string]string{"config": "devcontainer.json", "dir": dir, "folder": dir})
	if err != nil {
		t.Fatal(err)
	}
	return image.Image{ID: "img_1", Config: image.Config{Env: map[string]string{"HOME": "/root"},
		Labels: map[string]string{container.Label: string(at), devcontainer.Label: metadata.String()}}}
}

// TestAdapt turns the properties of a description into a request for a sandbox.
func TestAdapt(t *testing.T) {
	t.Parallel()
	img := described(t, `{"image": "x", "containerEnv": {"A": "a", "HOME2": "${containerEnv:HOME}"},
		"remoteEnv": {"PATH": "${containerEnv:PATH}:/more", "TOKEN": "${localEnv:TOKEN:none}", "B": "b"},
		"forwardPorts": [3000, "db:5432", 8080, 9229],
		"portsAttributes": {"3000": {"label": "Web", "protocol": "https"}, "9229": {"onAutoForward": "ignore"},
			"8080": {"label": "`+strings.Repeat("ä", 200)+`\nx"}},
		"hostRequirements": {"cpus": 2, "memory": "1gb", "storage": "2gb"},
		"mounts": ["type=volume,source=my cache,target=/cache/", "type=volume,source=x,target=/taken/below",
			"type=volume,source=taken,target=/taken,readonly",
			"type=tmpfs,target=/fast", "type=bind,source=/etc,target=/host"]}`, "/work")
	e, err := container.Of(img, map[string]string{"TOKEN": "t"}, "ses_1")
	if err != nil {
		t.Fatal(err)
	}
	rules := spec.Rules{Can: engine.Capabilities{Volumes: true, Limits: []string{"cpu", "memory", "disk"}},
		Defaults: engine.Limits{CPU: 1, Memory: 1 << 20, Disk: 1 << 40},
		Machine:  spec.Machine{CPU: 8, Memory: 8 << 30}}
	req := spec.Request{Env: map[string]string{"B": "own"}, Ports: []int{8080}, CPU: 4,
		Volumes: []spec.Mount{{Name: "mine", Path: "/taken"}}}
	if short := e.Adapt(&req, rules); len(short) > 0 {
		t.Errorf("it lacks: %q", short)
	}
	want := spec.Request{
		Env: map[string]string{"A": "a", "HOME2": "/root", "PATH": container.DefaultPath + ":/more", "TOKEN": "t",
			"B": "own"},
		Ports: []int{8080, 3000},
		PortDetails: []spec.PortDetail{{Port: 8080, Label: strings.Repeat("ä", 100)},
			{Port: 3000, Label: "Web", Protocol: "https"}}, CPU: 4, Memory: 1 << 30,
		Volumes: []spec.Mount{{Name: "mine", Path: "/taken"}, {Name: "dev-e3b0c442-my-cache", Path: "/cache"}}}
	if diff := cmp.Diff(want, req); diff != "" {
		t.Error(diff)
	}
	none := spec.Request{}
	if e.Adapt(&none, spec.Rules{}); len(none.Volumes) > 0 || none.CPU != 0 || none.Memory != 0 || none.Disk != 0 {
		t.Errorf("an engine without volumes and limits has %+v", none)
	}
	if other, err := container.Of(image.Image{}, nil, "x"); other != nil || err != nil {
		t.Errorf("an image that is no dev container: %v, %v", other, err)
	}
	for name, labels := range map[string]map[string]string{
		"place":    {container.Label: "{"},
		"metadata": {container.Label: "{}", devcontainer.Label: "["},
		"variable": {container.Label: "{}", devcontainer.Label: `[{"remoteEnv": {"A": "${localEnv}"}}]`},
	} {
		damaged := image.Image{Config: image.Config{Labels: labels}}
		if _, err := container.Of(damaged, nil, "x"); !errors.Is(err, errors.Invalid) {
			t.Errorf("a damaged %s: %v", name, err)
		}
	}
}

// sandbox returns a sandbox of the fake engine.
func sandbox(t *testing.T) shell.Sandbox {
	t.Helper()
	f := sandboxtest.Open(t, sandboxtest.New(t), fleet.Options{})
	sb, err := f.Create(t.Context(), "a", spec.Request{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Destroy(context.WithoutCancel(t.Context()), "a", sb.ID); err != nil {
			t.Error(err)
		}
	})
	return shell.Sandbox{Fleet: f, Account: "a", ID: sb.ID}
}

// TestRun runs commands in their forms and order, and stops after a failure.
func TestRun(t *testing.T) {
	t.Parallel()
	box := sandbox(t)
	img := described(t, `{"image": "x", "userEnvProbe": "none", "remoteEnv": {"WORD": "word"},
		"onCreateCommand": "echo $WORD", "updateContentCommand": ["echo", "$WORD"],
		"postCreateCommand": {"a": "echo a", "b": ["echo", "b"], "c": "echo why >&2; exit 3"},
		"postStartCommand": "echo never"}`, "/")
	e, err := container.Of(img, nil, "x")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := e.Run(t.Context(), box, &out, "onCreateCommand", "updateContentCommand"); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "word\n$WORD\n" {
		t.Errorf("they print %q", got)
	}
	locked := &safe{}
	err = e.Run(t.Context(), box, locked, "postCreateCommand", "postStartCommand")
	if !errors.Is(err, errors.Invalid) || errors.Message(err) !=
		"postCreateCommand c of devcontainer.json failed with exit code 3: why" || errors.RemedyOf(err) == "" {
		t.Errorf("a command that fails: %v", err)
	}
	lines := strings.Fields(locked.String())
	slices.Sort(lines)
	if diff := cmp.Diff([]string{"a", "b", "why"}, lines); diff != "" {
		t.Error(diff)
	}
	if !e.Has("postStartCommand") || e.Has("postAttachCommand") {
		t.Error("Has is wrong")
	}
	if err := e.Run(t.Context(), box, &out, "postAttachCommand"); err != nil {
		t.Errorf("without commands: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.Newf(errors.Timeout, "it takes too long"))
	if err := e.Run(ctx, box, &out, "onCreateCommand"); err == nil {
		t.Error("a canceled run succeeds")
	}
}

// TestProbe runs commands with the environment of the user's shell.
func TestProbe(t *testing.T) {
	t.Parallel()
	box := sandbox(t)
	img := described(t, `{"image": "x", "onCreateCommand": "echo $HOME $EXTRA", "remoteEnv": {"EXTRA": "more"}}`, "/")
	e, err := container.Of(img, nil, "x")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = e.Run(t.Context(), box, &out, "onCreateCommand")
	if err != nil || !strings.HasSuffix(out.String(), " more\n") {
		t.Errorf("it prints %q, %v", out.String(), err)
	}
}

// TestEntrypoint starts the entrypoints of features, without waiting for them.
func TestEntrypoint(t *testing.T) {
	t.Parallel()
	box := sandbox(t)
	img := described(t, `{"image": "x"}`, "/")
	mark := filepath.Join(t.TempDir(), "mark")
	img.Config.Labels[devcontainer.Label] = `[{"mounts": ["type=tmpfs,target=` + mark +
		`-fast"]}, {"entrypoint": "echo one >>` + mark + `"}, {"entrypoint": "echo two >>` +
		mark + `; sleep 1000"}]`
	e, err := container.Of(img, nil, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "both have started", func() bool {
		text, _ := os.ReadFile(mark)
		info, err := os.Stat(mark + "-fast")
		return string(text) == "one\ntwo\n" && err == nil && info.IsDir()
	})
}

// safe is a buffer for several writers.
type safe struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(p)
}

// library is an image.Builder that records the requests for builds.
type library struct {
	image.Builder
	specs []image.Spec
	opts  []image.BuildOptions
	base  image.Config
	err   error
}

func (l *library) Build(_ context.Context, s image.Spec, o image.BuildOptions) (image.Image, error) {
	l.specs, l.opts = append(l.specs, s), append(l.opts, o)
	return image.Image{ID: "img_built", Config: l.base}, l.err
}

// building returns a repository with these files.
func building(t *testing.T, files map[string]string) (container.Building, *library, *[]string) {
	t.Helper()
	l, log := &library{}, &[]string{}
	b := container.Building{Images: l, Default: "agent", Files: t.TempDir(), Config: ".devcontainer/devcontainer.json",
		Dir: "/workspace/r", ID: "repo_1", Temp: t.TempDir(), Log: func(line string) { *log = append(*log, line) }}
	for name, text := range files {
		path := filepath.Join(b.Files, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	return b, l, log
}

// TestBuild builds images of descriptions.
func TestBuild(t *testing.T) {
	t.Parallel()
	const config = ".devcontainer/devcontainer.json"
	b, l, log := building(t, map[string]string{
		config: `{"build": {"dockerfile": "Dockerfile", "context": "..", "target": "dev", "args": {"A": "1"}},
			"features": {"./f": {}}, "remoteUser": "dev", "workspaceFolder": "/code", "privileged": true}`,
		".devcontainer/Dockerfile":                  "FROM base AS dev\n",
		".devcontainer/f/devcontainer-feature.json": `{"id": "f", "version": "1.0.0", "name": "F"}`,
		".devcontainer/f/install.sh":                "true\n",
	})
	if _, err := container.Build(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if len(l.specs) != 2 {
		t.Fatalf("%d builds", len(l.specs))
	}
	first := l.specs[0]
	if first.Dockerfile != "FROM base AS dev\n" || first.Target != "dev" || first.Args["A"] != "1" ||
		filepath.Base(l.opts[0].Context) != filepath.Base(b.Files) {
		t.Errorf("the first build: %+v, %+v", first, l.opts[0])
	}
	for _, want := range []string{"FROM img_built\n", "install", `LABEL harvest.devcontainer="{\"config\"`,
		"ln -s '/workspace/r' '/code'", "\nUSER dev\n"} {
		if !strings.Contains(l.specs[1].Dockerfile, want) {
			t.Errorf("the second Dockerfile lacks %q: %s", want, l.specs[1].Dockerfile)
		}
	}
	if all := strings.Join(*log, "\n"); !strings.Contains(all, "privileged") {
		t.Errorf("the log: %s", all)
	}
	if _, err := os.Stat(filepath.Join(b.Temp, "steps", "users", "users.sh")); err != nil {
		t.Error(err)
	}

	b, l, _ = building(t, map[string]string{config: `{"workspaceFolder": "/code/$x/"}`})
	if _, err := container.Build(t.Context(), b); err != nil ||
		!strings.Contains(l.specs[1].Dockerfile, `\"folder\":\"/code/\$x\"`) {
		t.Errorf("a folder with a dollar: %+v, %v", l.specs, err)
	}
	b, l, _ = building(t, map[string]string{config: `{}`})
	if _, err := container.Build(t.Context(), b); err != nil || l.specs[0].Base != "agent" {
		t.Errorf("without an image: %+v, %v", l.specs, err)
	}
}

// only returns the files of a repository with a description only.
func only(text string) map[string]string {
	return map[string]string{".devcontainer/devcontainer.json": text}
}

// TestBadDescriptions refuses descriptions that are wrong, or lead out of the repository.
func TestBadDescriptions(t *testing.T) {
	t.Parallel()
	const config = ".devcontainer/devcontainer.json"
	for name, c := range map[string]struct {
		files map[string]string
		link  string // what the link "link" in the repository leads to
		base  string // label of the base image
		err   error  // of builds
		kind  errors.Kind
	}{
		"missing":       {kind: errors.NotFound},
		"syntax":        {files: only(`{`), kind: errors.Invalid},
		"compose":       {files: only(`{"dockerComposeFile": "c.yml"}`), kind: errors.Unsupported},
		"no Dockerfile": {files: only(`{"build": {"dockerfile": "D"}}`), kind: errors.NotFound},
		"no feature":    {files: only(`{"image": "x", "features": {"./f": {}}}`), kind: errors.NotFound},
		"user":          {files: only(`{"image": "x", "remoteUser": "a b"}`), kind: errors.Invalid},
		"folder":        {files: only(`{"workspaceFolder": "code"}`), kind: errors.Invalid},
		"line":          {files: only(`{"workspaceFolder": "/a\nRUN b"}`), kind: errors.Invalid},
		"large": {files: only(`{"name": "` + strings.Repeat("x", devcontainer.MaxBytes) + `"}`),
			kind: errors.Exhausted},
		"lock": {files: map[string]string{config: `{}`, ".devcontainer/devcontainer-lock.json": `[`},
			kind: errors.Invalid},
		"base":          {files: only(`{"image": "x"}`), base: "[", kind: errors.Invalid},
		"failing build": {files: only(`{}`), err: errors.Newf(errors.Denied, "no"), kind: errors.Denied},
		"context elsewhere": {files: map[string]string{config: `{"build": {"dockerfile": "D", "context": "../link"}}`,
			".devcontainer/D": "FROM x\n"}, link: "/etc", kind: errors.Invalid},
		"no context": {files: map[string]string{config: `{"build": {"dockerfile": "D", "context": "../none"}}`,
			".devcontainer/D": "FROM x\n"}, kind: errors.NotFound},
		"Dockerfile elsewhere": {files: only(`{"build": {"dockerfile": "../link"}}`),
			link: "/etc/passwd", kind: errors.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, l, _ := building(t, c.files)
			l.err = c.err
			if c.base != "" {
				l.base.Labels = map[string]string{devcontainer.Label: c.base}
			}
			if c.link != "" {
				if err := os.Symlink(c.link, filepath.Join(b.Files, "link")); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := container.Build(t.Context(), b); errors.KindOf(err) != c.kind {
				t.Errorf("%s: %v", errors.KindOf(err), err)
			}
		})
	}
}

// TestLacking names the recommended secrets that a session lacks.
func TestLacking(t *testing.T) {
	t.Parallel()
	b, l, log := building(t, only(`{"secrets": {"TOKEN": {"description": "For\nthe API", "documentationUrl":
		"https://example.org/token"}, "OTHER": {}, "PASSED": {}, "SET": {}}}`))
	b.Owned = []secret.Secret{{Name: "mine", Keys: []string{"PASSED"}}, {Name: "others", Keys: []string{"A", "OTHER"}}}
	b.Passed = []string{"mine"}
	if _, err := container.Build(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	const file = ".devcontainer/devcontainer.json recommends the secret "
	want := []string{
		file + "OTHER: --secret others passes it",
		file + "SET: store it with harvest secret set, and pass it with --secret",
		file + "TOKEN (For the API), see https://example.org/token: store it with harvest secret set, and pass it " +
			"with --secret",
	}
	said := slices.DeleteFunc(slices.Clone(*log), func(line string) bool { return !strings.HasPrefix(line, file) })
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
	label, err := strconv.Unquote(between(l.specs[1].Dockerfile, container.Label+"=", "\n"))
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{container.Label: label}
	e, err := container.Of(image.Image{Config: image.Config{Labels: labels}}, nil, "x")
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"SET": "x", "OTHER": ""}
	if diff := cmp.Diff([]string{want[0], want[2]}, e.Lacking(env, b.Owned, b.Passed)); diff != "" {
		t.Error(diff)
	}
	if got := e.Lacking(env, b.Owned, []string{"modal:x"}); got != nil {
		t.Errorf("with a secret that only the provider knows: %q", got)
	}
}

// between returns the text between two others.
func between(text, from, to string) string {
	_, text, _ = strings.Cut(text, from)
	text, _, _ = strings.Cut(text, to)
	return text
}

// TestWaits says for which commands a session waits.
func TestWaits(t *testing.T) {
	t.Parallel()
	hooks := devcontainer.Hooks[2:]
	for waitFor, want := range map[string]int{"": 3, "initializeCommand": 0, "onCreateCommand": 0,
		"updateContentCommand": 0, "postCreateCommand": 1, "postStartCommand": 2} {
		text := `{"image": "x"}`
		if waitFor != "" {
			text = `{"image": "x", "waitFor": "` + waitFor + `"}`
		}
		e, err := container.Of(described(t, text, "/"), nil, "x")
		if err != nil {
			t.Fatal(err)
		}
		now, later := e.Waits(hooks)
		if len(now) != want || len(later) != 3-want {
			t.Errorf("%s: it waits for %q, not for %q", waitFor, now, later)
		}
	}
}

// TestSources lists the files that an image is built from.
func TestSources(t *testing.T) {
	t.Parallel()
	const dockerfile = "FROM x\nCOPY requirements.txt tools/*.sh /x/\nCOPY . /y\nARG V\nCOPY $V /z\n"
	for _, c := range []struct {
		config, text string
		want         []string
	}{
		{".devcontainer/devcontainer.json", `{"build": {"dockerfile": "../docker/dev.Dockerfile", "context": "..",
			"args": {"V": "versions"}}}`, []string{"docker/dev.Dockerfile", "docker/dev.Dockerfile.dockerignore",
			".dockerignore", "requirements.txt", "requirements.txt/**", "tools/*.sh", "tools/*.sh/**", "versions",
			"versions/**"}},
		{".devcontainer.json", `{"dockerFile": "docker/D"}`, []string{"docker/D", "docker/D.dockerignore",
			"docker/.dockerignore", "docker/requirements.txt", "docker/requirements.txt/**", "docker/tools/*.sh",
			"docker/tools/*.sh/**", "docker", "docker/**"}},
		{".devcontainer.json", `{"image": "x"}`, nil},
		{".devcontainer.json", `{"build": {"dockerfile": "../D"}}`, nil},
		{".devcontainer.json", `{`, nil},
	} {
		from := container.SourcesOf(c.config, []byte(c.text))
		if c.want == nil {
			if from.Dockerfile != "" {
				t.Errorf("%s has %s", c.text, from.Dockerfile)
			}
			continue
		}
		got := from.Paths(dockerfile)
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], ":(glob)")
		}
		if diff := cmp.Diff(c.want, got); diff != "" || from.Dockerfile != c.want[0] {
			t.Errorf("%s: %s %s", c.text, from.Dockerfile, diff)
		}
	}
}

// TestRequirements checks that a sandbox has at least the required hardware, as far as possible.
func TestRequirements(t *testing.T) {
	t.Parallel()
	img := described(t, `{"image": "x", "hostRequirements": {"cpus": 16, "memory": "64gb", "storage": "32gb"}}`, "/")
	e, err := container.Of(img, nil, "x")
	if err != nil {
		t.Fatal(err)
	}
	all := engine.Capabilities{Limits: []string{"cpu", "memory", "disk"}}
	rules := spec.Rules{Can: all, Defaults: engine.Limits{CPU: 2, Memory: 2 << 30, Disk: 10 << 30},
		Machine: spec.Machine{CPU: 8, Memory: 16 << 30}}
	req := spec.Request{}
	short := e.Adapt(&req, rules)
	want := []string{"devcontainer.json asks for 16 cores (hostRequirements.cpus), and a sandbox can have at most 8 " +
		"cores here: it has 8 cores", "devcontainer.json asks for 64GiB (hostRequirements.memory), and a sandbox can " +
		"have at most 16GiB here: it has 16GiB"}
	if diff := cmp.Diff(want, short); diff != "" {
		t.Error(diff)
	}
	if req.CPU != 8 || req.Memory != 16<<30 || req.Disk != 32<<30 {
		t.Errorf("the request is %+v", req)
	}
	rules.Machine = spec.Machine{CPU: 100, Memory: 100 << 30}
	req = spec.Request{CPU: 32}
	if short := e.Adapt(&req, rules); len(short) > 0 || req.CPU != 32 || req.Memory != 64<<30 {
		t.Errorf("on a larger machine: %+v, %q", req, short)
	}
	rules.Machine, rules.Isolation, rules.Can = spec.Machine{}, "b", engine.Capabilities{}
	rules.Isolations = map[string]engine.Capabilities{"a": all, "b": {Limits: []string{"cpu"}}}
	req = spec.Request{}
	short = e.Adapt(&req, rules)
	if len(short) != 1 || !strings.HasSuffix(short[0], "it has 2 cores") || req.CPU != 0 {
		t.Errorf("of another isolation: %+v, %q", req, short)
	}
	req = spec.Request{Isolation: "a"}
	if e.Adapt(&req, rules); req.Disk != 32<<30 {
		t.Errorf("of the isolation that is asked for: %+v", req)
	}
}
