package testenv

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// recorder is a test that another test observes: it records its failures and runs its cleanups on demand.
type recorder struct {
	testing.TB
	failures []string
	skipped  string
	fatal    string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatal(args ...any)                 { r.fatal = fmt.Sprint(args...) }
func (r *recorder) Fatalf(format string, args ...any) { r.fatal = fmt.Sprintf(format, args...) }
func (r *recorder) Skip(args ...any)                  { r.skipped = fmt.Sprint(args...) }
func (r *recorder) Skipf(format string, args ...any)  { r.skipped = fmt.Sprintf(format, args...) }
func (r *recorder) end() string {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	return strings.Join(r.failures, "\n")
}

// impatient makes NoLeaks give up soon. Tests that use it are not parallel.
func impatient(t *testing.T) {
	t.Helper()
	before := patience
	patience = 300 * time.Millisecond
	t.Cleanup(func() { patience = before })
}

func TestNothingLeft(t *testing.T) {
	r := &recorder{TB: t}
	dir := DataDir(r)
	if len(dir) > 60 {
		t.Errorf("%s leaves little room for a socket's name", dir)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.end(); got != "" {
		t.Errorf("failures: %s", got)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// mission: 8.7
func TestProcessesThatAreLeft(t *testing.T) {
	impatient(t)
	for name, start := range map[string]func(dir string) *exec.Cmd{
		"cmdline": func(dir string) *exec.Cmd {
			cmd := exec.Command("sh", "-c", `read line; : "$0"`, dir) // without children, which would be left
			if _, err := cmd.StdinPipe(); err != nil {
				t.Error(err)
			}
			return cmd
		},
		"environ": func(dir string) *exec.Cmd {
			cmd := exec.Command("sleep", "600")
			cmd.Env = []string{"HARVEST_DATA=" + dir}
			return cmd
		},
		"cwd": func(dir string) *exec.Cmd {
			cmd := exec.Command("sleep", "600")
			cmd.Dir, cmd.Env = dir, []string{}
			return cmd
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			dir := DataDir(r)
			cmd := start(dir)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			got := r.end()
			if want := "process " + strconv.Itoa(cmd.Process.Pid); !strings.Contains(got, want) ||
				!strings.Contains(got, name) {
				t.Errorf("failures %q, want %s by its %s", got, want, name)
			}
			if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Errorf("the process ended with %v, want it killed", err)
			}
		})
	}
}

func TestDescendantsThatAreLeft(t *testing.T) {
	impatient(t)
	r := &recorder{TB: t}
	NoLeaks(r)
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got := r.end(); !strings.Contains(got, "child process "+strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("failures: %q", got)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process was left running")
	}
	r = &recorder{TB: t}
	NoLeaks(r)
	if got := r.end(); got != "" {
		t.Errorf("without a leak: %s", got)
	}
}

func TestFilesAndSocketsThatAreLeft(t *testing.T) {
	impatient(t)
	r := &recorder{TB: t}
	dir := DataDir(r)
	f, err := os.Create(filepath.Join(dir, "spool"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := r.end()
	for _, want := range []string{"open files: " + f.Name(), "socket " + filepath.Join(dir, "sock")} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}

// mission: 8.7
func TestMountsThatAreLeft(t *testing.T) {
	Root(t)
	impatient(t)
	r := &recorder{TB: t}
	dir := DataDir(r)
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	point := filepath.Join(dir, "a mount")
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(filepath.Dir(precious), point, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("this machine does not let us mount: %v", err)
	}
	if got := r.end(); !strings.Contains(got, "mount "+point) {
		t.Errorf("failures: %q", got)
	}
	if len(mountsBelow(dir)) > 0 {
		t.Error("it is still mounted")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("what was mounted is damaged: %v", err)
	}
}

func TestEmptyGroups(t *testing.T) {
	t.Parallel()
	top := filepath.Join(t.TempDir(), "harvest")
	for path, procs := range map[string]string{"": "", "/busy": "12\n", "/empty": "", "/parent": "",
		"/parent/empty": "", "/parent/busy": "3\n"} {
		if err := os.MkdirAll(top+path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(top+path+"/cgroup.procs", []byte(procs), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := emptyBelow(top), []string{top + "/empty", top + "/parent/empty"}; !slices.Equal(got, want) {
		t.Errorf("empty groups %q, want %q", got, want)
	}
}

func TestCleanEnv(t *testing.T) {
	for name, value := range map[string]string{
		"IS_SANDBOX": "1", "HARVEST_DATA": "/x", "ANTHROPIC_API_KEY": "k", "GITHUB_TOKEN": "t", "AWS_REGION": "r",
		"CLAUDE_CODE_OAUTH_TOKEN": "t", "npm_config_password": "p", "HARVEST_COVERDIR": "/cover",
		"GOCOVERDIR": "/other", "PLAIN": "stays",
	} {
		t.Setenv(name, value)
	}
	env := CleanEnv()
	if !slices.Contains(env, "PLAIN=stays") || !slices.Contains(env, "GOCOVERDIR=/cover") {
		t.Errorf("something is missing in %q", env)
	}
	for _, pair := range env {
		for _, name := range []string{"IS_SANDBOX", "HARVEST_", "ANTHROPIC", "TOKEN", "AWS_", "password", "/other"} {
			if strings.Contains(pair, name) {
				t.Errorf("%s is in the environment", pair)
			}
		}
	}
}

func TestRequireTool(t *testing.T) {
	t.Setenv("CI", "")
	if got := RequireTool(t, "sh", "dash"); !filepath.IsAbs(got) {
		t.Errorf("sh is at %q", got)
	}
	r := &recorder{TB: t}
	RequireTool(r, "no-such-program", "some-package")
	if r.fatal != "" || !strings.Contains(r.skipped, "apt-get install some-package") {
		t.Errorf("fatal %q, skipped %q", r.fatal, r.skipped)
	}
	t.Setenv("CI", "true")
	r = &recorder{TB: t}
	RequireTool(r, "no-such-program", "some-package")
	if !strings.Contains(r.fatal, "apt-get install some-package") {
		t.Errorf("fatal %q", r.fatal)
	}
}

func TestRootSkips(t *testing.T) {
	t.Parallel()
	r := &recorder{TB: t}
	Root(r)
	if skipped := r.skipped != ""; skipped != (os.Geteuid() != 0) {
		t.Errorf("skipped: %q as user %d", r.skipped, os.Geteuid())
	}
}

func TestUnescape(t *testing.T) {
	t.Parallel()
	if got := unescape(`/a\040b\134c`); got != `/a b\c` {
		t.Errorf("got %q", got)
	}
}
