package host

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// Race returns a function that prepares an environment for the binary with the race detector.
func Race(t *testing.T) func(env *testscript.Env) error {
	t.Helper()
	bin := t.TempDir()
	if err := os.Symlink(testenv.RaceBinary(t), filepath.Join(bin, "harvest")); err != nil {
		t.Fatal(err)
	}
	reports := filepath.Join(t.TempDir(), "race")
	return func(env *testscript.Env) error {
		env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
		env.Setenv("GORACE", cmp.Or(os.Getenv("GORACE"), "atexit_sleep_ms=50")+" "+logPath+reports)
		return nil
	}
}

// logPath is the option of GORACE with the prefix of the files for reports.
const logPath = "log_path="

// scripts counts the scripts of this process.
var scripts atomic.Int64

// noRaces fails the test if a process of harvest has reported a data race: a command into the file that GORACE names, a
// server into its log, because servers do not inherit GORACE.
func noRaces(t *testing.T, data, gorace string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(data, logName+"*"))
	if _, prefix, ok := strings.Cut(gorace, logPath); ok {
		reports, _ := filepath.Glob(prefix + ".*") // the runtime appends the process id
		files = append(files, reports...)
	}
	for _, path := range files {
		text, _ := os.ReadFile(path)
		if i := bytes.Index(text, []byte("WARNING: DATA RACE")); i >= 0 {
			t.Errorf("%s:\n%s", path, text[i:])
		}
	}
}

// Images returns the directory of a library with the base image, which all tests of this machine share.
func Images(t *testing.T) string {
	t.Helper()
	library := imagetest.Library(t)
	return filepath.Dir(filepath.Dir(library.Root(imagetest.Base(t, library))))
}

// GVisor returns a function that prepares an environment for the ordinary binary, with the base image in the data
// directory.
func GVisor(t *testing.T) func(env *testscript.Env) error {
	t.Helper()
	images := Images(t)
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

// Scripts runs the testscript files of a directory, each with a data directory of its own. Without setup, harvest is
// the program that testscript.Main has registered.
func Scripts(t *testing.T, dir, engine string, setup func(env *testscript.Env) error) {
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
			// A time to sleep that no other script has, nor one of another run on this machine.
			env.Setenv("LONG", fmt.Sprintf("4%07d%02d", os.Getpid(), scripts.Add(1)%100))
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

// end stops the script's server and its sandboxes. Nothing of them may be left.
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
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "down", "--sandboxes")
	cmd.Env = environ
	if out, err := cmd.CombinedOutput(); err != nil {
		log, _ := os.ReadFile(filepath.Join(data, logName))
		t.Errorf("harvest down: %v\n%s\n%s", err, out, log)
	}
	noRaces(t, data, "")
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
