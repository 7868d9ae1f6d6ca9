package enginetest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A3, A11

var contractChecks = []check{
	{"contract/capabilities", "an engine reports its isolation, and the weak points of this machine", nil,
		checkCapabilities},
}

var lifecycleChecks = []check{
	{"create/list and open", "a sandbox is listed and can be opened until it is destroyed", nil, checkList},
	{"create/given up", "a Create that is given up leaves nothing", nil, checkCreateCanceled},
	{"create/refused", "a Create that fails leaves nothing", nil, checkCreateRefused},
	{"create/same id", "of two sandboxes with one id the second is a Conflict, also at the same time",
		nil, checkSameID},
	{"create/stages", "Stage receives the steps of Create", nil, checkStages},
	{"create/outlives its context", "sandboxes and commands go on when the contexts of Create and Start end", nil,
		checkContexts},
	{"open/unknown", "an unknown handle is NotFound", nil, checkOpenUnknown},
	{"destroy/twice", "Destroy can be repeated, also at the same time and by another one's handle", nil,
		checkDestroyTwice},
	{"destroy/while commands run", "Destroy ends running commands, and their Waits return", nil, checkDestroyRunning},
	{"destroy/while copying", "Destroy ends copies that are under way", nil, checkDestroyCopying},
	{"destroy/afterwards", "a destroyed sandbox answers with Conflict", nil, checkDestroyed},
	{"destroy/wait", "Wait of a sandbox returns when it is destroyed, and says so; it can be given up", nil,
		checkSandboxWait},
}

func checkCapabilities(t *testing.T, s *suite) {
	c := s.engine.Capabilities()
	if c.Isolation == "" || s.engine.Name() == "" {
		t.Errorf("no isolation or no name: %q, %+v", s.engine.Name(), c)
	}
	for _, l := range c.Limits {
		if !slices.Contains([]string{"cpu", "memory", "processes", "disk", "files", "volume_files"}, l) {
			t.Errorf("there is no limit %q", l)
		}
	}
	if !c.Isolated && len(c.Missing) == 0 {
		t.Error("an engine without isolation says that nothing is missing")
	}
	_, warmer := s.engine.(engine.Warmer)
	_, opener := s.shared.(engine.ProcessOpener)
	if c.Warm && !warmer || c.Reopen && !opener {
		t.Errorf("it announces warm %v and reopen %v, and implements %v and %v", c.Warm, c.Reopen, warmer, opener)
	}
	if _, ok := s.shared.(engine.Checkpointer); c.Memory != ok {
		t.Errorf("it announces memory %v, and implements %v", c.Memory, ok)
	}
}

// wantNone fails t if List returns any sandbox.
func wantNone(t *testing.T, s *suite, when string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), probe.Patience)
	defer cancel()
	if list, err := s.engine.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("%s, List has %+v, %v", when, list, err)
	}
}

func checkList(t *testing.T, s *suite) {
	s = s.separate(t)
	wantNone(t, s, "at first")
	a, b := s.create(t, engine.Spec{ID: "a"}), s.create(t, engine.Spec{ID: "b_-2"})
	list, err := s.engine.List(probe.Patient(t))
	if err != nil || len(list) != 2 || !slices.Contains(list, a.Handle()) || !slices.Contains(list, b.Handle()) {
		t.Errorf("List: %+v, %v; want %+v and %+v", list, err, a.Handle(), b.Handle())
	}
	for _, sb := range []engine.Sandbox{a, b} {
		again, err := s.engine.Open(probe.Patient(t), sb.Handle())
		if err != nil || again.Handle() != sb.Handle() {
			t.Fatalf("Open: %v", err)
		}
		probe.Start(t, again, probe.Sh("echo works")).Expect(t, engine.Exit{}, "works\n")
	}
	if err := a.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	if list, err := s.engine.List(probe.Patient(t)); err != nil || len(list) != 1 || list[0] != b.Handle() {
		t.Errorf("List: %+v, %v; want %+v", list, err, b.Handle())
	}
	_, err = s.engine.Open(probe.Patient(t), a.Handle())
	probe.WantKind(t, "Open of a destroyed sandbox", err, errors.NotFound)
	probe.Start(t, b, probe.Sh("echo works")).Expect(t, engine.Exit{}, "works\n")
	if again := s.create(t, engine.Spec{ID: "a"}); again.Handle().ID != "a" {
		t.Errorf("the second a has the handle %+v", again.Handle())
	}
}

func checkCreateCanceled(t *testing.T, s *suite) {
	s = s.separate(t)
	if _, err := s.engine.Create(canceled(t), s.spec(engine.Spec{})); !errors.Is(err, errors.Canceled) {
		t.Errorf("Create with a canceled context: %v", err)
	}
	for _, ms := range []time.Duration{0, 1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 120, 200} {
		sb, err := s.engine.Create(soon(t, ms*time.Millisecond), s.spec(engine.Spec{ID: "given-up"}))
		if err != nil {
			if !errors.Is(err, errors.Timeout) {
				t.Errorf("Create given up after %d ms: %v, want Timeout", ms, err)
			}
			wantNone(t, s, "after a Create was given up")
			continue
		}
		if err := sb.Destroy(probe.Patient(t)); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	}
	wantNone(t, s, "at the end")
	s.LeakCheck(t, s.dataDir)
	sb := s.create(t, engine.Spec{ID: "given-up"})
	probe.Start(t, sb, probe.Sh("echo works")).Expect(t, engine.Exit{}, "works\n")
}

