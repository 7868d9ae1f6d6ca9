// Package host gives whole-run tests a data directory and the built program harvest, which works on it.
package host

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// logName is the file of a data directory with the log of its servers.
const logName = "server.log"

// Host is a data directory, and the environment in which harvest runs on it.
type Host struct {
	T    *testing.T
	Data string          // the data directory
	Env  *testscript.Env // of all commands; PATH names the directory of harvest first
	UID  int             // the user and group that run harvest; 0: those of the test
}

// OnEngines runs test on the fake, with the race detector, and on gVisor.
func OnEngines(t *testing.T, test func(t *testing.T, h *Host)) {
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		test(t, New(t, "fake", nil))
	})
	t.Run("gvisor", func(t *testing.T) {
		t.Parallel()
		test(t, New(t, "gvisor", GVisor(t)))
	})
}

// New returns a host with an empty data directory. setup prepares the environment: GVisor for gVisor, and Race if it is
// nil. When the test ends, the server and its sandboxes are stopped. Nothing of them may be left, and no process may
// have reported a data race.
func New(t *testing.T, engine string, setup func(env *testscript.Env) error) *Host {
	t.Helper()
	if setup == nil {
		setup = Race(t)
	}
	h := &Host{T: t, Data: testenv.DataDir(t)}
	h.Env = &testscript.Env{Vars: append(testenv.CleanEnv(), "HARVEST_DATA="+h.Data, "HARVEST_ENGINE="+engine,
		"HARVEST_POOL=0", "HARVEST_REFRESH=false")}
	if err := setup(h.Env); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := h.Command(context.WithoutCancel(t.Context()), "down",
			"--sandboxes").CombinedOutput(); err != nil {
			t.Errorf("harvest down: %v\n%s\n%s", err, out, h.Log())
		}
		noRaces(t, h.Data, h.Env.Getenv("GORACE"))
	})
	return h
}

// Log returns the log of the servers so far.
func (h *Host) Log() string {
	log, _ := os.ReadFile(filepath.Join(h.Data, logName))
	return string(log)
}

// Command returns a command of harvest with these arguments, which is not started.
func (h *Host) Command(ctx context.Context, args ...string) *exec.Cmd {
	h.T.Helper()
	program := ""
	for _, dir := range filepath.SplitList(h.Env.Getenv("PATH")) {
		if path := filepath.Join(dir, "harvest"); program == "" {
			if _, err := os.Stat(path); err == nil {
				program = path
			}
		}
	}
	if program == "" {
		h.T.Fatal("there is no harvest in the PATH")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir = h.Env.Vars, h.Data
	if h.UID != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(h.UID), Gid: uint32(h.UID)}}
	}
	return cmd
}

// Run runs a command line to its end and returns its outputs and exit code.
func (h *Host) Run(args ...string) (stdout, stderr string, code int) {
	h.T.Helper()
	var out, err bytes.Buffer
	cmd := h.Command(context.WithoutCancel(h.T.Context()), args...)
	cmd.Stdout, cmd.Stderr = &out, &err
	_ = cmd.Run()
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// Must runs a command line that must succeed, and returns its trimmed output.
func (h *Host) Must(args ...string) string {
	h.T.Helper()
	stdout, stderr, code := h.Run(args...)
	if code != 0 {
		h.T.Fatalf("harvest %q: exit code %d\n%s\n%s", args, code, stderr, h.Log())
	}
	return strings.TrimSpace(stdout)
}

// Server returns the server's description of itself.
func (h *Host) Server() api.Server {
	h.T.Helper()
	c := client.New(h.Data)
	defer c.Close()
	s, err := c.Server(h.T.Context())
	if err != nil {
		h.T.Fatal(err)
	}
	return s
}

// Expect reads r up to text.
func Expect(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var got []byte
	buf := make([]byte, 1024)
	for !strings.Contains(string(got), text) {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			t.Fatalf("%q did not come, only %q: %v", text, got, err)
		}
	}
	return string(got)
}

// Ordinary returns a host on which an ordinary user, not root, uses gVisor.
func Ordinary(t *testing.T) *Host {
	t.Helper()
	testenv.Root(t)
	h := New(t, "gvisor", GVisor(t))
	h.UID = 65534
	bin := filepath.Join(h.Data, "bin") // others cannot look into the directory that PATH has
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(testenv.Binary(t), filepath.Join(bin, "harvest")); err != nil {
		t.Fatal(err)
	}
	library := imagetest.Library(t)
	base := filepath.Dir(library.Root(imagetest.Base(t, library)))
	if err := errors.Join(ownImages(filepath.Join(h.Data, "images"), base, h.UID),
		os.Chown(h.Data, h.UID, h.UID)); err != nil {
		t.Fatal(err)
	}
	h.Env.Setenv("PATH", bin+":"+h.Env.Getenv("PATH"))
	h.Env.Setenv("HOME", h.Data)
	return h
}

// ownImages replaces the link to the shared library of images by a library that holds the base image and belongs to
// uid.
func ownImages(link, base string, uid int) error {
	if err := os.Remove(link); err != nil {
		return err
	}
	if err := os.Mkdir(link, 0o700); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(link, filepath.Base(base)), os.DirFS(base)); err != nil {
		return err
	}
	return filepath.WalkDir(link, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, uid))
	})
}

// Has fails t unless the output of a command line contains text.
func (h *Host) Has(t *testing.T, text string, args ...string) {
	t.Helper()
	if out := h.Must(args...); !strings.Contains(out, text) {
		t.Errorf("harvest %q prints %q, without %q", args, out, text)
	}
}

// Lacks fails t if the output of a command line contains text.
func (h *Host) Lacks(t *testing.T, text string, args ...string) {
	t.Helper()
	if out := h.Must(args...); strings.Contains(out, text) {
		t.Errorf("harvest %q prints %q, with %q", args, out, text)
	}
}

// Sandbox returns the record of a sandbox.
func (h *Host) Sandbox(ref string) (sb api.Sandbox) {
	h.T.Helper()
	if err := json.Unmarshal([]byte(h.Must("sandbox", "get", ref, "-o", "json")), &sb); err != nil {
		h.T.Fatal(err)
	}
	return sb
}
