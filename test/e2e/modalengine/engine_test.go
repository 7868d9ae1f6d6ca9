package modalengine

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// modalEngineEnv names the program in the process in which the suite runs.
const modalEngineEnv = "HARVEST_TEST_MODAL_ENGINE"

// failuresOf are the lines of a verbose test's output that matter.
func failuresOf(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "--- PASS") && !strings.Contains(line, "=== ") &&
			!strings.Contains(line, "does not apply") && !strings.Contains(line, "left out: ") &&
			!strings.Contains(line, "level=WARN") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// leftOfModal are checks of the suite that the engine modal does not run here.
var leftOfModal = map[string]string{
	"network/names": "the host name is Modal's",
	"dial/killed": "what kills everything inside kills the program of Harvest's too here, where it is not the " +
		"first process; the sandbox ends with it",
}

// TestModalEngine checks that the engine modal passes the conformance suite through the official SDK and gRPC, with our
// own server in Modal's place.
//
// mission: A3, A4, 5.3, F3
func TestModalEngine(t *testing.T) {
	t.Parallel()
	program := os.Getenv(modalEngineEnv)
	if program == "" {
		testenv.Long(t)
		h := modalhost.WithBase(t)
		args := []string{"-test.run=^TestModalEngine$", "-test.v", "-test.short",
			"-test.timeout=30m"} // gVisor's own suite runs the large checks
		if dir := flag.Lookup("test.gocoverdir"); testing.CoverMode() != "" && dir != nil {
			args = append(args, "-test.gocoverdir="+dir.Value.String())
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0],
			args...) // the SDK takes its server from the environment of the process
		cmd.Env = append(testenv.CleanEnv(), append(h.Modal, modalEngineEnv+"="+h.Program,
			"MODAL_CONFIG_PATH="+filepath.Join(t.TempDir(), "none.toml"))...)
		out, err := cmd.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "enginetest: ") { // skipped checks, with the reason
				fmt.Fprint(os.Stderr, line)
			}
		}
		if err != nil || !strings.Contains(string(out), "--- PASS: TestModalEngine") {
			t.Errorf("%v\n%s", err, failuresOf(string(out)))
		}
		return
	}
	enginetest.Run(t, enginetest.Harness{
		Open: func(t *testing.T, dir string) engine.Engine {
			e, err := modalengine.Open(t.Context(), modalengine.Options{Dir: dir, Executable: program, Image: "base",
				OutputBytes: 16 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Images().Build(t.Context(), image.Spec{Base: "base"}, image.BuildOptions{}); err != nil {
				t.Fatal(err)
			}
			return e
		},
		Creates: 3, CopySize: 8 << 20, Left: leftOfModal,
	})
}

// TestModalEngineRun checks that the command line with the engine modal runs code, and reports problems with the
// credentials.
//
// mission: A1, 9.2
func TestModalEngineRun(t *testing.T) {
	t.Parallel()
	h := modalhost.WithBase(t)
	vars := map[string]string{"MODAL_CONFIG_PATH": filepath.Join(t.TempDir(), "none.toml"),
		"HARVEST_MODAL_IMAGE": "base", "HARVEST_REFRESH": "false"}
	for _, pair := range h.Modal {
		name, value, _ := strings.Cut(pair, "=")
		vars[name] = value
	}
	run := func(t *testing.T, data string, change map[string]string, args ...string) (stdout, stderr string,
		failed bool) {
		t.Helper()
		vars := maps.Clone(vars)
		maps.Copy(vars, change)
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), h.Program, args...)
		cmd.Env = append(testenv.CleanEnv(), "HARVEST_DATA="+data)
		for name, value := range vars {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		var out, problems strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &problems
		err := cmd.Run()
		return out.String(), problems.String(), err != nil
	}
	data := testenv.DataDir(t)
	t.Cleanup(func() {
		if _, stderr, failed := run(t, data, nil, "down", "--sandboxes"); failed {
			t.Errorf("down: %s", stderr)
		}
	})
	if stdout, stderr, failed := run(t, data, nil, "run", "--engine", "modal", "--code", "print(6*7)"); failed ||
		stdout != "42\n" {
		t.Errorf("harvest run --engine modal printed %q and %q", stdout, stderr)
	}
	if stdout, stderr, failed := run(t, data, nil, "run", "--json", "--code", "raise SystemExit(3)"); !failed ||
		!strings.Contains(stdout, `"returncode":3`) {
		t.Errorf("a second run printed %q and %q", stdout, stderr)
	}
	if _, stderr, failed := run(t, data, nil, "run", "--engine", "fake", "--code", "print(1)"); !failed ||
		!strings.Contains(stderr, "a server with the engine modal is already running") {
		t.Errorf("another engine: %q", stderr)
	}
	for name, test := range map[string]struct {
		change map[string]string
		want   []string
	}{
		"no credentials": {map[string]string{"MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""},
			[]string{"there are no credentials for Modal", "MODAL_TOKEN_ID", "HARVEST_MODAL_TOKEN_ID",
				"modal token new"}},
		"wrong ones": {map[string]string{"MODAL_TOKEN_SECRET": "as-wrong"},
			[]string{"Modal does not accept the credentials", "MODAL_TOKEN_SECRET"}},
		"nobody answers": {map[string]string{"MODAL_SERVER_URL": "http://127.0.0.1:1"},
			[]string{"Modal cannot be reached", "MODAL_SERVER_URL"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, failed := run(t, testenv.DataDir(t), test.change, "run", "--engine", "modal",
				"--code", "print(6*7)")
			for _, want := range test.want {
				if !failed || !strings.Contains(stderr, want) {
					t.Errorf("it printed %q and %q, without %q", stdout, stderr, want)
				}
			}
			if strings.Contains(stderr, "as-wrong") || strings.Contains(stderr, vars["MODAL_TOKEN_SECRET"]) {
				t.Error("the secret is in the error")
			}
		})
	}
}
