package enginetest

import (
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A4, 4.7

var terminalChecks = []check{
	{"terminal/is one", "standard input, output and error are the controlling terminal, named in /dev/pts; " +
		"all output is Stdout, and a child that keeps the terminal does not delay the end", terminals, checkIsTerminal},
	{"terminal/echo", "a line that is typed appears once as echo and once as output; its end types end-of-file",
		terminals, checkEcho},
	{"terminal/no echo", "echo can be turned off", terminals, checkNoEcho},
	{"terminal/nil input", "without an input, end-of-file is typed at once", terminals, checkTerminalNoInput},
	{"terminal/closed", "a command may close its terminal and open it again", terminals, checkTerminalClosed},
	{"terminal/size", "a terminal has the size that was given", terminals, checkSize},
	{"terminal/resize", "a resize is seen and signalled", terminals, checkResize},
	{"terminal/no size", "a size that cannot be is Invalid; without a terminal, a resize is a Conflict", terminals,
		checkBadSize},
	{"terminal/interrupt", "Control-C interrupts the foreground job, not the shell", terminals, checkInterrupt},
	{"terminal/foreground signal", "Signal reaches the foreground job and the command", terminals, checkForeground},
	{"terminal/hang-up", "a hang-up, and Kill, end a shell and its foreground job", terminals, checkHangup},
	{"terminal/whole output", "the output of a terminal is whole up to the last byte", terminals, checkTerminalOutput},
	{"terminal/TERM", "TERM is set, unless the command sets it", terminals, checkTERM},
}

func terminal(cmd engine.Command) engine.Command {
	cmd.Terminal = &engine.Size{Rows: 24, Cols: 80}
	return cmd
}

// typed starts a terminal command whose input is the returned writer.
func typed(t *testing.T, sb engine.Sandbox, cmd engine.Command) (probe.Command, *io.PipeWriter) {
	t.Helper()
	r, w := io.Pipe()
	cmd = terminal(cmd)
	cmd.Stdin = r
	t.Cleanup(func() { w.Close() })
	return probe.Start(t, sb, cmd), w
}

func typeText(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatalf("type %q: %v", text, err)
	}
}

func checkIsTerminal(t *testing.T, s *suite) {
	c, _ := typed(t, s.shared,
		probe.Sh(`trap '' HUP; sleep 60 & test -t 0 && test -t 1 && test -t 2 && echo yes; echo err >&2; `+
			`echo tty >/dev/tty; tty | tr -d 0-9; echo named >"$(tty)"; exit 3`))
	c.Expect(t, engine.Exit{Code: 3}, "yes\r\nerr\r\ntty\r\n/dev/pts/\r\nnamed\r\n")
	if got := c.Stderr.String(); got != "" {
		t.Errorf("stderr got %q", got)
	}
}

func checkEcho(t *testing.T, s *suite) {
	c, w := typed(t, s.shared, engine.Command{Args: []string{"cat"}})
	typeText(t, w, "hello\n")
	c.Stdout.Until(t, "hello\r\nhello\r\n")
	w.Close()
	c.Expect(t, engine.Exit{}, "hello\r\nhello\r\n")
}

func checkNoEcho(t *testing.T, s *suite) {
	c, w := typed(t, s.shared, probe.Sh(`stty -echo; echo ready; cat`))
	c.Stdout.Until(t, "ready\r\n")
	typeText(t, w, "secret\n")
	w.Close()
	c.Expect(t, engine.Exit{}, "ready\r\nsecret\r\n")
}

func checkTerminalNoInput(t *testing.T, s *suite) {
	probe.Start(t, s.shared, terminal(probe.Sh(`cat; echo end`))).Expect(t, engine.Exit{}, "end\r\n")
}

func checkTerminalClosed(t *testing.T, s *suite) {
	probe.Start(t, s.shared, terminal(probe.Sh(`exec <&- >&- 2>&-; sleep 0.3; echo x >/dev/tty`))).Expect(t,
		engine.Exit{}, "x\r\n")
}

func checkSize(t *testing.T, s *suite) {
	for _, size := range []engine.Size{{Rows: 33, Cols: 101}, {Rows: 1, Cols: 1}, {Rows: 1000, Cols: 2000}} {
		cmd := probe.Sh("stty size")
		cmd.Terminal = &size
		probe.Start(t, s.shared, cmd).Expect(t, engine.Exit{}, strconv.Itoa(size.Rows)+" "+strconv.Itoa(size.Cols)+
			"\r\n")
	}
}

func checkResize(t *testing.T, s *suite) {
	c, _ := typed(t, s.shared, probe.Sh(`trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done`))
	c.Stdout.Until(t, "ready\r\n")
	if err := c.Resize(probe.Patient(t), engine.Size{Rows: 50, Cols: 132}); err != nil {
		t.Fatalf("Resize: %v", err)
	}
	c.Expect(t, engine.Exit{Code: 4}, "ready\r\n50 132\r\n")
}

