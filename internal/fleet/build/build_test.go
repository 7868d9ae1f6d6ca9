package build_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/build"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
	"github.com/RelevanceAI/harvest/test/stubs/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// house is a Runner on an Engine whose commands succeed at once.
type house struct {
	*sandboxtest.Engine
	build.Runner
	fleet *fleet.Fleet
}

func newHouse(t *testing.T, set ...func(*engine.Capabilities)) *house {
	t.Helper()
	h := &house{Engine: sandboxtest.New(t)}
	h.Play = sandboxtest.Prints(engine.Exit{}, "", "")
	h.Can.Snapshot, h.Can.Network, h.Can.Hostname = true, true, true
	h.Can.Limits = []string{"cpu", "memory", "processes", "disk", "files"}
	for _, change := range set {
		change(&h.Can)
	}
	h.fleet = sandboxtest.Open(t, h.Engine, fleet.Options{Machine: spec.Machine{CPU: 8, Memory: 16 << 30},
		Timeouts: spec.Timeouts{MaxLife: 30 * time.Hour}})
	h.Runner = build.New(h.fleet, h.Engine.Volumes())
	return h
}

// last returns the command that was started last.
func (h *house) last() engine.Command {
	all := h.Commands()
	return all[len(all)-1]
}

// machine starts a machine, and closes it at the end of the test.
func (h *house) machine(t *testing.T, setup dockerfile.Setup) dockerfile.Machine {
	t.Helper()
	m, err := h.Start(t.Context(), setup)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m
}

var setup = dockerfile.Setup{Image: "base", Network: "default", Title: "RUN true"}

// TestStart checks the sandbox of a stage: all processors, half of the memory, its volumes.
//
// mission: B2
func TestStart(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	with := setup
	with.Mounts = []dockerfile.Mount{{Volume: "c", Path: "/c"}, {Volume: "r", Path: "/r", ReadOnly: true}}
	m := h.machine(t, with)
	all, err := h.fleet.List(t.Context(), record.BuildAccount, record.Filter{})
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	sb := all[0]
	if sb.Limits.CPU != 8 || sb.Limits.Memory != 8<<30 || sb.Network.Mode != "default" ||
		h.Specs()[0].Hostname != "build" {
		t.Errorf("%+v", sb)
	}
	want := []spec.Mount{{Name: "c", Path: "/c"}, {Name: "r", Path: "/r", ReadOnly: true}}
	if !slices.Equal(sb.Volumes, want) {
		t.Errorf("volumes: %+v", sb.Volumes)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := h.fleet.List(t.Context(), record.BuildAccount, record.Filter{}); err != nil || len(left) != 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
}

// TestStartClears checks that a machine begins without the sandbox's directories in /tmp, and without /tmp if the image
// has none; and that a machine that cannot begin ends.
func TestStartClears(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, bare := range []bool{false, true} {
		with := setup
		with.Bare = bare
		h.machine(t, with)
		want := []string{dockerfile.MountProgram, "clear", "/tmp/.X11-unix", "/tmp"}
		if !bare {
			want = want[:3]
		}
		if cmd := h.last(); !slices.Equal(cmd.Args, want) || !cmd.Own || cmd.User != "0" {
			t.Errorf("bare %v: %+v", bare, cmd)
		}
	}
	h = newHouse(t)
	h.Play = sandboxtest.Prints(engine.Exit{Code: 1}, "", "no")
	if _, err := h.Start(t.Context(), setup); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a machine that cannot begin: %v", err)
	}
	if left, err := h.Engine.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestStartOnLesserEngines checks builds on engines that lack something.
func TestStartOnLesserEngines(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(c *engine.Capabilities) { c.Snapshot = false })
	if _, err := h.Start(t.Context(), setup); errors.KindOf(err) != errors.Unsupported || errors.RemedyOf(err) == "" {
		t.Errorf("without snapshots: %v", err)
	}
	h = newHouse(t, func(c *engine.Capabilities) { c.Network, c.Limits = false, nil })
	h.machine(t, setup)
	if s := h.Specs()[0]; s.Network.Mode != "none" || s.Limits.CPU != 0 || s.Limits.Memory != 0 {
		t.Errorf("%+v, %+v", s.Network, s.Limits)
	}
}

