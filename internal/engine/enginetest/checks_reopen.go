package enginetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A4, A5

var reopenChecks = []check{
	{"reopen/sandboxes", "after a restart, sandboxes are listed, open, and as they were", nil, checkReopenSandbox},
	{"reopen/running command",
		"a command outlives the engine, and is found again with all it wrote meanwhile and its exit", reopen,
		checkReopenRunning},
	{"reopen/ended command", "a command that ended while no engine was there is found with its output and exit", reopen,
		checkReopenEnded},
	{"reopen/input", "a found command can be given input, and its input stays open until then", reopen,
		checkReopenInput},
	{"reopen/control", "a found command can be signalled and killed", reopen, checkReopenControl},
	{"reopen/terminal", "a found terminal works as before", both(reopen, terminals), checkReopenTerminal},
	{"reopen/twice", "a command can be opened often, at the same time and after its end; each gets all output", reopen,
		checkReopenTwice},
	{"reopen/bounded", "kept output is bounded, and dropped bytes are reported", reopen, checkReopenBounded},
	{"reopen/left", "a client that opened a command and leaves is not waited for, and the command continues", reopen,
		checkReopenLeft},
	{"reopen/unknown", "an unknown process is NotFound", reopen, checkReopenUnknown},
	{"reopen/list", "commands are listed as they were started", reopen, checkProcesses},
}

func checkReopenSandbox(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{ID: "reopened-1", Env: map[string]string{"KEPT": "yes"}, Dir: "/kept"})
	probe.Put(t, sb, "/kept", probe.File("file", "content", 0o600))
	before := sb.Handle()
	if before.ID != "reopened-1" || before.Ref == "" {
		t.Errorf("the handle is %+v", before)
	}
	data, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	s.restart(t)
	var h engine.Handle
	if err := json.Unmarshal(data, &h); err != nil {
		t.Fatal(err)
	}
	sb, err = s.engine.Open(probe.Patient(t), h)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if sb.Handle() != before {
		t.Errorf("the handle is %+v now, and was %+v", sb.Handle(), before)
	}
	if list, err := s.engine.List(probe.Patient(t)); err != nil || len(list) != 1 || list[0] != before {
		t.Errorf("List: %+v, %v; want %+v", list, err, before)
	}
	if got := probe.Output(t, sb, probe.Sh(`cat file; echo " $KEPT"`)); got != "content yes\n" {
		t.Errorf("the sandbox has %q", got)
	}
	_, err = s.engine.Create(probe.Patient(t), s.spec(engine.Spec{ID: "reopened-1"}))
	probe.WantKind(t, "a second sandbox with the id of one that was found", err, errors.Conflict)
}

// counter prints numbers to both outputs, one each 100 ms, and exits with 5.
const counter = `i=0; while [ $i -lt %d ]; do i=$((i+1)); echo out $i; echo err $i >&2; sleep 0.1; done; exit 5`

func counted(n int) (stdout, stderr string) {
	for i := range n {
		stdout += fmt.Sprintf("out %d\n", i+1)
		stderr += fmt.Sprintf("err %d\n", i+1)
	}
	return stdout, stderr
}

// found opens a process that must exist.
func found(t *testing.T, opener engine.ProcessOpener, id string, stdin io.Reader) probe.Command {
	t.Helper()
	c := probe.Command{Stdout: new(testenv.Output), Stderr: new(testenv.Output)}
	truncated := int64(0)
	p, err := opener.OpenProcess(probe.Patient(t), id, engine.Stdio{
		Stdin: stdin, Stdout: c.Stdout, Stderr: c.Stderr, Truncated: func(n int64) { truncated = n },
	})
	if err != nil {
		t.Fatalf("OpenProcess: %v", err)
	}
	if p.ID() != id {
		t.Errorf("process %q has the ID %q", id, p.ID())
	}
	if truncated != 0 {
		t.Errorf("%d bytes of a short output are not kept", truncated)
	}
	c.Process = p
	return c
}

