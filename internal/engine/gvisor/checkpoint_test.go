package gvisor_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// checkpointed makes a checkpoint of a sandbox with a command.
func checkpointed(t *testing.T) (*gvisor.Engine, string) {
	t.Helper()
	dir := testenv.DataDir(t)
	e := open(t, dir)
	sb := create(t, e, engine.Spec{ID: "first"})
	if _, err := sb.Start(t.Context(), engine.Command{Args: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	checkpoint := filepath.Join(dir, "checkpoint")
	if err := sb.(engine.Checkpointer).Checkpoint(t.Context(), checkpoint); err != nil {
		t.Fatal(err)
	}
	return e, checkpoint
}

// refused starts a sandbox from a checkpoint, which must fail with a remedy and leave nothing.
func refused(t *testing.T, what string, e *gvisor.Engine, checkpoint string, kind errors.Kind) {
	t.Helper()
	sb, err := e.Create(t.Context(), engine.Spec{ID: "second", Checkpoint: checkpoint})
	if err == nil {
		_ = sb.Destroy(t.Context())
	}
	if !errors.Is(err, kind) || errors.RemedyOf(err) == "" {
		t.Errorf("%s: %v (%s), want %s and a remedy", what, err, errors.KindOf(err), kind)
	}
	if list, err := e.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%s leaves %+v, %v", what, list, err)
	}
}

// mission: A4
func TestDamagedCheckpointsAreRefused(t *testing.T) {
	testenv.Root(t)
	e, checkpoint := checkpointed(t)
	for _, name := range []string{wire.CheckpointFile, wire.CheckpointState, wire.CheckpointIndex,
		wire.CheckpointPages} {
		path := filepath.Join(checkpoint, name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		half := whole[:len(whole)/2]
		if err := os.WriteFile(path, half, 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, "half of "+name, e, checkpoint, errors.Invalid)
		if name != wire.CheckpointFile {
			changed := append([]byte{}, whole...)
			changed[len(changed)/2] ^= 1
			if err := os.WriteFile(path, changed, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, "a changed bit of "+name, e, checkpoint, errors.Invalid)
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{wire.CheckpointRoot, wire.CheckpointInit, wire.CheckpointPages} {
		path := filepath.Join(checkpoint, name)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		refused(t, "without "+name, e, checkpoint, errors.Invalid)
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}
	sb, err := e.Create(t.Context(), engine.Spec{ID: "second", Checkpoint: checkpoint})
	if err != nil {
		t.Fatalf("the whole one: %v", err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// mission: A4
func TestCheckpointsOfOtherVersionsAreRefused(t *testing.T) {
	testenv.Root(t)
	e, checkpoint := checkpointed(t)
	path := filepath.Join(checkpoint, wire.CheckpointFile)
	for what, change := range map[string]func(*wire.Saved){
		"version":  func(s *wire.Saved) { s.Version = "v0.0.0-20200101000000-000000000000" },
		"platform": func(s *wire.Saved) { s.Platform = "ptrace" },
		"rights":   func(s *wire.Saved) { s.Rootless = !s.Rootless },
	} {
		saved, err := wire.ReadSaved(checkpoint)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		change(saved)
		b, err := json.Marshal(saved)
		if err != nil {
			t.Fatal(err)
		}
		for _, content := range [][]byte{b, whole} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if &content[0] == &b[0] {
				refused(t, "another "+what, e, checkpoint, errors.Unsupported)
			}
		}
	}
}

// TestRestoredSandboxesHaveTheirHostName checks that a sandbox that starts from a checkpoint has its own host name,
// that the names of earlier sandboxes still resolve, and that lines of users stay in /etc/hosts.
//
// mission: A4
func TestRestoredSandboxesHaveTheirHostName(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	sb := create(t, e, engine.Spec{ID: "first"})
	runAs(t, sb, "root", "echo '192.0.2.1 mine' >>/etc/hosts")
	const show = "hostname; cat /etc/hostname; grep -h '^127.0.1.1\\|mine' /etc/hosts | tr '\\t' ' '; "
	if got, want := runAs(t, sb, "1234", show), "first\nfirst\n127.0.1.1 first\n192.0.2.1 mine\n"; got != want {
		t.Errorf("the first sandbox: got %q, want %q", got, want)
	}
	for _, next := range []struct{ id, hostname, want string }{
		{"second", "", "second\nsecond\n127.0.1.1 second first\n192.0.2.1 mine\n"},
		{"third", "named", "named\nnamed\n127.0.1.1 named second first\n192.0.2.1 mine\n"},
	} {
		checkpoint := filepath.Join(dir, "checkpoint-of-"+next.id)
		if err := sb.(engine.Checkpointer).Checkpoint(t.Context(), checkpoint); err != nil {
			t.Fatal(err)
		}
		sb = create(t, e, engine.Spec{ID: next.id, Hostname: next.hostname, Checkpoint: checkpoint})
		if got := runAs(t, sb, "1234", show); got != next.want {
			t.Errorf("the %s sandbox: got %q, want %q", next.id, got, next.want)
		}
	}
}

// TestCheckpointAfterTerminals checks that terminals that had names in /dev/pts are not in a checkpoint, and that
// terminals have names after it.
//
// mission: A4
func TestCheckpointAfterTerminals(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	sb := create(t, e, engine.Spec{ID: "first"})
	named := func(sb engine.Sandbox) {
		t.Helper()
		if got := typedAt(t, sb, "", "tty"); !strings.HasPrefix(got, "/dev/pts/") {
			t.Errorf("a terminal has the name %q", got)
		}
	}
	named(sb)
	checkpoint := filepath.Join(dir, "checkpoint")
	// A background process keeps the terminal of its command, which has ended.
	got := typedAt(t, sb, "", "tty >/dev/null; trap '' HUP; sleep 1000 & echo $!")
	err := sb.(engine.Checkpointer).Checkpoint(t.Context(), checkpoint)
	if !errors.Is(err, errors.Conflict) {
		t.Errorf("a checkpoint while a program has a terminal: %v", err)
	}
	pid := strings.TrimSpace(got)
	runAs(t, sb, "root", "kill -9 "+pid+"; while [ -h /proc/"+pid+"/fd/0 ]; do sleep 0.1; done")
	named(sb)
	if err := sb.(engine.Checkpointer).Checkpoint(t.Context(), checkpoint); err != nil {
		t.Fatal(err)
	}
	named(sb)
	again, err := e.Create(t.Context(), engine.Spec{ID: "second", Checkpoint: checkpoint})
	if err != nil {
		t.Fatal(err)
	}
	named(again)
	if err := again.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// halfway starts a checkpoint of a sandbox with much memory and returns while gVisor is writing it. done gets its
// result.
func halfway(ctx context.Context, t *testing.T, sb engine.Sandbox,
	checkpoint string) (p engine.Process, done <-chan error) {
	t.Helper()
	out := make(chan string, 1)
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"python3", "-c",
		"import os, time; b = os.urandom(200 << 20); print(flush=True); time.sleep(1000)"},
		Stdout: writerFunc(func(b []byte) (int, error) { out <- string(b); return len(b), nil })})
	if err != nil {
		t.Fatal(err)
	}
	<-out
	made := make(chan error, 1)
	go func() { made <- sb.(engine.Checkpointer).Checkpoint(ctx, checkpoint) }()
	for !has(filepath.Join(checkpoint+".part", wire.CheckpointPages)) {
		time.Sleep(time.Millisecond)
	}
	return p, made
}

// TestKeeperIsKilledWhileACheckpointIsMade checks that a checkpoint is made completely or not at all, also if its
// keeper dies.
// mission: A4
func TestKeeperIsKilledWhileACheckpointIsMade(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	checkpoint := filepath.Join(dir, "checkpoint")
	_, done := halfway(t.Context(), t, create(t, e, engine.Spec{ID: "first"}), checkpoint)
	for _, pid := range keepers(t, dir) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	if err := <-done; err == nil {
		t.Error("the checkpoint was made")
	}
	for _, name := range []string{checkpoint, checkpoint + ".part"} {
		if has(name) {
			t.Errorf("%s is left", name)
		}
	}
}

// mission: A4
func TestCheckpointIsGivenUpHalfWay(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	sb := create(t, e, engine.Spec{ID: "first"})
	checkpoint := filepath.Join(dir, "checkpoint")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, done := halfway(ctx, t, sb, checkpoint)
	cancel()
	if err := <-done; err == nil {
		t.Error("a checkpoint that was given up succeeds")
	}
	for _, name := range []string{checkpoint, checkpoint + ".part"} {
		if has(name) {
			t.Errorf("%s is left", name)
		}
	}
	if exit, _ := run(t, sb, "sh", "-c", "exit 4"); exit.Code != 4 {
		t.Errorf("a command after it: %+v", exit)
	}
	if err := sb.(engine.Checkpointer).Checkpoint(t.Context(), checkpoint); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

func has(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
