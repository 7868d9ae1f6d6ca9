package enginetest

import (
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
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
func typed(t *testing.T, sb engine.Sandbox, cmd engine.Command) (command, *io.PipeWriter) {
	t.Helper()
	r, w := io.Pipe()
	cmd = terminal(cmd)
	cmd.Stdin = r
	t.Cleanup(func() { w.Close() })
	return start(t, sb, cmd), w
}

func typeText(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatalf("type %q: %v", text, err)
	}
}

func checkIsTerminal(t *testing.T, s *suite) {
	c, _ := typed(t, s.shared,
		sh(`trap '' HUP; sleep 60 & test -t 0 && test -t 1 && test -t 2 && echo yes; echo err >&2; `+
			`echo tty >/dev/tty; tty | tr -d 0-9; echo named >"$(tty)"; exit 3`))
	c.expect(t, engine.Exit{Code: 3}, "yes\r\nerr\r\ntty\r\n/dev/pts/\r\nnamed\r\n")
	if got := c.stderr.String(); got != "" {
		t.Errorf("stderr got %q", got)
	}
}

func checkEcho(t *testing.T, s *suite) {
	c, w := typed(t, s.shared, engine.Command{Args: []string{"cat"}})
	typeText(t, w, "hello\n")
	c.stdout.Until(t, "hello\r\nhello\r\n")
	w.Close()
	c.expect(t, engine.Exit{}, "hello\r\nhello\r\n")
}

func checkNoEcho(t *testing.T, s *suite) {
	c, w := typed(t, s.shared, sh(`stty -echo; echo ready; cat`))
	c.stdout.Until(t, "ready\r\n")
	typeText(t, w, "secret\n")
	w.Close()
	c.expect(t, engine.Exit{}, "ready\r\nsecret\r\n")
}

func checkTerminalNoInput(t *testing.T, s *suite) {
	start(t, s.shared, terminal(sh(`cat; echo end`))).expect(t, engine.Exit{}, "end\r\n")
}

func checkTerminalClosed(t *testing.T, s *suite) {
	start(t, s.shared, terminal(sh(`exec <&- >&- 2>&-; sleep 0.3; echo x >/dev/tty`))).expect(t, engine.Exit{}, "x\r\n")
}

func checkSize(t *testing.T, s *suite) {
	for _, size := range []engine.Size{{Rows: 33, Cols: 101}, {Rows: 1, Cols: 1}, {Rows: 1000, Cols: 2000}} {
		cmd := sh("stty size")
		cmd.Terminal = &size
		start(t, s.shared, cmd).expect(t, engine.Exit{}, strconv.Itoa(size.Rows)+" "+strconv.Itoa(size.Cols)+"\r\n")
	}
}

func checkResize(t *testing.T, s *suite) {
	c, _ := typed(t, s.shared, sh(`trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done`))
	c.stdout.Until(t, "ready\r\n")
	if err := c.Resize(patient(t), engine.Size{Rows: 50, Cols: 132}); err != nil {
		t.Fatalf("Resize: %v", err)
	}
	c.expect(t, engine.Exit{Code: 4}, "ready\r\n50 132\r\n")
}

func checkBadSize(t *testing.T, s *suite) {
	for _, size := range []engine.Size{{}, {Rows: -1, Cols: 80}, {Rows: 24, Cols: 0}, {Rows: 1 << 20, Cols: 1}} {
		_, err := s.shared.Start(patient(t), engine.Command{Args: []string{"true"}, Terminal: &size})
		wantKind(t, "Start", err, errors.Invalid)
		c, _ := typed(t, s.shared, sh("sleep 600"))
		wantKind(t, "Resize", c.Resize(patient(t), size), errors.Invalid)
	}
	c := start(t, s.shared, sh("sleep 600"))
	wantKind(t, "Resize without a terminal", c.Resize(patient(t), engine.Size{Rows: 24, Cols: 80}), errors.Conflict)
}

func checkInterrupt(t *testing.T, s *suite) {
	// The job proves that it runs by echoing its input, because a shell that has not executed the job yet may
	// lose the signal. The shell around it stays a little longer: the processes receive the signal one after
	// the other, and the job may end first.
	c, w := typed(t, s.shared, sh(`trap 'echo interrupted' INT; cat; echo "after $?"; sleep 0.3`))
	typeText(t, w, "ready\n")
	c.stdout.Until(t, "ready\r\nready\r\n")
	typeText(t, w, "\x03")
	c.stdout.Until(t, "after 130\r\n")
	if exit := c.wait(t); exit != (engine.Exit{}) || !strings.Contains(c.stdout.String(), "interrupted\r\n") {
		t.Errorf("ended with %+v and output %q", exit, c.stdout)
	}
}

func checkForeground(t *testing.T, s *suite) {
	sleep := sleeper()
	c, w := typed(t, s.shared, sh(`exec sh -i`))
	typeText(t, w, sleep+"\n") // a job in its own process group
	aliveUntil(t, s.shared, sleep, 1)
	if err := c.Signal(patient(t), "INT"); err != nil {
		t.Fatalf("Signal: %v", err)
	}
	aliveUntil(t, s.shared, sleep, 0)
	typeText(t, w, "echo still $((40+2))\nexit 5\n")
	if exit := c.wait(t); exit != (engine.Exit{Code: 5}) || !strings.Contains(c.stdout.String(), "still 42\r\n") {
		t.Errorf("the shell ended with %+v and output %q", exit, c.stdout)
	}
}

func checkHangup(t *testing.T, s *suite) {
	for how, end := range map[string]func(command) error{
		"HUP":  func(c command) error { return c.Signal(patient(t), "HUP") },
		"Kill": func(c command) error { return c.Kill(patient(t)) },
	} {
		t.Run(how, func(t *testing.T) {
			sleep := sleeper()
			c, w := typed(t, s.shared, sh(`exec sh -i`))
			typeText(t, w, sleep+"\n")
			aliveUntil(t, s.shared, sleep, 1)
			if err := end(c); err != nil {
				t.Fatalf("%s: %v", how, err)
			}
			if exit := c.wait(t); exit.Code == 0 {
				t.Errorf("the shell ended with %+v", exit)
			}
			aliveUntil(t, s.shared, sleep, 0)
		})
	}
}

func checkTerminalOutput(t *testing.T, s *suite) {
	var want strings.Builder
	for i := range 50000 {
		want.WriteString(strconv.Itoa(i+1) + "\r\n")
	}
	for range 3 {
		c, _ := typed(t, s.shared, sh("seq 1 50000"))
		if exit := c.wait(t); exit != (engine.Exit{}) || c.stdout.String() != want.String() {
			got := c.stdout.String()
			t.Fatalf("ended with %+v and %d bytes, want %d; the last are %q", exit, len(got), want.Len(),
				got[max(0, len(got)-40):])
		}
	}
}

func checkTERM(t *testing.T, s *suite) {
	cmd := sh(`echo "$TERM"`)
	c := start(t, s.shared, terminal(cmd))
	if c.wait(t); strings.TrimSpace(c.stdout.String()) == "" {
		t.Error("TERM is not set")
	}
	cmd.Env = map[string]string{"TERM": "dumb"}
	start(t, s.shared, terminal(cmd)).expect(t, engine.Exit{}, "dumb\r\n")
}