// detach starts a command whose output has no reader, and restarts the engine.
func detach(t *testing.T, s *suite, sb engine.Sandbox,
	cmd engine.Command) (engine.Sandbox, engine.ProcessOpener, string) {
	t.Helper()
	p, err := sb.Start(probe.Patient(t), cmd)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	s.restart(t)
	again, opener := s.reopened(t, sb.Handle())
	return again, opener, p.ID()
}

func checkReopenRunning(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	_, opener, id := detach(t, s, sb, probe.Sh(fmt.Sprintf(counter, 80)))
	infos, err := opener.Processes(probe.Patient(t))
	if err != nil || len(infos) != 1 || infos[0].ID != id || infos[0].Exit != nil {
		t.Fatalf("Processes: %+v, %v; want %s, running", infos, err, id)
	}
	c := found(t, opener, id, nil)
	stdout, stderr := counted(80)
	c.Expect(t, engine.Exit{Code: 5}, stdout)
	if got := c.Stderr.String(); got != stderr {
		t.Errorf("stderr %q", got)
	}
	// Repeat this now that the command has ended.
	s.restart(t)
	_, opener = s.reopened(t, sb.Handle())
	found(t, opener, id, nil).Expect(t, engine.Exit{Code: 5}, stdout)
	infos, err = opener.Processes(probe.Patient(t))
	if err != nil || len(infos) != 1 || infos[0].Exit == nil || *infos[0].Exit != (engine.Exit{Code: 5}) {
		t.Errorf("Processes: %+v, %v; want %s, ended with 5", infos, err, id)
	}
}

func checkReopenEnded(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	p, err := sb.Start(probe.Patient(t), probe.Sh(fmt.Sprintf(counter, 3)+`; exit 1`))
	if err != nil {
		t.Fatal(err)
	}
	killed, err := sb.Start(probe.Patient(t), probe.Sh(`echo dying; kill -9 $$`))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.engine.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	// Both end meanwhile. If they do not, the check is weaker, but still succeeds.
	time.Sleep(time.Second)
	s.engine = s.Open(t, s.dataDir)
	_, opener := s.reopened(t, sb.Handle())
	c := found(t, opener, p.ID(), nil)
	stdout, stderr := counted(3)
	c.Expect(t, engine.Exit{Code: 5}, stdout)
	if got := c.Stderr.String(); got != stderr {
		t.Errorf("stderr %q", got)
	}
	found(t, opener, killed.ID(), nil).Expect(t, engine.Exit{Code: 137, Signal: "KILL"}, "dying\n")
}

func checkReopenInput(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	cmd := probe.Sh(`while read line; do echo "got $line"; done; echo end; exit 3`)
	cmd.Stdin = io.MultiReader(strings.NewReader("one\n"), probe.Silent(t))
	c := probe.Start(t, sb, cmd)
	c.Stdout.Until(t, "got one\n")
	s.restart(t)
	_, opener := s.reopened(t, sb.Handle())
	watcher := found(t, opener, c.ID(), nil)
	watcher.Stdout.Until(t, "got one\n")
	found(t, opener, c.ID(), strings.NewReader("two\nthree\n")).Expect(t, engine.Exit{Code: 3},
		"got one\ngot two\ngot three\nend\n")
	watcher.Expect(t, engine.Exit{Code: 3}, "got one\ngot two\ngot three\nend\n")
}

func checkReopenControl(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	sleep := probe.Sleeper()
	again, opener, id := detach(t, s, sb,
		probe.Sh(`trap 'echo got it' USR1; (setsid `+sleep+` &); echo ready; while :; do sleep 0.05; done`))
	c := found(t, opener, id, nil)
	c.Stdout.Until(t, "ready\n")
	if err := c.Signal(probe.Patient(t), "USR1"); err != nil {
		t.Fatalf("Signal: %v", err)
	}
	c.Stdout.Until(t, "got it\n")
	probe.AliveAtLeast(t, again, sleep, 2)
	if err := c.Kill(probe.Patient(t)); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	c.Expect(t, engine.Exit{Code: 137, Signal: "KILL"}, "ready\ngot it\n")
	if n := probe.Alive(t, again, sleep); n != 0 {
		t.Errorf("%d processes are alive after Kill", n)
	}
}