// TestStartFails checks that a build whose sandbox cannot be created leaves none.
func TestStartFails(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.FailNext(fake.OpCreate, errors.Newf(errors.Exhausted, "boom"))
	if m, err := h.Start(t.Context(), setup); m != nil || errors.KindOf(err) != errors.Exhausted {
		t.Errorf("%v, %v", m, err)
	}
	if left, err := h.Engine.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestRun checks the command that a step becomes, and the result of each of its ends.
//
// mission: B2
func TestRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		exit    engine.Exit
		code    int
		kind    errors.Kind
		crashed string
	}{
		"success":       {engine.Exit{}, 0, "", ""},
		"failure":       {engine.Exit{Code: 3}, 3, "", ""},
		"crash":         {engine.Exit{Code: 3, Crashed: "process node died"}, 3, "", "process node died"},
		"crash ignored": {engine.Exit{Crashed: "process node died"}, 0, "", ""},
		"disk is full":  {engine.Exit{Code: 3, OutOfSpace: true, Crashed: "process node died"}, 3, "", ""},
		"out of memory": {engine.Exit{Code: 137, Signal: "KILL", OutOfMemory: true}, 0, errors.Exhausted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			m := h.machine(t, setup)
			h.Play = sandboxtest.Prints(c.exit, "hello", "")
			var out bytes.Buffer
			crashed := ""
			code, err := m.Run(t.Context(), dockerfile.Command{Args: []string{"a", "b"},
				Env: map[string]string{"X": "y"},
				Dir: "/src", User: "7:8", Stdout: &out, Crashed: func(why string) { crashed = why }})
			if code != c.code || err != nil && errors.KindOf(err) != c.kind || (err == nil) != (c.kind == "") {
				t.Errorf("%d, %v, want %d, %s", code, err, c.code, c.kind)
			}
			if c.kind != "" && errors.RemedyOf(err) == "" {
				t.Error("no remedy")
			}
			if crashed != c.crashed || out.String() != "hello" {
				t.Errorf("crashed: %q, output: %q", crashed, &out)
			}
			cmd := h.last()
			if !slices.Equal(cmd.Args, []string{"a", "b"}) || cmd.Env["X"] != "y" || cmd.Dir != "/src" ||
				cmd.User != "7:8" || !cmd.Merged || cmd.Own {
				t.Errorf("%+v", cmd)
			}
		})
	}
}

// TestRunWithoutCrashed checks that a command without a function for crashes may crash, and that both its streams
// reach their writers.
func TestRunWithoutCrashed(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	m := h.machine(t, setup)
	h.Play = sandboxtest.Prints(engine.Exit{Code: 1, Crashed: "process node died"}, "out", "err")
	var out, stderr bytes.Buffer
	code, err := m.Run(t.Context(), dockerfile.Command{Args: []string{"a"}, Dir: "/", Stdout: &out, Stderr: &stderr})
	if code != 1 || err != nil || out.String() != "out" || stderr.String() != "err" || h.last().Merged {
		t.Errorf("%d, %v, %q, %q", code, err, &out, &stderr)
	}
}

// TestMissingOutput checks that the log of a build says where output is missing, and that a command fails whose output
// is data.
func TestMissingOutput(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	m := h.machine(t, setup)
	h.Play = func(p *sandboxtest.Process, cmd engine.Command) {
		_, _ = io.WriteString(cmd.Stdout, "one")
		cmd.Truncated(7)
		_, _ = io.WriteString(cmd.Stdout, "two")
		p.End(engine.Exit{})
	}
	var log, data bytes.Buffer
	code, err := m.Run(t.Context(), dockerfile.Command{Args: []string{"a"}, Dir: "/", Stdout: &log})
	if code != 0 || err != nil || !strings.HasPrefix(log.String(), "one\nharvest: 7 bytes") ||
		!strings.HasSuffix(log.String(), "\ntwo") {
		t.Errorf("%d, %v, log %q", code, err, &log)
	}
	_, err = m.Run(t.Context(), dockerfile.Command{Args: []string{"a"}, Dir: "/", Stdout: &data, Stderr: io.Discard})
	if errors.KindOf(err) != errors.Exhausted || errors.RemedyOf(err) == "" || data.String() != "onetwo" {
		t.Errorf("%v, data %q", err, &data)
	}
}