func checkBadSize(t *testing.T, s *suite) {
	for _, size := range []engine.Size{{}, {Rows: -1, Cols: 80}, {Rows: 24, Cols: 0}, {Rows: 1 << 20, Cols: 1}} {
		_, err := s.shared.Start(probe.Patient(t), engine.Command{Args: []string{"true"}, Terminal: &size})
		probe.WantKind(t, "Start", err, errors.Invalid)
		c, _ := typed(t, s.shared, probe.Sh("sleep 600"))
		probe.WantKind(t, "Resize", c.Resize(probe.Patient(t), size), errors.Invalid)
	}
	c := probe.Start(t, s.shared, probe.Sh("sleep 600"))
	probe.WantKind(t, "Resize without a terminal", c.Resize(probe.Patient(t), engine.Size{Rows: 24, Cols: 80}),
		errors.Conflict)
}

func checkInterrupt(t *testing.T, s *suite) {
	// The job proves that it runs by echoing its input, because a shell that has not executed the job yet may
	// lose the signal. The shell around it stays a little longer: the processes receive the signal one after
	// the other, and the job may end first.
	c, w := typed(t, s.shared, probe.Sh(`trap 'echo interrupted' INT; cat; echo "after $?"; sleep 0.3`))
	typeText(t, w, "ready\n")
	c.Stdout.Until(t, "ready\r\nready\r\n")
	typeText(t, w, "\x03")
	c.Stdout.Until(t, "after 130\r\n")
	if exit := c.End(t); exit != (engine.Exit{}) || !strings.Contains(c.Stdout.String(), "interrupted\r\n") {
		t.Errorf("ended with %+v and output %q", exit, c.Stdout)
	}
}

func checkForeground(t *testing.T, s *suite) {
	sleep := probe.Sleeper()
	c, w := typed(t, s.shared, probe.Sh(`exec sh -i`))
	typeText(t, w, sleep+"\n") // a job in its own process group
	probe.AliveUntil(t, s.shared, sleep, 1)
	if err := c.Signal(probe.Patient(t), "INT"); err != nil {
		t.Fatalf("Signal: %v", err)
	}
	probe.AliveUntil(t, s.shared, sleep, 0)
	typeText(t, w, "echo still $((40+2))\nexit 5\n")
	if exit := c.End(t); exit != (engine.Exit{Code: 5}) || !strings.Contains(c.Stdout.String(), "still 42\r\n") {
		t.Errorf("the shell ended with %+v and output %q", exit, c.Stdout)
	}
}

func checkHangup(t *testing.T, s *suite) {
	for how, end := range map[string]func(probe.Command) error{
		"HUP":  func(c probe.Command) error { return c.Signal(probe.Patient(t), "HUP") },
		"Kill": func(c probe.Command) error { return c.Kill(probe.Patient(t)) },
	} {
		t.Run(how, func(t *testing.T) {
			sleep := probe.Sleeper()
			c, w := typed(t, s.shared, probe.Sh(`exec sh -i`))
			typeText(t, w, sleep+"\n")
			probe.AliveUntil(t, s.shared, sleep, 1)
			if err := end(c); err != nil {
				t.Fatalf("%s: %v", how, err)
			}
			if exit := c.End(t); exit.Code == 0 {
				t.Errorf("the shell ended with %+v", exit)
			}
			probe.AliveUntil(t, s.shared, sleep, 0)
		})
	}
}

func checkTerminalOutput(t *testing.T, s *suite) {
	var want strings.Builder
	for i := range 50000 {
		want.WriteString(strconv.Itoa(i+1) + "\r\n")
	}
	for range 3 {
		c, _ := typed(t, s.shared, probe.Sh("seq 1 50000"))
		if exit := c.End(t); exit != (engine.Exit{}) || c.Stdout.String() != want.String() {
			got := c.Stdout.String()
			t.Fatalf("ended with %+v and %d bytes, want %d; the last are %q", exit, len(got), want.Len(),
				got[max(0, len(got)-40):])
		}
	}
}

func checkTERM(t *testing.T, s *suite) {
	cmd := probe.Sh(`echo "$TERM"`)
	c := probe.Start(t, s.shared, terminal(cmd))
	if c.End(t); strings.TrimSpace(c.Stdout.String()) == "" {
		t.Error("TERM is not set")
	}
	cmd.Env = map[string]string{"TERM": "dumb"}
	probe.Start(t, s.shared, terminal(cmd)).Expect(t, engine.Exit{}, "dumb\r\n")
}