func checkReopenTerminal(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	cmd := terminal(probe.Sh(`echo ready; read line; stty size; exit 4`))
	cmd.Stdin = probe.Silent(t)
	_, opener, id := detach(t, s, sb, cmd)
	r, w := io.Pipe()
	c := found(t, opener, id, r)
	c.Stdout.Until(t, "ready\r\n")
	if err := c.Resize(probe.Patient(t), engine.Size{Rows: 40, Cols: 99}); err != nil {
		t.Fatalf("Resize: %v", err)
	}
	typeText(t, w, "go\n")
	c.Expect(t, engine.Exit{Code: 4}, "ready\r\ngo\r\n40 99\r\n")
	if infos, err := opener.Processes(probe.Patient(t)); err != nil || len(infos) != 1 || !infos[0].Terminal {
		t.Errorf("Processes: %+v, %v; want a terminal", infos, err)
	}
}

func checkReopenTwice(t *testing.T, s *suite) {
	opener := s.shared.(engine.ProcessOpener)
	c := probe.Start(t, s.shared, probe.Sh(`echo ready; read line; seq 1 100000; exit 2`+"\n"))
	c.End(t) // with a nil input, read ends immediately
	want := c.Stdout.String()
	if int64(len(want)) != int64(len("ready\n"))+seqSize(100000) {
		t.Fatalf("%d bytes came", len(want))
	}
	r, w := io.Pipe()
	cmd := probe.Sh(`echo ready; read line; seq 1 100000; exit 2`)
	cmd.Stdin = r
	c = probe.Start(t, s.shared, cmd)
	opened := []probe.Command{found(t, opener, c.ID(), nil), found(t, opener, c.ID(), nil)}
	for _, o := range opened {
		o.Stdout.Until(t, "ready\n")
	}
	typeText(t, w, "go\n")
	for _, o := range append(opened, c, found(t, opener, c.ID(), nil)) {
		if exit := o.End(t); exit != (engine.Exit{Code: 2}) || o.Stdout.String() != want {
			t.Errorf("ended with %+v and %d bytes, want %d", exit, len(o.Stdout.String()), len(want))
		}
	}
	found(t, opener, c.ID(), nil).Expect(t, engine.Exit{Code: 2}, want)
}

func checkReopenBounded(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	r, w := io.Pipe()
	cmd := probe.Sh("seq 1 " + strconv.Itoa(seqLarge) + "; touch done; read line; exit 3")
	cmd.Dir, cmd.Stdin = dir, r
	p, err := s.shared.Start(probe.Patient(t), cmd)
	if err != nil {
		t.Fatal(err)
	}
	cmd = probe.Sh("while ! test -e done; do sleep 0.1; done")
	cmd.Dir = dir
	probe.Start(t, s.shared, cmd).EndWithin(probe.PatientLarge(t), t)
	running, waitRunning := openSequence(t, s, p.ID())
	typeText(t, w, "go\n")
	waitRunning()
	if exit, err := p.Wait(probe.Patient(t)); err != nil || exit != (engine.Exit{Code: 3}) {
		t.Errorf("Wait: %+v, %v", exit, err)
	}
	ended, waitEnded := openSequence(t, s, p.ID())
	waitEnded()
	for when, n := range map[string]*numbers{"while it runs": running, "after its end": ended} {
		if n.wrong != "" || n.total != seqSize(seqLarge) {
			t.Errorf("%s, dropped and kept bytes are %d, want %d; %s", when, n.total, seqSize(seqLarge), n.wrong)
		}
	}
}

