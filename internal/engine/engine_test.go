package engine_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

func TestParseSignal(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "SIGTERM": syscall.SIGTERM, "term": syscall.SIGTERM, "sigint": syscall.SIGINT,
		"15":   syscall.SIGTERM,
		"KILL": syscall.SIGKILL, "USR1": syscall.SIGUSR1, "WINCH": syscall.SIGWINCH, "64": 64, "1": syscall.SIGHUP,
	} {
		if got, err := engine.ParseSignal(name); err != nil || got != want {
			t.Errorf("ParseSignal(%q) = %v, %v; want %v", name, got, err, want)
		}
	}
	for _, name := range []string{"", "0", "-9", "65", "SIG", "NOPE", "SIGSIGTERM", "TERM ", "9x",
		strings.Repeat("T", 1000)} {
		got, err := engine.ParseSignal(name)
		if !errors.Is(err, errors.Invalid) || got != 0 {
			t.Errorf("ParseSignal(%.20q) = %v, %v; want Invalid", name, got, err)
		}
		if errors.RemedyOf(err) == "" {
			t.Errorf("ParseSignal(%.20q): no remedy", name)
		}
	}
}

func TestSignalNameIsWhatParseSignalReads(t *testing.T) {
	t.Parallel()
	for n := syscall.Signal(1); n <= 64; n++ {
		name := engine.SignalName(n)
		if back, err := engine.ParseSignal(name); err != nil || back != n {
			t.Errorf("signal %d is named %q, which is read as %d, %v", int(n), name, int(back), err)
		}
		if strings.HasPrefix(name, "SIG") {
			t.Errorf("signal %d is named %q, with the prefix", int(n), name)
		}
	}
}

func TestExitOf(t *testing.T) {
	t.Parallel()
	if got := engine.ExitOf(3, 0); got != (engine.Exit{Code: 3}) {
		t.Errorf("exit code 3: %+v", got)
	}
	if got := engine.ExitOf(0, syscall.SIGKILL); got != (engine.Exit{Code: 137, Signal: "KILL"}) {
		t.Errorf("killed: %+v", got)
	}
}

func TestCheckCommand(t *testing.T) {
	t.Parallel()
	many := make([]string, 20)
	for i := range many {
		many[i] = strings.Repeat("x", 100<<10)
	}
	sh := []string{"sh"}
	cases := []struct {
		name string
		cmd  engine.Command
		ok   bool
	}{
		{"a program", engine.Command{Args: sh}, true},
		{"everything", engine.Command{Args: []string{"/bin/sh", "", "a\nb"}, Dir: "/a b",
			Env: map[string]string{"A": "", "é.b": "=\n"}, User: "1:2", Terminal: &engine.Size{Rows: 1, Cols: 65535}},
			true},
		{"the longest argument", engine.Command{Args: []string{"sh", strings.Repeat("x", engine.MaxArg)}}, true},
		{"no arguments", engine.Command{}, false},
		{"an empty program", engine.Command{Args: []string{"", "x"}}, false},
		{"NUL in an argument", engine.Command{Args: []string{"sh", "a\x00b"}}, false},
		{"an argument that is too long", engine.Command{Args: []string{"sh", strings.Repeat("x", engine.MaxArg+1)}},
			false},
		{"too much in all", engine.Command{Args: many}, false},
		{"an empty name", engine.Command{Args: sh, Env: map[string]string{"": "x"}}, false},
		{"'=' in a name", engine.Command{Args: sh, Env: map[string]string{"A=B": "x"}}, false},
		{"NUL in a name", engine.Command{Args: sh, Env: map[string]string{"A\x00": "x"}}, false},
		{"NUL in a value", engine.Command{Args: sh, Env: map[string]string{"A": "\x00"}}, false},
		{"a value that is too long", engine.Command{Args: sh,
			Env: map[string]string{"A": strings.Repeat("x", engine.MaxArg)}}, false},
		{"a name that is too long", engine.Command{Args: sh,
			Env: map[string]string{strings.Repeat("A", engine.MaxArg): ""}}, false},
		{"a relative directory", engine.Command{Args: sh, Dir: "a"}, false},
		{"NUL in the directory", engine.Command{Args: sh, Dir: "/a\x00"}, false},
		{"NUL in the user", engine.Command{Args: sh, User: "a\x00"}, false},
		{"no rows", engine.Command{Args: sh, Terminal: &engine.Size{Cols: 80}}, false},
		{"too many columns", engine.Command{Args: sh, Terminal: &engine.Size{Rows: 24, Cols: 65536}}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := engine.CheckCommand(c.cmd)
			if c.ok && err != nil {
				t.Fatalf("refused: %v", err)
			}
			if !c.ok && !errors.Is(err, errors.Invalid) {
				t.Fatalf("got %v, want Invalid", err)
			}
			if !c.ok && len(errors.Message(err)) > 400 {
				t.Fatalf("the message has %d bytes", len(errors.Message(err)))
			}
		})
	}
}
