package fake_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/engine/proc"
	"github.com/RelevanceAI/harvest/internal/image"
)

// serverEnv turns this test binary into a server that starts a command in the directory named by the variable, and then
// waits to be killed.
const serverEnv = "HARVEST_FAKE_TEST_SERVER"

func TestMain(m *testing.M) {
	fake.Main()
	if dir := os.Getenv(serverEnv); dir != "" {
		serve(dir)
	}
	os.Exit(m.Run())
}

// mission: A1, A3, A4, A11, C1
func TestConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{Open: open, DataDir: dataDir, LeakCheck: noLeaks,
		CopySize: 64 << 20}) // gVisor's suite copies 1 GiB
}

// mission: A1, A3, A4, A11, C1
func TestConformanceWithoutKeeperProcesses(t *testing.T) {
	testenv.Long(t)
	t.Cleanup(proc.Detach(false))
	enginetest.Run(t, enginetest.Harness{Open: open, DataDir: dataDir, LeakCheck: noLeaks, CopySize: 16 << 20})
}

func open(t *testing.T, dir string) engine.Engine {
	t.Helper()
	return openFake(t, dir)
}

func openFake(t *testing.T, dir string) *fake.Engine {
	t.Helper()
	e, err := fake.Open(dir, fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// dataDir returns a directory that commands of other users can reach, unlike t.TempDir.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "harvest-fake-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// noLeaks fails t if destroyed sandboxes have left files or keepers.
func noLeaks(t *testing.T, dir string) {
	t.Helper()
	for _, sub := range []string{"sandboxes", "new", "trash"} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil || len(entries) != 0 {
			t.Errorf("%s has %v, %v", sub, entries, err)
		}
	}
	if pids, err := proc.Keepers(dir); err != nil || len(pids) != 0 {
		t.Errorf("there are keepers %v, %v", pids, err)
	}
}

// fixture is an engine with a sandbox "a".
func fixture(t *testing.T) (*fake.Engine, engine.Sandbox) {
	t.Helper()
	e := openFake(t, dataDir(t))
	sb, err := e.Create(t.Context(), engine.Spec{ID: "a", Image: "base"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, sb
}

func TestFailNext(t *testing.T) {
	t.Parallel()
	e, sb := fixture(t)
	ctx := t.Context()
	ops := map[fake.Op]func() error{
		fake.OpCreate: func() error { _, err := e.Create(ctx, engine.Spec{ID: "b", Image: "base"}); return err },
		fake.OpOpen:   func() error { _, err := e.Open(ctx, sb.Handle()); return err },
		fake.OpList:   func() error { _, err := e.List(ctx); return err },
		fake.OpStart: func() error {
			p, err := sb.Start(ctx, engine.Command{Args: []string{"true"}})
			if err == nil {
				_, err = p.Wait(ctx)
			}
			return err
		},
		fake.OpCopyIn: func() error { return sb.CopyIn(ctx, "/", strings.NewReader(strings.Repeat("\x00", 1024))) },
		fake.OpCopyOut: func() error {
			r, err := sb.CopyOut(ctx, "/tmp")
			if err == nil {
				err = r.Close()
			}
			return err
		},
		fake.OpWarm: func() error {
			w, err := e.Warm(ctx, engine.Limits{})
			if err == nil {
				err = w.Destroy(ctx)
			}
			return err
		},
		fake.OpClaim: func() error {
			w, err := e.Warm(ctx, engine.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			claimed, err := w.Claim(ctx, engine.Spec{ID: "c", Image: "base"})
			if err == nil {
				err = claimed.Destroy(ctx)
			}
			return err
		},
	}
	for op, do := range ops {
		e.FailNext(op, errors.Newf(errors.Exhausted, "no room for %s", op))
		e.FailNext(op, errors.Newf(errors.Unavailable, "later"))
		if err := do(); !errors.Is(err, errors.Exhausted) {
			t.Errorf("the first %s: %v, want Exhausted", op, err)
		}
		if err := do(); !errors.Is(err, errors.Unavailable) {
			t.Errorf("the second %s: %v, want Unavailable", op, err)
		}
		if err := do(); err != nil {
			t.Errorf("the third %s: %v", op, err)
		}
	}
	e.FailNext(fake.OpDestroy, errors.Newf(errors.Unavailable, "later"))
	if err := sb.Destroy(ctx); !errors.Is(err, errors.Unavailable) {
		t.Errorf("Destroy: %v, want Unavailable", err)
	}
	if list, err := e.List(ctx); err != nil || !slices.Contains(list, sb.Handle()) {
		t.Errorf("after a Destroy that failed, List has %v, %v", list, err)
	}
}

func TestDelayEndsWithTheContext(t *testing.T) {
	t.Parallel()
	e, sb := fixture(t)
	for _, op := range []fake.Op{fake.OpCreate, fake.OpStart, fake.OpDestroy} {
		e.Delay(op, time.Hour)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := e.Create(ctx, engine.Spec{ID: "b", Image: "base"}); !errors.Is(err, errors.Timeout) {
		t.Errorf("Create: %v, want Timeout", err)
	}
	if _, err := sb.Start(ctx, engine.Command{Args: []string{"true"}}); !errors.Is(err, errors.Timeout) {
		t.Errorf("Start: %v, want Timeout", err)
	}
	if err := sb.Destroy(ctx); !errors.Is(err, errors.Timeout) {
		t.Errorf("Destroy: %v, want Timeout", err)
	}
	e.Delay(fake.OpDestroy, time.Millisecond)
	if list, err := e.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("List: %v, %v; want the first sandbox only", list, err)
	}
}

func TestLose(t *testing.T) {
	t.Parallel()
	e, sb := fixture(t)
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Lose("a"); err != nil {
		t.Fatal(err)
	}
	if end, err := sb.Wait(t.Context()); err != nil || end.Destroyed || end.OutOfMemory || !end.Lost ||
		end.Detail == "" {
		t.Errorf("the sandbox ended with %+v, %v", end, err)
	}
	if exit, err := p.Wait(t.Context()); err == nil && exit.Code == 0 {
		t.Errorf("the command ended with %+v", exit)
	}
	if _, err := e.Open(t.Context(), sb.Handle()); !errors.Is(err, errors.NotFound) {
		t.Errorf("Open: %v, want NotFound", err)
	}
	if list, err := e.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v", list, err)
	}
	if err := e.Lose("a"); !errors.Is(err, errors.NotFound) {
		t.Errorf("Lose of nothing: %v", err)
	}
}

func TestEndOOM(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	e := openFake(t, dir)
	ctx := t.Context()
	sb, err := e.Create(ctx, engine.Spec{ID: "a", Image: "base"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(ctx, engine.Command{Args: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.EndOOM("a"); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(ctx); err != nil || !exit.OutOfMemory || exit.Code != 137 {
		t.Errorf("the command ended with %+v, %v", exit, err)
	}
	if err := e.EndOOM("nobody"); !errors.Is(err, errors.NotFound) {
		t.Errorf("EndOOM of nothing: %v", err)
	}
	for range 2 { // the second time after a restart
		if end, err := sb.Wait(ctx); err != nil || !end.OutOfMemory || end.Destroyed {
			t.Errorf("the sandbox ended with %+v, %v", end, err)
		}
		if _, err := sb.Start(ctx, engine.Command{Args: []string{"true"}}); !errors.Is(err, errors.Conflict) {
			t.Errorf("Start: %v, want Conflict", err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		e = openFake(t, dir)
		if sb, err = e.Open(ctx, sb.Handle()); err != nil {
			t.Fatal(err)
		}
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	noLeaks(t, dir)
}

// serve is the server of TestKilledServer.
func serve(dir string) {
	e, err := fake.Open(dir, fake.Options{})
	if err == nil {
		var sb engine.Sandbox
		sb, err = e.Create(context.Background(), engine.Spec{ID: "a", Image: "base"})
		if err == nil {
			_, err = sb.Start(context.Background(),
				engine.Command{Args: []string{"sh", "-c",
					"for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done; exit 3"}})
		}
	}
	fmt.Println("started", err)
	select {}
}

// mission: A4
func TestKilledServer(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	server := exec.CommandContext(t.Context(), os.Args[0])
	server.Env = append(os.Environ(), serverEnv+"="+dir)
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "started <nil>\n" {
		t.Fatalf("the server said %q, %v", line, err)
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait() // it was killed

	e := openFake(t, dir)
	list, err := e.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("List: %v, %v", list, err)
	}
	sb, err := e.Open(t.Context(), list[0])
	if err != nil {
		t.Fatal(err)
	}
	opener := sb.(engine.ProcessOpener)
	infos, err := opener.Processes(t.Context())
	if err != nil || len(infos) != 1 {
		t.Fatalf("Processes: %v, %v", infos, err)
	}
	var stdout strings.Builder
	p, err := opener.OpenProcess(t.Context(), infos[0].ID, engine.Stdio{Stdout: &stdout})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit != (engine.Exit{Code: 3}) ||
		stdout.String() != "1\n2\n3\n4\n5\n6\n7\n8\n" {
		t.Errorf("Wait: %+v, %v, %q", exit, err, stdout.String())
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	noLeaks(t, dir)
}

// TestIgnoredSignals checks that commands start with the default actions of signals, even if the process of the engine
// was started with ignored ones, as nohup does.
func TestIgnoredSignals(t *testing.T) {
	ignored := []os.Signal{syscall.SIGHUP, syscall.SIGINT}
	for _, detached := range []bool{true, false} {
		func() {
			defer proc.Detach(detached)()
			signal.Ignore(ignored...)
			defer signal.Reset(ignored...)
			sb, err := openFake(t, dataDir(t)).Create(t.Context(), engine.Spec{ID: "a", Image: "base"})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"HUP", "INT"} {
				p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sh", "-c", "kill -" + name + " $$"}})
				if err != nil {
					t.Fatal(err)
				}
				if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != name {
					t.Errorf("keepers are processes: %t, SIG%s: the command ended with %+v, %v",
						detached, name, exit, err)
				}
			}
			if err := sb.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		}()
	}
}

// TestKilledKeeper checks that a killed keeper loses its command's exit, but not the output.
func TestKilledKeeper(t *testing.T) {
	t.Cleanup(proc.Detach(true))
	dir := dataDir(t)
	e := openFake(t, dir)
	sb, err := e.Create(t.Context(), engine.Spec{ID: "a", Image: "base"})
	if err != nil {
		t.Fatal(err)
	}
	var stdout, again strings.Builder
	started := make(chan struct{})
	cmd := engine.Command{Args: []string{"sh", "-c", "echo begin; sleep 600"},
		Stdout: &signalling{w: &stdout, done: started}}
	p, err := sb.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	<-started
	pids, err := proc.Keepers(dir)
	if err != nil || len(pids) != 1 {
		t.Fatalf("keepers %v, %v", pids, err)
	}
	keeper, err := os.FindProcess(pids[0])
	if err == nil {
		err = keeper.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, errors.Unavailable) {
		t.Errorf("Wait: %v, want Unavailable", err)
	}
	if err := p.Signal(t.Context(), "TERM"); !errors.Is(err, errors.Unavailable) {
		t.Errorf("Signal: %v, want Unavailable", err)
	}
	p, err = sb.(engine.ProcessOpener).OpenProcess(t.Context(), p.ID(), engine.Stdio{Stdout: &again})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, errors.Unavailable) || again.String() != "begin\n" {
		t.Errorf("Wait: %v, %q", err, again.String())
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	noLeaks(t, dir)
}

// signalling closes done at the first write.
type signalling struct {
	w    *strings.Builder
	once sync.Once
	done chan struct{}
}

func (s *signalling) Write(p []byte) (int, error) {
	defer s.once.Do(func() { close(s.done) })
	return s.w.Write(p)
}

func TestImages(t *testing.T) {
	t.Parallel()
	e, sb := fixture(t)
	ctx, images := t.Context(), e.Images()
	base, err := images.Find(ctx, "base")
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{base.ID, base.ID[:8], base.Digest} {
		if got, err := images.Find(ctx, ref); err != nil || got.ID != base.ID {
			t.Errorf("Find(%q): %v, %v", ref, got.ID, err)
		}
	}
	if _, err := images.Build(ctx, image.Spec{Base: "other"}, image.BuildOptions{}); !errors.Is(err, errors.NotFound) {
		t.Errorf("Build of something else: %v", err)
	}
	if err := images.Delete(ctx, base.ID); !errors.Is(err, errors.Conflict) {
		t.Errorf("Delete of an image in use: %v", err)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	if err := images.Delete(ctx, base.ID); err != nil {
		t.Errorf("Delete: %v", err)
	}
	if list, err := images.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v", list, err)
	}
	if err := images.Delete(ctx, base.ID); !errors.Is(err, errors.NotFound) {
		t.Errorf("Delete of nothing: %v", err)
	}
	steps := 0
	built, err := images.Build(ctx, image.Spec{Base: "base"},
		image.BuildOptions{Progress: func(image.Progress) { steps++ }})
	if err != nil || built.ID != base.ID || steps == 0 {
		t.Errorf("Build: %v, %v, %d steps", built.ID, err, steps)
	}
	if list, err := images.List(ctx); err != nil || len(list) != 1 || list[0].ID != base.ID {
		t.Errorf("List: %v, %v", list, err)
	}
}

func TestOpenClearsWhatAKilledProcessLeft(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	for _, sub := range []string{"new/fake-x/root/tmp", "trash/fake-y/processes"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e := openFake(t, dir)
	noLeaks(t, dir)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "sandboxes/fake-z"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sandboxes/fake-z/record.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := fake.Open(dir, fake.Options{}); errors.KindOf(err) != errors.Internal {
		t.Errorf("Open with a damaged record: %v", err)
	}
}

func TestKeptOutputIsBounded(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	const keep = 1 << 20
	e, err := fake.Open(dir, fake.Options{KeepOutput: keep})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := e.Create(t.Context(), engine.Spec{ID: "a", Image: "base"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"head", "-c", "20000000", "/dev/zero"}})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Fatalf("Wait: %+v, %v", exit, err)
	}
	var stored, kept, dropped int64
	err = filepath.Walk(filepath.Join(dir, "sandboxes"), func(_ string, info os.FileInfo, err error) error {
		if err == nil && strings.HasPrefix(info.Name(), "out-") {
			stored += info.Size()
		}
		return err
	})
	if err != nil || stored < keep || stored > 2*keep {
		t.Errorf("%d bytes are stored, want about %d; %v", stored, keep, err)
	}
	p, err = sb.(engine.ProcessOpener).OpenProcess(t.Context(), p.ID(),
		engine.Stdio{Stdout: counting{&kept}, Truncated: func(n int64) { dropped = n }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil || kept < keep || kept+dropped != 20000000 {
		t.Errorf("%d bytes are kept and %d dropped, want %d or more and 20000000 together; %v", kept,
			dropped, keep, err)
	}
	if err := errors.Join(sb.Destroy(t.Context()), e.Close()); err != nil {
		t.Error(err)
	}
	noLeaks(t, dir)
}

// counting counts bytes.
type counting struct{ n *int64 }

func (c counting) Write(p []byte) (int, error) {
	*c.n += int64(len(p))
	return len(p), nil
}
