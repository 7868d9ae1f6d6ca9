package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/socket"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

// host is a data directory with the program that works on it.
type host struct {
	t    *testing.T
	data string
	env  *testscript.Env
	uid  int // who runs the program
}

// onEngines runs test on the fake and on gVisor.
func onEngines(t *testing.T, test func(t *testing.T, h *host)) {
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		test(t, newHost(t, "fake", nil))
	})
	t.Run("gvisor", func(t *testing.T) {
		t.Parallel()
		test(t, newHost(t, "gvisor", gvisorSetup(t)))
	})
}

func newHost(t *testing.T, engine string, setup func(env *testscript.Env) error) *host {
	t.Helper()
	h := &host{t: t, data: testenv.DataDir(t)}
	h.env = &testscript.Env{Vars: append(testenv.CleanEnv(), "HARVEST_DATA="+h.data, "HARVEST_ENGINE="+engine, "HARVEST_POOL=0", "HARVEST_REFRESH=false")}
	if setup != nil {
		if err := setup(h.env); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if out, err := h.command(context.WithoutCancel(t.Context()), "down", "--sandboxes").CombinedOutput(); err != nil {
			t.Errorf("harvest down: %v\n%s\n%s", err, out, h.log())
		}
	})
	return h
}

func (h *host) log() string {
	log, _ := os.ReadFile(filepath.Join(h.data, logName))
	return string(log)
}

func (h *host) command(ctx context.Context, args ...string) *exec.Cmd {
	h.t.Helper()
	program := ""
	for _, dir := range filepath.SplitList(h.env.Getenv("PATH")) {
		if path := filepath.Join(dir, "harvest"); program == "" {
			if _, err := os.Stat(path); err == nil {
				program = path
			}
		}
	}
	if program == "" {
		h.t.Fatal("there is no harvest in the PATH")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir = h.env.Vars, h.data
	if h.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(h.uid), Gid: uint32(h.uid)}}
	}
	return cmd
}

