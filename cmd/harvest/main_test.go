package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/engine/fake"
	"github.com/RelevanceAI/harvest/engine/gvisor"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/s3server/s3test"
	"github.com/RelevanceAI/harvest/internal/testenv"
	"github.com/RelevanceAI/harvest/s3mount"
)

func TestMain(m *testing.M) {
	gvisor.Main()
	fake.Main()
	s3mount.Main(context.Background())
	s3Main(context.Background())
	testscript.Main(s3test.M{M: m}, map[string]func(){"harvest": main})
}

// The scripts run on two engines: on the fake with this very program, which counts coverage and looks for races, and on gVisor
// with the ordinary binary.

func TestScriptsFake(t *testing.T) {
	t.Parallel()
	scriptsIn(t, "testdata/script", "fake", nil)
}

func TestScriptsGVisor(t *testing.T) {
	t.Parallel()
	scriptsIn(t, "testdata/script", "gvisor", gvisorSetup(t))
}

// gvisorSetup returns what makes an environment one for the ordinary binary, with the base image at hand.
func gvisorSetup(t *testing.T) func(env *testscript.Env) error {
	t.Helper()
	library := imagetest.Library(t)
	images := filepath.Dir(filepath.Dir(library.Root(imagetest.Base(t, library))))
	bin := t.TempDir()
	if err := os.Symlink(testenv.Binary(t), filepath.Join(bin, "harvest")); err != nil {
		t.Fatal(err)
	}
	return func(env *testscript.Env) error {
		env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
		if dir := testenv.CoverDir(); dir != "" {
			env.Setenv("GOCOVERDIR", dir)
		}
		data := env.Getenv("HARVEST_DATA")
		if err := os.MkdirAll(data, 0o700); err != nil {
			return err
		}
		return os.Symlink(images, filepath.Join(data, "images"))
	}
}

// scriptsIn runs the scripts of a directory.
func scriptsIn(t *testing.T, dir, engine string, setup func(env *testscript.Env) error) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			data := filepath.Join(env.WorkDir, "data")
			env.Setenv("HARVEST_DATA", data)
			env.Setenv("HARVEST_ENGINE", engine)
			env.Setenv("HARVEST_POOL", "0")
			env.Setenv("HARVEST_REFRESH", "false") // whatever time it is
			env.Setenv("GORACE", os.Getenv("GORACE"))
			if home, err := os.UserHomeDir(); err == nil { // where the host's python3 may have its settings
				env.Setenv("HOME", home)
			}
			if setup != nil {
				if err := setup(env); err != nil {
					return err
				}
			}
			environ := append([]string(nil), env.Vars...)
			env.Defer(func() { end(t, environ, data) })
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "gvisor":
				return engine == "gvisor", nil
			case "root":
				return os.Geteuid() == 0, nil
			}
			return false, errors.Newf(errors.Invalid, "there is no condition %q", cond)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"code": code, "alive": alive},
	})
}

// end ends the script's server and everything in it; nothing of it may be left.
func end(t *testing.T, environ []string, data string) {
	if _, err := os.Stat(filepath.Join(data, "lock")); err != nil {
		return // there never was a server
	}
	program := "harvest"
	for _, pair := range environ {
		if path, ok := strings.CutPrefix(pair, "PATH="); ok {
			program = filepath.Join(strings.SplitN(path, ":", 2)[0], "harvest")
		}
	}
	cmd := exec.Command(program, "down", "--sandboxes")
	cmd.Env = environ
	if out, err := cmd.CombinedOutput(); err != nil {
		log, _ := os.ReadFile(filepath.Join(data, logName))
		t.Errorf("harvest down: %v\n%s\n%s", err, out, log)
	}
	testenv.NoLeaks(t, data)
}

// code runs a command that must end with an exit code: code 3 harvest run …
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// alive reports whether a process runs on this machine that has a text in its command line: ! alive 'sleep 4711'
func alive(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: alive TEXT")
	}
	found := ""
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	ts.Check(err)
	for _, file := range lines {
		data, err := os.ReadFile(file)
		if line := strings.ReplaceAll(string(data), "\x00", " "); err == nil && strings.Contains(line, args[0]) {
			found = fmt.Sprintf("%s: %s", file, line)
		}
	}
	if (found == "") != neg {
		ts.Fatalf("%q is in a command line: %q", args[0], found)
	}
}
