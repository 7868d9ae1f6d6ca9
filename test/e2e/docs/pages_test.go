package docs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// page describes how the commands of a page are run. Commands are named by their first line without a comment.
type page struct {
	all   string            // reason why no command of the page is run; "" otherwise
	quick bool              // part of the quick suite
	setup func(f *fixture)  // makes the files that the page's reader has
	not   map[string]string // commands that are not run, with the reason
	until map[string]string // commands that run until they are interrupted, with the reason
	code  map[string]int    // exit codes other than 0 that the page announces
}

// fixture is the situation in which the reader of a page is.
type fixture struct {
	t      *testing.T
	h      *host.Host
	dir    string            // the working directory: a git repository
	before []string          // commands that the page expects to have been run
	as     map[string]string // texts of the page, and their replacements here
}

func (f *fixture) file(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	testenv.WriteFile(f.t, path, []byte(text))
}

// The reasons.
const (
	checkout   = "builds Harvest itself, as make and .ci/run do"
	internet   = "needs the internet"
	agentImage = "needs the agent image, which takes minutes to build; TestAgentImage builds it"
	models     = "needs a model and its key"
	gitHub     = "needs GitHub; the packages test/e2e/repo and internal/session/github have a stand-in"
	terminal   = "needs a terminal; the packages test/e2e/cli and internal/cli/chat have one"
	installer  = "changes this machine; the package test/e2e/release runs it"
	docker     = "needs Docker; TestContainerImage runs the image's files"
	endless    = "runs until it is interrupted"
	ownSSH     = "needs the configuration of ssh of its user; the package test/e2e/ssh runs it"
	providers  = "needs an account at the provider; the package test/e2e/login has stand-ins"
)