func checkCreateRefused(t *testing.T, s *suite) {
	s = s.separate(t)
	for _, name := range []string{"no-such-image", "img_0123456789abcdef", ""} {
		spec := s.spec(engine.Spec{ID: "refused"})
		spec.Image = name
		_, err := s.engine.Create(probe.Patient(t), spec)
		probe.WantKind(t, "an unknown image", err, errors.NotFound)
	}
	if s.engine.Capabilities().Volumes {
		_, err := s.engine.Create(probe.Patient(t),
			s.spec(engine.Spec{ID: "refused", Mounts: []engine.Mount{{Volume: "no-such-volume", Path: "/mnt/x"}}}))
		probe.WantKind(t, "an unknown volume", err, errors.NotFound)
	}
	if s.engine.Capabilities().Users {
		_, err := s.engine.Create(probe.Patient(t), s.spec(engine.Spec{ID: "refused", User: "no-such-user"}))
		if err == nil { // an engine may notice this only at the first command
			t.Log("a user that does not exist is accepted by Create")
			s.destroyID(t, "refused")
		} else {
			probe.WantKind(t, "an unknown user", err, errors.Invalid)
		}
	}
	wantNone(t, s, "after refusals")
	s.LeakCheck(t, s.dataDir)
	s.create(t, engine.Spec{ID: "refused"})
}