// TestRunEndsWithItsBuild checks that a command is killed when its build ends, that Run waits for its end, and that the
// error is the cause; and that a command has the longest life of a sandbox and no more.
func TestRunEndsWithItsBuild(t *testing.T) {
	t.Parallel()
	gone := errors.Newf(errors.Canceled, "the client is gone")
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		m := h.machine(t, setup)
		var running *sandboxtest.Process
		h.Play = func(p *sandboxtest.Process, _ engine.Command) { running = p }
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(gone) })
		begin := time.Now()
		code, err := m.Run(ctx, dockerfile.Command{Args: []string{"a"}, Dir: "/", Stdout: io.Discard})
		if code != 0 || !errors.Is(err, gone) || time.Since(begin) != time.Minute+time.Second {
			t.Errorf("%d, %v after %s", code, err, time.Since(begin))
		}
		if !running.Ended() {
			t.Error("the command still runs")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		m := h.machine(t, setup)
		h.Play = func(*sandboxtest.Process, engine.Command) {}
		begin := time.Now()
		_, err := m.Run(t.Context(), dockerfile.Command{Args: []string{"a"}, Dir: "/", Stdout: io.Discard})
		if took := time.Since(begin); errors.KindOf(err) != errors.Timeout && errors.KindOf(err) != errors.Gone ||
			took < 24*time.Hour || took > 31*time.Hour {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// TestRunFails checks that a command that cannot start has an error, also after the end of the machine.
func TestRunFails(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	m := h.machine(t, setup)
	if _, err := m.Run(t.Context(), dockerfile.Command{Dir: "/"}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("without arguments: %v", err)
	}
	if err := m.Snapshot(t.Context(), io.Discard); errors.KindOf(err) != errors.Unsupported {
		t.Errorf("a snapshot of an engine that makes none: %v", err)
	}
	for range 2 {
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Run(t.Context(), dockerfile.Command{Args: []string{"a"}, Dir: "/"}); err == nil {
		t.Error("a command ran after the end")
	}
	if err := m.CopyIn(t.Context(), "/", strings.NewReader("")); err == nil {
		t.Error("files were copied after the end")
	}
}

// TestMounts checks that a machine runs Harvest's program for mounts as root, and gives its state to the unmount, once.
//
// mission: B2
func TestMounts(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	m := h.machine(t, setup)
	begun := len(h.Commands())
	if err := m.Unmount(t.Context(), "/x"); err != nil || len(h.Commands()) != begun {
		t.Errorf("unmount of nothing: %v, %+v", err, h.Commands())
	}
	h.Play = sandboxtest.Prints(engine.Exit{}, "the state", "")
	mounts := []dockerfile.FileMount{{Path: "/run/secrets/s"}}
	if err := m.Mount(t.Context(), mounts); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(mounts)
	if err != nil {
		t.Fatal(err)
	}
	cmd := h.last()
	if want := []string{dockerfile.MountProgram, "mount", string(text)}; !slices.Equal(cmd.Args, want) || !cmd.Own ||
		cmd.User != "0" || cmd.Dir != "/" {
		t.Errorf("%+v", cmd)
	}
	for range 2 {
		if err := m.Unmount(t.Context(), "/x", "/y"); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{dockerfile.MountProgram, "unmount", "the state", "/x", "/y"}
	if all := h.Commands(); len(all) != begun+2 || !slices.Equal(all[begun+1].Args, want) {
		t.Errorf("%+v", all)
	}
}

// TestMountsFail checks the errors of the program for mounts, and that a failed unmount is not tried again.
func TestMountsFail(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	m := h.machine(t, setup)
	h.Play = sandboxtest.Prints(engine.Exit{Code: 1}, "state", " no such file\n")
	err := m.Mount(t.Context(), nil)
	if errors.KindOf(err) != errors.Invalid || !strings.HasSuffix(err.Error(), ": no such file") ||
		!strings.Contains(err.Error(), "mount files in sandbox") {
		t.Errorf("mount: %v", err)
	}
	if err = m.Unmount(t.Context()); errors.KindOf(err) != errors.Invalid || !strings.Contains(err.Error(), "unmount") {
		t.Errorf("unmount: %v", err)
	}
	if err := m.Unmount(t.Context()); err != nil {
		t.Errorf("unmount again: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		m := h.machine(t, setup)
		h.Play = func(*sandboxtest.Process, engine.Command) {}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := m.Mount(ctx, nil); errors.KindOf(err) != errors.Timeout {
			t.Errorf("a mount that does not end: %v", err)
		}
	})
}

// TestVolumes checks that builds find and remove their own volumes only, and that engines without volumes have none.
//
// mission: B2
func TestVolumes(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	with := setup
	with.Mounts = []dockerfile.Mount{{Volume: "c", Path: "/c"}}
	m := h.machine(t, with)
	if _, err := h.Engine.Volumes().Create(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	all, err := h.Runner.Volumes(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "c" || all[0].Created.IsZero() {
		t.Errorf("%+v, %v", all, err)
	}
	if err := h.RemoveVolume(t.Context(), "mine"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("the volume of an account: %v", err)
	}
	if err := h.RemoveVolume(t.Context(), "c"); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a volume in use: %v", err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.RemoveVolume(t.Context(), "c"); err != nil {
		t.Error(err)
	}
	if all, err := h.Runner.Volumes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	h = newHouse(t, func(c *engine.Capabilities) { c.Volumes = false })
	if all, err := h.Runner.Volumes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("without volumes: %+v, %v", all, err)
	}
	if err := h.RemoveVolume(t.Context(), "c"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("without volumes: %v", err)
	}
}
