package enginetest

import (
	"strconv"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A1, A3, A4

var exitChecks = []check{
	{"exit/codes", "a command's exit code is reported as it is", nil, checkCodes},
	{"exit/signals", "a command that a signal ends has the code 128+n and the signal's name", nil, checkDeaths},
	{"signal/handlers", "Signal reaches the command under any spelling of its name", nil, checkSignals},
	{"signal/unknown", "an unknown signal is Invalid", nil, checkUnknownSignal},
	{"signal/after the end", "a signal, a kill and a resize of a command that has ended do no harm", nil,
		checkAfterEnd},
}

func checkCodes(t *testing.T, s *suite) {
	for _, code := range []int{0, 1, 2, 3, 124, 126, 127, 128, 143, 255} {
		probe.Start(t, s.shared, probe.Sh("exit "+strconv.Itoa(code))).Expect(t, engine.Exit{Code: code}, "")
	}
}

func checkDeaths(t *testing.T, s *suite) {
	for _, c := range []struct {
		name string
		n    int
	}{{"KILL", 9}, {"TERM", 15}, {"HUP", 1}, {"INT", 2}, {"SEGV", 11}, {"ABRT", 6}, {"USR2", 12}, {"PIPE", 13}} {
		want := engine.Exit{Code: 128 + c.n, Signal: c.name}
		probe.Start(t, s.shared, probe.Sh(`ulimit -c 0; kill -`+strconv.Itoa(c.n)+` $$; sleep 5`)).Expect(t, want, "")
	}
	c := probe.Start(t, s.shared, engine.Command{Args: []string{"sleep", "600"}})
	if err := c.Signal(probe.Patient(t), "TERM"); err != nil {
		t.Fatalf("Signal: %v", err)
	}
	c.Expect(t, engine.Exit{Code: 143, Signal: "TERM"}, "")
}

func checkSignals(t *testing.T, s *suite) {
	for _, c := range []struct{ trap, name string }{{"TERM", "TERM"}, {"INT", "SIGINT"}, {"USR1", "10"},
		{"HUP", "HUP"}} {
		p := probe.Start(t, s.shared,
			probe.Sh(`trap 'echo got `+c.trap+`; exit 9' `+c.trap+`; echo ready; while :; do sleep 0.05; done`))
		p.Stdout.Until(t, "ready\n")
		if err := p.Signal(probe.Patient(t), c.name); err != nil {
			t.Fatalf("Signal %s: %v", c.name, err)
		}
		p.Expect(t, engine.Exit{Code: 9}, "ready\ngot "+c.trap+"\n")
	}
}

func checkUnknownSignal(t *testing.T, s *suite) {
	c := probe.Start(t, s.shared, engine.Command{Args: []string{"sleep", "600"}})
	for _, name := range []string{"NOPE", "", "0", "-9", "99"} {
		probe.WantKind(t, "Signal "+strconv.Quote(name), c.Signal(probe.Patient(t), name), errors.Invalid)
	}
}

func checkAfterEnd(t *testing.T, s *suite) {
	c := probe.Start(t, s.shared, probe.Sh("exit 3"))
	want := c.End(t)
	for _, name := range []string{"TERM", "KILL"} {
		if err := c.Signal(probe.Patient(t), name); err != nil {
			t.Errorf("Signal %s after the end: %v", name, err)
		}
	}
	for range 2 {
		if err := c.Kill(probe.Patient(t)); err != nil {
			t.Errorf("Kill after the end: %v", err)
		}
	}
	probe.WantKind(t, "Resize without a terminal, after the end", c.Resize(probe.Patient(t), engine.Size{Rows: 1,
		Cols: 1}),
		errors.Conflict)
	if got := c.End(t); got != want {
		t.Errorf("Wait answers %+v now, and %+v before", got, want)
	}
}

var killChecks = []check{
	{"kill/tree", "Kill ends the command and all that it started, also in sessions of their own, and nothing else", nil,
		checkKillTree},
	{"kill/leftovers", "Kill ends what a command left behind when it ended", nil, checkKillLeftovers},
	{"kill/ignored signals", "Kill ends a command that ignores every signal it can", nil, checkKillIgnoring},
	{"kill/forking", "Kill ends a tree that keeps forking", nil, checkKillForking},
}

func checkKillTree(t *testing.T, s *suite) {
	sleep, other := probe.Sleeper(), probe.Sleeper()
	bystander := probe.Start(t, s.shared, probe.Sh(other+" & wait"))
	c := probe.Start(t, s.shared, probe.Sh(`
		`+sleep+` &
		setsid `+sleep+` &
		(setsid sh -c '(`+sleep+`; :) & exit 0' >/dev/null 2>&1 </dev/null &)
		nohup `+sleep+` >/dev/null 2>&1 &
		echo ready
		wait`))
	c.Stdout.Until(t, "ready\n")
	probe.AliveAtLeast(t, s.shared, sleep, 5) // four sleeps, and the shell with the text in its own command line
	probe.AliveUntil(t, s.shared, other, 2)
	for range 2 {
		if err := c.Kill(probe.Patient(t)); err != nil {
			t.Fatalf("Kill: %v", err)
		}
	}
	if exit := c.End(t); exit != (engine.Exit{Code: 137, Signal: "KILL"}) {
		t.Errorf("the command ended with %+v", exit)
	}
	if n := probe.Alive(t, s.shared, sleep); n != 0 {
		t.Errorf("%d processes of the tree are alive after Kill", n)
	}
	if n := probe.Alive(t, s.shared, other); n != 2 {
		t.Errorf("%d processes of another command are alive, want 2", n)
	}
	if err := bystander.Kill(probe.Patient(t)); err != nil {
		t.Errorf("Kill: %v", err)
	}
}

func checkKillLeftovers(t *testing.T, s *suite) {
	sleep := probe.Sleeper()
	c := probe.Start(t, s.shared, probe.Sh(sleep+` & setsid `+sleep+` & exit 0`))
	c.Expect(t, engine.Exit{}, "")
	probe.AliveUntil(t, s.shared, sleep, 2)
	if err := c.Kill(probe.Patient(t)); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	if n := probe.Alive(t, s.shared, sleep); n != 0 {
		t.Errorf("%d processes that the command left are alive after Kill", n)
	}
}

func checkKillIgnoring(t *testing.T, s *suite) {
	c := probe.Start(t, s.shared, probe.Sh(`trap '' TERM INT HUP QUIT USR1; echo ready; while :; do sleep 0.05; done`))
	c.Stdout.Until(t, "ready\n")
	if err := c.Signal(probe.Patient(t), "TERM"); err != nil {
		t.Fatalf("Signal: %v", err)
	}
	if err := c.Kill(probe.Patient(t)); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	c.Expect(t, engine.Exit{Code: 137, Signal: "KILL"}, "ready\n")
}

func checkKillForking(t *testing.T, s *suite) {
	sleep := probe.Sleeper()
	// Each generation starts the next one and ends, so that no process has a living parent.
	c := probe.Start(t, s.shared,
		probe.Sh(`echo ready; f() { (sleep 0.01; f) & }; f; f; f; : `+sleep+`; while :; do sleep 1; done`))
	c.Stdout.Until(t, "ready\n")
	probe.AliveAtLeast(t, s.shared, sleep, 1)
	if err := c.Kill(probe.Patient(t)); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	c.Expect(t, engine.Exit{Code: 137, Signal: "KILL"}, "ready\n")
	if n := probe.Alive(t, s.shared, sleep); n != 0 {
		t.Errorf("%d processes are alive after Kill", n)
	}
}
