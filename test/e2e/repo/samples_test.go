package repo

import (
	"archive/zip"
	"bytes"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// isNumber is the registry's digest of the package that the Node samples need.
const isNumber = "sha512-41Cifkg6e8TylSpdtTpeLVMqvSBEVzTttHvERD741+pnZ8ANv0004MRL43QKPDlK9cGvNp6NZWZUBlbGXYxxng=="

const builds = `"scripts": {"build": "node -e \"require('fs').writeFileSync('built.txt', ` +
	`String(require('is-number')(5)))\"", "test": "node -e \"process.exit(0)\""}`

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
		".gitignore":          "node_modules\nbuilt.txt\n",
		"package.json":        `{"name": "pnpm-sample", "private": true}`,
		"pnpm-workspace.yaml": "packages:\n  - packages/*\n",
		"packages/one/package.json": `{"name": "one", "version": "1.0.0", ` + builds +
			`, "dependencies": {"is-number": "7.0.0"}}`,
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

// yarnSample is a repository of Yarn 1, which uses its own registry unless it is configured with npm's registry of this
// test.
func yarnSample(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		".gitignore": "node_modules\nbuilt.txt\n",
		".yarnrc":    "registry \"" + testenv.NPMRegistry(t) + "\"\n",
		"package.json": `{"name": "yarn-sample", "version": "1.0.0", ` + builds +
			`, "dependencies": {"is-number": "7.0.0"}}`,
		"yarn.lock": "# yarn lockfile v1\n\n\nis-number@7.0.0:\n  version \"7.0.0\"\n  integrity " + isNumber + "\n",
	}
}

// pipSample is a repository of pip that includes a wheel, since an index may be out of reach.
func pipSample(t *testing.T) map[string]string {
	t.Helper()
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for _, f := range []struct{ name, text string }{
		{"tiny.py", "answer = 42\n"},
		{"tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"},
		{"tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"tiny-1.0.dist-info/RECORD",
			"tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n"},
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
		"go.mod":  "module example.org/sample\n\ngo 1.19\n",
		"main.go": "package main\n\nfunc main() { println(answer()) }\n\nfunc answer() int { return 42 }\n",
		"main_test.go": "package main\n\nimport \"testing\"\n\nfunc TestAnswer(t *testing.T) {\n\tif answer() != 42 " +
			"{\n\t\tt.Fatal(\"wrong\")\n\t}\n}\n",
	}
}
