package kill

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// killedAt is a point at which the server is killed, by the command that leads there. then describes the state that the
// next server must find.
type killedAt struct {
	point string
	args  []string
	then  func(t *testing.T, h *host.Host)
}

// faultHost returns a host whose servers can be killed at named points, with these variables in its environment.
func faultHost(t *testing.T, environ map[string]string) *host.Host {
	t.Helper()
	ordinary := host.GVisor(t)
	return host.New(t, "gvisor", func(env *testscript.Env) error {
		bin := t.TempDir()
		if err := os.Symlink(testenv.FaultBinary(t), filepath.Join(bin, "harvest")); err != nil {
			return err
		}
		err := ordinary(env)
		env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
		for name, value := range environ {
			env.Setenv(name, value)
		}
		return err
	})
}

// TestKilledAtNamedPoints checks that the next server finds a consistent state after SIGKILL at named points of the
// server's work. Everything can be done again, and nothing unknown is left (newHost checks this at the end).
// mission: A8
func TestKilledAtNamedPoints(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := faultHost(t, nil)
	clear := func() { // all tests share their images
		for _, image := range []string{"points/snap:1", "points/snap:2", "points/built:1"} {
			_, _, _ = h.Run("image", "rm", image)
		}
		h.Lacks(t, "points/", "image", "ls")
	}
	clear()
	t.Cleanup(func() { h.Must("sandbox", "rm", "--all"); clear() })
	work := t.TempDir()
	emptyRepository(t, work)
	h.Must("sandbox", "create", "--name", "box", "-v", "files:/files")
	h.Must("secret", "set", "s", "TOKEN=named-points")
	h.Must("agent", "--agent", "scripted", "--repo", work, "/write a.txt one")
	session := h.Must("sessions", "-o", "name")
	dockerfile := filepath.Join(work, "Dockerfile")
	if err := os.WriteFile(dockerfile, []byte("FROM base\nENV POINT=named-points\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	build := []string{"image", "build", "-t", "points/built:1", "-f", dockerfile, work}
	for _, k := range []killedAt{
		{"sandbox.recorded", []string{"sandbox", "create", "--name", "new"}, newSandboxFails},
		{"sandbox.made", []string{"sandbox", "create", "--name", "new", "--secret", "s", "-v", "more:/more"},
			newSandboxFails},
		{"exec.started", []string{"sandbox", "exec", "box", "--", "sh", "-c", "echo begun; sleep 1000"},
			func(t *testing.T, h *host.Host) {
				testenv.Eventually(t, "the command has begun",
					func() bool { return strings.Contains(h.Must("sandbox", "ps", "box", "-o", "json"), "begun") })
			}},
		{"snapshot.taken", []string{"sandbox", "snapshot", "box", "--name", "points/snap:1"},
			func(t *testing.T, h *host.Host) {
				h.Lacks(t, "points/snap", "image", "ls")
				h.Must("sandbox", "snapshot", "box", "--name", "points/snap:1")
			}},
		{"snapshot.published", []string{"sandbox", "snapshot", "box", "--name", "points/snap:2"},
			func(t *testing.T, h *host.Host) {
				h.Must("sandbox", "snapshot", "box", "--name", "points/snap:2")
				h.Must("run", "--image", "points/snap:2", "--", "true")
			}},
		{"image.filled", build, func(t *testing.T, h *host.Host) {
			h.Lacks(t, "points/built", "image", "ls")
			h.Must(build...)
			h.Has(t, "named-points", "run", "--image", "points/built:1", "--", "sh", "-c", "echo $POINT")
		}},
		{"volume.made", []string{"volume", "create", "third"}, func(t *testing.T, h *host.Host) {
			h.Lacks(t, "third", "volume", "ls")
			h.Must("volume", "create", "third")
		}},
		{"volume.trashed", []string{"volume", "rm", "third"}, func(t *testing.T, h *host.Host) {
			h.Lacks(t, "third", "volume", "ls")
			h.Must("volume", "create", "third")
			h.Must("volume", "rm", "third")
		}},
		{"event.persisted", []string{"sandbox", "create", "--name", "new"}, newSandboxFails},
		{"turn.started", []string{"send", session, "hello again"}, func(t *testing.T, h *host.Host) {
			h.Has(t, "hello at last", "send", session, "hello at last")
		}},
		{"turn.recorded", []string{"send", session, "/write recorded.txt once"}, func(t *testing.T, h *host.Host) {
			h.Has(t, "hello after that", "send", session, "hello after that")
			h.Has(t, "recorded.txt", "diff", session)
		}},
		{"session.committed", []string{"checkout", session}, func(t *testing.T, h *host.Host) {
			cmd := h.Command(t.Context(), "checkout", session)
			cmd.Dir = work
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "harvest/") {
				t.Errorf("checkout: %s, %v", out, err)
			}
		}},
		{"session.recorded", []string{"agent", "--agent", "scripted", "--repo", "none", "-d", "hello"},
			func(t *testing.T, h *host.Host) {
				id, _, _ := strings.Cut(h.Must("sessions", "-o", "name"), "\n")
				h.Has(t, "hello after all", "send", id, "hello after all")
				h.Must("end", "--discard", id)
			}},
		{"rekey.begun", []string{"secret", "rekey"}, secretsOpen},
		{"rekey.sealed", []string{"secret", "rekey"}, secretsOpen},
		{"backup.copied", []string{"backup", "saved.tar"}, func(t *testing.T, h *host.Host) {
			if left, err := filepath.Glob(filepath.Join(h.Data, "uploads", "*")); err != nil || len(left) > 0 {
				t.Errorf("left: %q, %v", left, err)
			}
			if left, err := filepath.Glob(filepath.Join(h.Data, "saved.tar*")); err != nil || len(left) > 0 {
				t.Errorf("a backup that failed is there: %q, %v", left, err)
			}
			h.Must("backup", "saved.tar")
		}},
		{"sandbox.preserved", []string{"sandbox", "suspend", "box"}, boxIsWhole},
		{"sandbox.suspended", []string{"sandbox", "suspend", "box"}, func(t *testing.T, h *host.Host) {
			if got := h.Sandbox("box").Status; got != "suspended" {
				t.Errorf("the sandbox is %s", got)
			}
		}},
		{"sandbox.woken", []string{"sandbox", "wake", "box"}, boxIsWhole},
		{"sandbox.stopping", []string{"sandbox", "rm", "box"}, boxEnds},
		{"sandbox.released", []string{"sandbox", "rm", "box"}, boxEnds},
	} {
		if !t.Run(k.point, func(t *testing.T) { killAt(h, t, k, work) }) {
			t.Fatal(h.Log())
		}
	}
	h.Must("end", "--discard", session)
}

// boxIsWhole checks that a sandbox has its files, asleep or not.
func boxIsWhole(t *testing.T, h *host.Host) {
	h.Has(t, "changed", "sandbox", "exec", "box", "--", "cat", "/changed")
}

// killAt has a server killed and checks the state that the next one finds.
func killAt(h *host.Host, t *testing.T, k killedAt, dir string) {
	t.Helper()
	switch k.point {
	case "sandbox.released":
		h.Must("sandbox", "create", "--name", "box", "-v", "files:/files")
	case "snapshot.published": // another one than before
		h.Must("sandbox", "exec", "box", "--", "sh", "-c", "echo changed > /changed")
	}
	h.Must("down")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := h.Command(ctx, k.args...)
	cmd.Env, cmd.Dir = append(cmd.Env, "HARVEST_FAULT="+k.point), h.Data
	if k.args[0] == "checkout" {
		cmd.Dir = dir
	}
	out, _ := cmd.CombinedOutput()
	if log := h.Log(); !strings.HasSuffix(strings.TrimSpace(log), "killed at "+k.point) {
		_, _, _ = h.Run("down") // the next server is not to be killed
		t.Fatalf("harvest %q did not come to %s: %s", k.args, k.point, out)
	}
	if code := cmd.ProcessState.ExitCode(); code == 0 && k.args[len(k.args)-2] != "-d" && k.args[0] != "sandbox" {
		t.Errorf("harvest %q: exit code 0 although the server was killed: %s", k.args, out)
	}
	h.Must("volume", "ls")                                     // starts the next one
	for line := range strings.Lines(h.Must("sandbox", "ls")) { // unnamed ones belong to a session, which continues
		if f := strings.Fields(line); f[1] != "-" && (f[2] == "creating" || f[2] == "stopping") {
			t.Errorf("the state is not consistent: %s", line)
		}
	}
	k.then(t, h)
	streamIsWhole(h, t)
}

func newSandboxFails(t *testing.T, h *host.Host) {
	t.Helper()
	h.Lacks(t, "new", "sandbox", "ls")
	h.Has(t, "the server ended while it was created", "sandbox", "ls", "--all", "-o", "json")
	h.Must("sandbox", "create", "--name", "new", "--secret", "s", "-v", "more:/more")
	h.Has(t, "named-points", "sandbox", "exec", "new", "--", "sh", "-c", "echo $TOKEN")
	h.Must("sandbox", "rm", "new")
}

func secretsOpen(t *testing.T, h *host.Host) {
	t.Helper()
	h.Has(t, "named-points", "run", "--secret", "s", "--", "sh", "-c", "echo $TOKEN")
	h.Must("secret", "rekey")
	h.Has(t, "named-points", "run", "--secret", "s", "--", "sh", "-c", "echo $TOKEN")
	key, err := os.ReadFile(filepath.Join(h.Data, "secret.key"))
	if lines := strings.Count(string(key), "\n"); err != nil || lines != 2 {
		t.Errorf("the key file has %d lines, %v", lines, err)
	}
}

func boxEnds(t *testing.T, h *host.Host) {
	t.Helper()
	h.Lacks(t, "box", "sandbox", "ls")
	h.Has(t, "box   terminated", "sandbox", "ls", "--all")
}

// streamIsWhole reads all events of the account: no event may be missing or repeated.
func streamIsWhole(h *host.Host, t *testing.T) {
	t.Helper()
	journal := client.New(h.Data)
	defer journal.Close()
	last := int64(0)
	for e, err := range journal.Events(t.Context(), client.Follow{Tail: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		last = e.ID
		break
	}
	next := int64(1)
	for e, err := range journal.Events(t.Context(), client.Follow{}) {
		if err != nil || e.ID != next || e.Type == event.Pruned {
			t.Fatalf("event %d of %d is %+v, %v", next, last, e, err)
		}
		if next++; next > last {
			break
		}
	}
}

// emptyRepository makes a git repository with one commit.
func emptyRepository(t *testing.T, dir string) {
	t.Helper()
	for _, args := range [][]string{{"init", "-q", "-b", "main"},
		{"-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "-q", "--allow-empty", "-m", "one"}} {
		host.RunGit(t, dir, args...)
	}
}