// destroyID destroys the sandbox with that ID.
func (s *suite) destroyID(t *testing.T, id string) {
	t.Helper()
	list, err := s.engine.List(probe.Patient(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range list {
		if h.ID != id {
			continue
		}
		sb, err := s.engine.Open(probe.Patient(t), h)
		if err == nil {
			err = sb.Destroy(probe.Patient(t))
		}
		if err != nil {
			t.Errorf("destroy %s: %v", id, err)
		}
	}
}

func checkSameID(t *testing.T, s *suite) {
	s = s.separate(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var made []engine.Sandbox
	for range 4 {
		wg.Go(func() {
			sb, err := s.engine.Create(probe.Patient(t), s.spec(engine.Spec{ID: "same"}))
			if err != nil {
				probe.WantKind(t, "a second sandbox with the id", err, errors.Conflict)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			made = append(made, sb)
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Fatalf("%d sandboxes have one id", len(made))
	}
	_, err := s.engine.Create(probe.Patient(t), s.spec(engine.Spec{ID: "same"}))
	probe.WantKind(t, "another sandbox with the id", err, errors.Conflict)
	probe.Start(t, made[0], probe.Sh("echo works")).Expect(t, engine.Exit{}, "works\n")
	if err := made[0].Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	s.create(t, engine.Spec{ID: "same"})
}

func checkStages(t *testing.T, s *suite) {
	var mu sync.Mutex
	var names []string
	s.create(t, engine.Spec{Stage: func(name string, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, name)
		if name == "" || took < 0 || took > probe.Patience {
			t.Errorf("stage %q took %v", name, took)
		}
	}})
	mu.Lock()
	defer mu.Unlock()
	if len(names) == 0 {
		t.Error("Stage was never called")
	}
	t.Logf("stages: %q", names)
}

func checkContexts(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(t.Context())
	sb, err := s.engine.Create(ctx, s.spec(engine.Spec{}))
	cancel()
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { s.destroy(t, sb.Handle(), sb) })
	ctx, cancel = context.WithCancel(t.Context())
	out := new(testenv.Output)
	cmd := probe.Sh("sleep 0.3; echo still here; exit 3")
	cmd.Stdout = out
	p, err := sb.Start(ctx, cmd)
	cancel()
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	if exit, err := p.Wait(probe.Patient(t)); err != nil || exit != (engine.Exit{Code: 3}) ||
		out.String() != "still here\n" {
		t.Errorf("Wait: %+v, %v, %q", exit, err, out)
	}
	if _, err := sb.Start(canceled(t), probe.Sh("echo never")); !errors.Is(err, errors.Canceled) {
		t.Errorf("Start with a canceled context: %v", err)
	}
}

func checkOpenUnknown(t *testing.T, s *suite) {
	for _, h := range []engine.Handle{{}, {ID: "nobody", Ref: "nobody"}, {ID: s.shared.Handle().ID, Ref: "../nobody"},
		{ID: "..", Ref: ".."}} {
		_, err := s.engine.Open(probe.Patient(t), h)
		probe.WantKind(t, "Open", err, errors.NotFound)
	}
}

func checkDestroyTwice(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	other, err := s.engine.Open(probe.Patient(t), sb.Handle())
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	var wg sync.WaitGroup
	for _, one := range []engine.Sandbox{sb, other, sb} {
		wg.Go(func() {
			if err := one.Destroy(probe.Patient(t)); err != nil {
				t.Errorf("Destroy at the same time: %v", err)
			}
		})
	}
	wg.Wait()
	for _, one := range []engine.Sandbox{sb, other} {
		if err := one.Destroy(probe.Patient(t)); err != nil {
			t.Errorf("Destroy once more: %v", err)
		}
	}
	wantNone(t, s, "after Destroy")
	s.LeakCheck(t, s.dataDir)
}

func checkDestroyRunning(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	cmd := probe.Sh(`echo ready; trap '' TERM HUP; (setsid sleep 600 &); sleep 600; sleep 600`)
	cmd.Stdin = probe.Silent(t)
	commands := []probe.Command{probe.Start(t, sb, cmd), probe.Start(t, sb, cmd),
		probe.Start(t, sb, probe.Sh("echo ready; while :; do echo noise; done"))}
	if s.engine.Capabilities().Terminal {
		c, _ := typed(t, sb, cmd)
		commands = append(commands, c)
	}
	for _, c := range commands {
		c.Stdout.Until(t, "ready")
	}
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	for _, c := range commands {
		exit, err := c.Wait(probe.Patient(t))
		if err != nil {
			probe.WantKind(t, "Wait of a command in a destroyed sandbox", err, errors.Unavailable)
		} else if exit.Code == 0 {
			t.Errorf("a command in a destroyed sandbox ended with %+v", exit)
		}
		if err := c.Signal(probe.Patient(t), "TERM"); err != nil {
			probe.WantKind(t, "Signal in a destroyed sandbox", err, errors.Conflict)
		}
	}
	wantNone(t, s, "after Destroy")
}

// slow returns a little data at a time, and reports its first read.
type slow struct {
	r     io.Reader
	once  *sync.Once
	begun chan struct{}
}

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(time.Millisecond)
	n, err := s.r.Read(p[:min(len(p), 4096)])
	s.once.Do(func() { close(s.begun) })
	return n, err
}

func checkDestroyCopying(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	probe.Put(t, sb, "/work")
	probe.Script(t, sb, "/work", "head -c 20000000 /dev/zero >big")
	out, err := sb.CopyOut(probe.Patient(t), "/work")
	if err != nil {
		t.Fatalf("CopyOut: %v", err)
	}
	defer out.Close()
	in := slow{large(1 << 30), &sync.Once{}, make(chan struct{})}
	copied := make(chan error, 1)
	go func() { copied <- sb.CopyIn(probe.Patient(t), "/copied", in) }()
	<-in.begun
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	probe.WantKind(t, "CopyIn into a sandbox that is destroyed meanwhile", <-copied, errors.Conflict,
		errors.Unavailable)
	// All data may have been read before. It only matters that the copy ends.
	if n, err := io.Copy(io.Discard, out); err != nil {
		t.Logf("CopyOut gave %d bytes, then %v", n, err)
	}
	wantNone(t, s, "after Destroy")
}

func checkDestroyed(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	p := probe.Start(t, sb, probe.Sh("exit 3"))
	p.End(t)
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	_, err := sb.Start(probe.Patient(t), probe.Sh("true"))
	probe.WantKind(t, "Start", err, errors.Conflict)
	probe.WantKind(t, "CopyIn", sb.CopyIn(probe.Patient(t), "/tmp", bytes.NewReader(probe.Archive(t).Bytes())),
		errors.Conflict)
	_, err = sb.CopyOut(probe.Patient(t), "/tmp")
	probe.WantKind(t, "CopyOut", err, errors.Conflict)
	if opener, ok := sb.(engine.ProcessOpener); ok {
		_, err = opener.Processes(probe.Patient(t))
		probe.WantKind(t, "Processes", err, errors.Conflict)
		_, err = opener.OpenProcess(probe.Patient(t), p.ID(), engine.Stdio{})
		probe.WantKind(t, "OpenProcess", err, errors.Conflict)
	}
	if exit, err := p.Wait(probe.Patient(t)); err != nil || exit != (engine.Exit{Code: 3}) {
		t.Errorf("Wait of a command that had ended before: %+v, %v", exit, err)
	}
}

func checkSandboxWait(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	if _, err := sb.Wait(soon(t, 20*time.Millisecond)); !errors.Is(err, errors.Timeout) {
		t.Errorf("Wait with a time limit: %v, want Timeout", err)
	}
	if _, err := sb.Wait(canceled(t)); !errors.Is(err, errors.Canceled) {
		t.Errorf("Wait that is canceled: %v, want Canceled", err)
	}
	ends := make(chan engine.End, 2)
	for range cap(ends) {
		go func() {
			end, err := sb.Wait(probe.Patient(t))
			if err != nil {
				t.Errorf("Wait: %v", err)
			}
			ends <- end
		}()
	}
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	for range cap(ends) {
		if end := <-ends; !end.Destroyed || end.OutOfMemory {
			t.Errorf("the sandbox ended with %+v", end)
		}
	}
	if end, err := sb.Wait(probe.Patient(t)); err != nil || !end.Destroyed || end.Detail == "" {
		t.Errorf("Wait after the end: %+v, %v", end, err)
	}
}