// run runs a command line to its end and returns its outputs and exit code.
func (h *host) run(args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	var out, err bytes.Buffer
	cmd := h.command(context.WithoutCancel(h.t.Context()), args...)
	cmd.Stdout, cmd.Stderr = &out, &err
	_ = cmd.Run()
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// must is run for what has to work.
func (h *host) must(args ...string) string {
	h.t.Helper()
	stdout, stderr, code := h.run(args...)
	if code != 0 {
		h.t.Fatalf("harvest %q: exit code %d\n%s\n%s", args, code, stderr, h.log())
	}
	return strings.TrimSpace(stdout)
}

// server returns what the server tells of itself.
func (h *host) server() api.Server {
	h.t.Helper()
	c := client.New(h.data)
	defer c.Close()
	s, err := c.Server(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// expect reads r up to text.
func expect(t *testing.T, r io.Reader, text string) string {
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

// mission: A4, 4.7
func TestTerminal(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, h *host) {
		cmd := h.command(t.Context(), "run", "-it", "--", "sh", "-c", "stty size; read -r line; stty size; echo got $line; read -r never")
		tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 11, Cols: 33})
		if err != nil {
			t.Fatal(err)
		}
		defer tty.Close()
		expect(t, tty, "11 33")
		if err := pty.Setsize(tty, &pty.Winsize{Rows: 22, Cols: 44}); err != nil {
			t.Fatal(err)
		}
		// The new size takes its own way; what is typed must not overtake it.
		time.Sleep(300 * time.Millisecond)
		io.WriteString(tty, "hello\r")
		expect(t, tty, "got hello")
		io.WriteString(tty, "\x03") // control-C is the command's
		_, _ = io.Copy(io.Discard, tty)
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Signals are the command's; one that does not care is ended all the same in the end.
// mission: A4
func TestSignals(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, h *host) {
		for name, c := range map[string]struct {
			script string
			sig    syscall.Signal
			again  bool
			code   int
		}{
			"trapped":     {"trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done", syscall.SIGTERM, false, 9},
			"not trapped": {"echo ready; while :; do sleep 0.05; done", syscall.SIGHUP, false, 129},
			"ignored":     {"trap '' INT; echo ready; while :; do sleep 0.05; done", syscall.SIGINT, true, 130},
		} {
			cmd := h.command(t.Context(), "run", "--", "sh", "-c", c.script)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			expect(t, out, "ready")
			if err := cmd.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			var again sync.WaitGroup
			if c.again {
				// Signals that come too fast after one another are one, so that it takes more than are needed.
				again.Go(func() {
					for {
						select {
						case <-ended:
							return
						case <-time.After(50 * time.Millisecond):
							_ = cmd.Process.Signal(c.sig)
						}
					}
				})
			}
			_, _ = io.Copy(io.Discard, out)
			close(ended)
			again.Wait()
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != c.code {
				t.Errorf("%s: %v, want %d", name, err, c.code)
			}
		}
	})
}

// Whoever runs something and is killed leaves nothing behind.
// mission: A3
func TestClientKilled(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, h *host) {
		cmd := h.command(t.Context(), "run", "--", "sh", "-c", "echo ready; sleep 1000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		expect(t, out, "ready")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		for h.server().Sandboxes > 0 {
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// The server is killed while commands run: the next one has their whole output and exit codes.
// mission: A5
func TestServerKilled(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, h *host) {
		h.must("sandbox", "create", "--name", "box")
		const script = "i=0; while [ $i -lt 20 ]; do echo line $i; i=$((i+1)); sleep 1; done; echo err >&2; exit 7"
		detached := h.must("sandbox", "exec", "-d", "box", "--", "sh", "-c", script)
		cmd := h.command(t.Context(), "sandbox", "exec", "box", "--", "sh", "-c", script)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		expect(t, out, "line 3")
		if err := syscall.Kill(h.server().PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 75 || !strings.Contains(stderr.String(), "harvest sandbox logs sbx_") {
			t.Errorf("who waited for the command got exit code %d and %q", code, stderr.String())
		}
		var all []api.Process
		if err := json.Unmarshal([]byte(h.must("sandbox", "ps", "-o", "json", "box")), &all); err != nil || len(all) != 2 {
			t.Fatalf("processes: %v, %v", all, err)
		}
		want := ""
		for i := range 20 {
			want += "line " + strconv.Itoa(i) + "\n"
		}
		for _, p := range all {
			stdout, stderr, code := h.run("sandbox", "logs", "box", p.ID)
			if stdout != want || stderr != "err\n" || code != 7 {
				t.Errorf("process %s (detached: %t): %q, %q, %d", p.ID, p.ID == detached, stdout, stderr, code)
			}
		}
	})
}

// Many who need a server at the same time start one.
// mission: A11
func TestStartTogether(t *testing.T) {
	t.Parallel()
	h := newHost(t, "fake", nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, stderr, code := h.run("sandbox", "create"); code != 0 {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
	wg.Wait()
	if s := h.server(); s.Sandboxes != 8 || !s.Background {
		t.Errorf("%+v", s)
	}
}

// A data directory of somebody else is refused, and nothing is written there.
func TestSomebodyElsesData(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := newHost(t, "fake", nil)
	theirs := filepath.Join(t.TempDir(), "theirs")
	if err := os.Mkdir(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(theirs, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"sandbox ls", "up"} {
		_, stderr, code := h.run(append([]string{"--data", theirs}, strings.Fields(command)...)...)
		if code != 3 || !strings.Contains(stderr, "belongs to") || !strings.Contains(stderr, "try:") {
			t.Errorf("%s: exit code %d, %s", command, code, stderr)
		}
	}
	if left, err := os.ReadDir(theirs); err != nil || len(left) > 0 {
		t.Errorf("written there: %v, %v", left, err)
	}
}

// A server that dies while it starts is not waited for, and its log is named.
func TestServerDiesAtStart(t *testing.T) {
	t.Parallel()
	h := newHost(t, "fake", nil)
	if err := os.WriteFile(filepath.Join(h.data, "harvest.db"), bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := h.run("sandbox", "ls")
	if code != 1 || !strings.Contains(stderr, "damaged") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if err := os.Remove(filepath.Join(h.data, "harvest.db")); err != nil {
		t.Fatal(err)
	}
}

// oldServer answers as a server of another version, until it is asked to end.
func oldServer(t *testing.T, data string, background bool) (ended <-chan struct{}) {
	t.Helper()
	l, err := socket.Listen(data, client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux.HandleFunc("GET "+api.Readyz, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.Server{Status: "ready", Version: "0.0.1", Background: background})
	})
	mux.HandleFunc("GET "+api.Sandboxes, func(w http.ResponseWriter, _ *http.Request) { answer(w, api.List[api.Sandbox]{}) })
	s := &http.Server{Handler: mux}
	mux.HandleFunc("POST "+api.Shutdown, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		close(asked)
		go s.Close()
	})
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return asked
}

func TestOtherVersions(t *testing.T) {
	t.Parallel()
	h := newHost(t, "fake", nil)
	asked := oldServer(t, h.data, true)
	h.must("sandbox", "ls")
	<-asked
	if s := h.server(); s.Version == "0.0.1" {
		t.Errorf("the old server still serves")
	}
	h.must("down")
	oldServer(t, h.data, false)
	_, stderr, code := h.run("sandbox", "ls")
	if code != 0 || !strings.Contains(stderr, "0.0.1") || !strings.Contains(stderr, "harvest down") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// ordinary is a host on which an ordinary user uses gVisor.
func ordinary(t *testing.T) *host {
	t.Helper()
	testenv.Root(t)
	h := newHost(t, "gvisor", gvisorSetup(t))
	h.uid = 65534
	bin := filepath.Join(h.data, "bin") // others cannot look into the directory that PATH has
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(testenv.Binary(t), filepath.Join(bin, "harvest")); err != nil {
		t.Fatal(err)
	}
	library := imagetest.Library(t)
	base := filepath.Dir(library.Root(imagetest.Base(t, library)))
	if err := errors.Join(ownImages(filepath.Join(h.data, "images"), base, h.uid), os.Chown(h.data, h.uid, h.uid)); err != nil {
		t.Fatal(err)
	}
	h.env.Setenv("PATH", bin+":"+h.env.Getenv("PATH"))
	h.env.Setenv("HOME", h.data)
	return h
}

// As an ordinary user everything works the same.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	h := ordinary(t)
	if out := h.must("run", "--code", "import os; print(6*7, os.getuid())"); out != "42 0" {
		t.Errorf("it printed %q", out)
	}
	if _, stderr, code := h.run("run", "-v", "data:/data", "--", "sh", "-c", "echo kept > /data/file; exit 3"); code != 3 {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if out := h.must("run", "-v", "data:/data", "--", "cat", "/data/file"); out != "kept" {
		t.Errorf("it printed %q", out)
	}
	if out := h.must("doctor"); !strings.Contains(out, "subordinate ids") || !strings.Contains(out, "rootless") {
		t.Errorf("doctor: %s", out)
	}
}

// Where ordinary users cannot make user namespaces, they are told what to do, and nothing runs without isolation.
//
// mission: A9
func TestOrdinaryUserWithoutNamespaces(t *testing.T) {
	t.Parallel()
	h := ordinary(t)
	cmd := h.command(t.Context(), "run", "--code", "print(6*7)")
	// The limit of user namespaces belongs to a user namespace, of which this is one.
	const without = `echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --reuid "$1" --regid "$1" --clear-groups "$0" "${@:2}"`
	cmd.Args = append([]string{"bash", "-c", without, cmd.Path, strconv.Itoa(h.uid)}, cmd.Args[1:]...)
	cmd.Path = "/bin/bash"
	everybody := []syscall.SysProcIDMap{{Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: everybody, GidMappings: everybody, GidMappingsEnableSetgroups: true}
	out, err := cmd.CombinedOutput()
	if err == nil || bytes.Contains(out, []byte("42\n")) || !bytes.Contains(out, []byte("does not let ordinary users make user namespaces")) ||
		!bytes.Contains(out, []byte("run as root, or allow them")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// ownImages replaces a link to the images of all tests, which others add to and remove from, by a library of the base image that belongs to uid.
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