// openSequence opens a command that prints numbers. Dropped output counts as if it had arrived.
func openSequence(t *testing.T, s *suite, id string) (n *numbers, wait func()) {
	t.Helper()
	n = &numbers{}
	p, err := s.shared.(engine.ProcessOpener).OpenProcess(probe.PatientLarge(t), id,
		engine.Stdio{Stdout: n, Truncated: func(dropped int64) {
			if n.total != 0 {
				t.Error("Truncated was called after the first byte")
			}
			n.skip(dropped)
		}})
	if err != nil {
		t.Fatalf("OpenProcess: %v", err)
	}
	return n, func() {
		if exit, err := p.Wait(probe.PatientLarge(t)); err != nil || exit != (engine.Exit{Code: 3}) {
			t.Errorf("Wait: %+v, %v", exit, err)
		}
	}
}

func checkReopenLeft(t *testing.T, s *suite) {
	opener := s.shared.(engine.ProcessOpener)
	r, w := io.Pipe()
	cmd := probe.Sh("read line; seq 1 " + strconv.Itoa(seqLarge) + "; exit 3")
	cmd.Stdin = r
	p, err := s.shared.Start(probe.Patient(t), cmd)
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	blocked, begun := make(chan struct{}), make(chan struct{})
	opened, err := opener.OpenProcess(ctx, p.ID(), engine.Stdio{Stdout: writerFunc(func(data []byte) (int, error) {
		close(begun)
		<-blocked
		return 0, io.ErrClosedPipe
	})})
	if err != nil {
		t.Fatal(err)
	}
	typeText(t, w, "go\n")
	<-begun
	leave()
	close(blocked)
	if _, err := opened.Wait(probe.Patient(t)); errors.KindOf(err) != errors.Canceled {
		t.Errorf("Wait of who left: %v, want Canceled", err)
	}
	if exit, err := p.Wait(probe.PatientLarge(t)); err != nil || exit != (engine.Exit{Code: 3}) {
		t.Errorf("Wait: %+v, %v", exit, err)
	}
}

type writerFunc func(data []byte) (int, error)

func (f writerFunc) Write(data []byte) (int, error) { return f(data) }

func checkReopenUnknown(t *testing.T, s *suite) {
	opener := s.shared.(engine.ProcessOpener)
	for _, id := range []string{"nosuchprocess", "", ".", "..", "../" + probe.NewID(), "a/b", "\x00",
		strings.Repeat("x", 5000)} {
		_, err := opener.OpenProcess(probe.Patient(t), id, engine.Stdio{})
		probe.WantKind(t, fmt.Sprintf("OpenProcess(%.20q)", id), err, errors.NotFound)
	}
}

func checkProcesses(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	opener := sb.(engine.ProcessOpener)
	if infos, err := opener.Processes(probe.Patient(t)); err != nil || len(infos) != 0 {
		t.Errorf("Processes of a new sandbox: %+v, %v", infos, err)
	}
	before := time.Now().Add(-5 * time.Second)
	ended := probe.Start(t, sb, engine.Command{Args: []string{"sh", "-c", "exit 7", "ü"}})
	ended.End(t)
	// The command must continue when the context of Start ends.
	ctx, cancel := context.WithCancel(t.Context())
	running, err := sb.Start(ctx, engine.Command{Args: []string{"sleep", "600"}})
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	infos, err := opener.Processes(probe.Patient(t))
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]engine.ProcessInfo{}
	for _, info := range infos {
		byID[info.ID] = info
		if info.Started.Before(before) || info.Started.After(time.Now().Add(5*time.Second)) || info.Terminal {
			t.Errorf("%+v", info)
		}
	}
	e, r := byID[ended.ID()], byID[running.ID()]
	if len(infos) != 2 || e.Exit == nil || *e.Exit != (engine.Exit{Code: 7}) || r.Exit != nil {
		t.Errorf("Processes: %+v", infos)
	}
	if !reflect.DeepEqual(e.Args, []string{"sh", "-c", "exit 7", "ü"}) ||
		!reflect.DeepEqual(r.Args, []string{"sleep", "600"}) {
		t.Errorf("arguments %q and %q", e.Args, r.Args)
	}
	if ended.ID() == running.ID() {
		t.Errorf("two commands have the ID %q", running.ID())
	}
}