var pages = map[string]page{
	"README.md": {setup: func(f *fixture) {
		f.file("script.py", "print(1)\n")
		f.file(".env", "A=1\n")
		f.file("src/a.txt", "a\n")
	}, not: map[string]string{
		"make run": checkout, "make test": checkout,
		"harvest run -it -- bash": terminal, "harvest sandbox sh work": terminal,
		"harvest agent --continue":                      terminal,
		"harvest image build agent":                     agentImage,
		"harvest run --image agent -- claude --version": agentImage,
	}, until: map[string]string{
		"harvest sandbox stats work --watch": endless,
	}, code: map[string]int{
		"harvest run --timeout 2s --code 'while True: pass'": 124,
	}},
	"agent-image.md": {all: agentImage},
	"agents.md":      {all: "needs an image with an agent of another maker"},
	"cli.md":         {all: "is generated from the help, with examples of things that do not exist"},
	"credentials.md": {setup: func(f *fixture) {
		for _, name := range []string{"GITHUB_TOKEN", "API_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
			f.h.Env.Setenv(name, "a-value-of-the-reader")
		}
	}, code: map[string]int{"harvest logout github": 4}, // nobody has logged in
		not: map[string]string{
			"harvest run --secret github -- git clone https://github.com/you/private": gitHub,
			"harvest login claude": providers, "harvest login github": providers,
			"claude setup-token | tail -n 1 | harvest login claude --token -":          providers,
			"harvest login codex --file ~/.codex/auth.json":                            providers,
			"harvest run --secret claude --secret github -- claude -p 'Fix the build'": providers,
		}},
	"dockerfiles.md": {setup: func(f *fixture) {
		f.file("Dockerfile", "FROM base\nRUN touch /built\n")
		f.file("web/Dockerfile.dev", "FROM base AS test\nARG VERSION\nRUN --mount=type=secret,id=npmrc "+
			"test -n \"$VERSION\" && test -s /run/secrets/npmrc\n")
		f.file(".npmrc", "registry=https://registry.example.org\n")
	}, not: map[string]string{
		"harvest run --dockerfile-command 'RUN apt-get update && apt-get install -y jq' -- jq --version": internet,
	}},
	"inbox.md": {setup: func(f *fixture) {
		f.before = []string{"harvest agent --approval ask --repo none -d '/approve ls'",
			"until harvest inbox -o name | grep -q .; do sleep 0.1; done"}
	}},
	"install.md": {not: map[string]string{
		"curl -fsSLO https://raw.githubusercontent.com/RelevanceAI/harvest/main/install.sh": internet,
		"sh install.sh":                                    installer,
		"sudo harvest doctor --fix":                        installer,
		"sudo apt install ./harvest_0.1.0_linux_amd64.deb": installer,
		"sudo dnf install ./harvest_0.1.0_linux_amd64.rpm": installer,
		"sudo systemctl enable --now harvest":              installer,
		"sha256sum --check --ignore-missing checksums.txt": installer,
		"tar -xzf harvest_0.1.0_linux_amd64.tar.gz":        installer,
		"sudo install harvest /usr/local/bin/":             installer,
		"podman load --input harvest_0.1.0_oci.tar":        docker,
		"skopeo copy --all oci-archive:harvest_0.1.0_oci.tar docker://registry.example.org/harvest:0.1.0": docker,
		"git clone https://github.com/RelevanceAI/harvest && cd harvest":                                  internet,
		"make build": checkout, "make clients": checkout, "make release": checkout, "make release-check": checkout,
		"git checkout v0.1.0 && make release && diff dist/checksums.txt ~/Downloads/checksums.txt": checkout,
	}},
	"git.md": {setup: func(f *fixture) {
		origin := filepath.Join(f.t.TempDir(), "origin.git")
		host.RunGit(f.t, f.dir, "clone", "-q", "--bare", f.dir, origin)
		host.RunGit(f.t, f.dir, "remote", "add", "origin", origin)
		f.as["fix the failing test"] = "/write hello.txt hello"
		f.dir = filepath.Dir(f.dir)
	}, not: map[string]string{
		`harvest agent --repo https://github.com/owner/name --branch dev --depth 1 "…"`:   gitHub,
		`harvest agent --also https://github.com/owner/other#main --lfs --submodules "…"`: gitHub,
		"harvest session sync SESSION": gitHub, "harvest push SESSION": gitHub, "harvest pr SESSION": gitHub,
		"harvest memory get owner/name": gitHub,
	}},
	"languages.md": {setup: func(f *fixture) {
		examples, err := filepath.Abs(filepath.Join(root, "examples"))
		if err != nil {
			f.t.Fatal(err)
		}
		if err := os.Symlink(examples, filepath.Join(f.dir, "examples")); err != nil {
			f.t.Fatal(err)
		}
	}, not: map[string]string{
		"cd examples/typescript": "TestExamplesInOtherLanguages runs it, with a registry of npm that can be reached",
		"npm ci":                 "as above", "npm run generate": "as above",
		"npm run build": "as above", "npm start": "as above",
	}},
	"kubernetes.md": {all: "needs a cluster, and a registry; make test-kubernetes runs the engine"},
	"modal.md": {not: map[string]string{
		"go run ./my-program": "is the reader's; the package test/e2e/modal runs programs of each SDK",
		"export MODAL_TOKEN_ID=ak-… MODAL_TOKEN_SECRET=as-…": "needs an account at Modal",
		"harvest run --engine modal --code 'print(6*7)'":     "needs an account at Modal",
	}},
	"network.md": {setup: func(f *fixture) {
		f.as["-- …"] = "-- true"
		f.as["8080"], f.as["15432"] = testenv.FreePort(f.t), testenv.FreePort(f.t)
		f.before = []string{"harvest up", "harvest sandbox create --name work"}
	}, until: map[string]string{
		"harvest run -p 8080 -- python3 -m http.server 8080":      endless,
		"harvest sandbox port work 5432":                          endless,
		"harvest sandbox port work 5432 --listen 127.0.0.1:15432": endless,
	}},
	"operations.md": {setup: func(f *fixture) {
		f.as["/mnt/backup"], f.as["/elsewhere"] = f.t.TempDir(), f.t.TempDir()
		f.as["/var/lib/harvest"] = f.h.Data
		f.before = []string{"harvest secret set first A=1"} // makes the keys that the page saves
	}, not: map[string]string{
		"docker run --detach --name harvest --init \\": docker,
		"docker exec harvest harvest doctor":           docker, "docker exec harvest harvest key link": docker,
	}},
	"performance.md":  {all: "has the benchmarks of the project, which take hours"},
	"repositories.md": {all: gitHub},
	"s3.md": {setup: func(f *fixture) {
		s := host.NewS3(f.t)
		f.as["my-bucket"] = s.Bucket
		for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": s3test.AccessKey,
			"AWS_SECRET_ACCESS_KEY": s3test.SecretKey, "AWS_REGION": "us-east-1",
			"HARVEST_S3_ENDPOINT": "http://" + s.Address} {
			f.h.Env.Setenv(name, value)
		}
		f.as["make -C"] = "ls"
		f.before = []string{"harvest volume create data"}
	}},
	"schedules.md": {},
	"secrets.md": {setup: func(f *fixture) {
		f.h.Env.Setenv("GITHUB_TOKEN", "token")
		f.file(".env", "A=1\n")
		f.as["./ship"] = "env"
	}},
	"security.md": {},
	"sessions.md": {setup: func(f *fixture) {
		f.as["sk-ant-…"] = "sk-ant-1"
		f.as["compare --n"] = "compare --agents scripted --n"
	}, code: map[string]int{
		"harvest stop SESSION": 5, "harvest stop SESSION --hold": 5, // no turn runs
	}, not: map[string]string{
		"harvest agent --agent scripted": terminal, "harvest agent --continue": terminal,
		`harvest compare --agents claude,opencode --test "make test" "fix the failing test"`: models,
		"harvest login claude": providers,
	}},
	"snapshots.md": {},
	"devcontainers.md": {not: map[string]string{
		"harvest repo add https://github.com/owner/name":                    gitHub,
		"harvest repo add https://github.com/owner/name --devcontainer go":  gitHub,
		"harvest repo add https://github.com/owner/name --devcontainer ''":  gitHub,
		`harvest agent --repo https://github.com/owner/name "fix the test"`: gitHub,
	}},
	"ssh.md": {not: map[string]string{
		"harvest ssh-config --install": ownSSH, "harvest ssh-config --remove": ownSSH,
		"ssh dev.harvest 'cd /root && pwd'": ownSSH, "scp notes.txt dev.harvest:/root/": ownSSH,
		"rsync -a src/ dev.harvest:/root/src/": ownSSH, "git clone ssh://dev.harvest/root/project.git": ownSSH,
		"harvest key add-ssh ~/.ssh/id_ed25519.pub": ownSSH, "ssh -p 7722 dev@harvest.example.org": ownSSH,
		"harvest key rm laptop": ownSSH,
	}},
	"suspension.md": {not: map[string]string{
		"harvest sandbox port site 3000 --link": "needs a server with an address; test/e2e/cli has one",
	}},
	"start.md": {quick: true, not: map[string]string{
		"git clone https://github.com/RelevanceAI/harvest && cd harvest": internet,
		"make run": checkout, "sudo install bin/harvest /usr/local/bin/": checkout,
		"harvest image build agent":                                agentImage,
		`ANTHROPIC_API_KEY=… harvest agent "fix the failing test"`: models,
		"pip install modal":                                        "needs PyPI; test/e2e/modal has Modal's SDK for Python",
		"python - <<'PY'":                                          "needs the SDK",
	}},
	"ui.md": {all: "takes the pictures of the page, with a browser"},
}
