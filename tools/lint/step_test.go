package lint_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// step returns tools/scripts/step as the step "name" of a shell script, without and with more environment.
func step(t *testing.T, script string, env ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a test that waits in vain fails with a sentence
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "../scripts/step", "name", "bash", "-c", script, "bash", "a b")
	cmd.Env = append(append(os.Environ(), "V="), env...)
	return cmd
}

// TestStep checks that a step prints one line, and that the output of a failed one is complete.
func TestStep(t *testing.T) {
	t.Parallel()
	const names = "echo go: downloading example.org/x v1.0.0 >&2; echo internal/goarch; echo example.org/x/v2; "
	for about, c := range map[string]struct {
		script, stdout, stderr string
		env                    []string
		code                   int
	}{
		"nothing counted": {script: "echo any text; echo more text >&2", stdout: "name: N s\n"},
		"counted":         {script: names + "echo any text", stdout: "name: N s, 1 download, 2 packages\n"},
		"arguments":       {script: `test "$1" = "a b" && test $# = 1`, stdout: "name: N s\n"},
		"failed": {
			script: "echo '# example.org/x'; " + names +
				"echo 'x.go:1:2: undefined: y' >&2; printf 'the end'; exit 7", code: 7,
			stdout: "name: failed with exit status 7 after N s, 1 download, 2 packages\n",
			stderr: "go: downloading example.org/x v1.0.0\ninternal/goarch\nexample.org/x/v2\n" +
				"# example.org/x\nx.go:1:2: undefined: y\nthe end\n",
		},
		"failed without output": {script: "exit 1", code: 1, stdout: "name: failed with exit status 1 after N s\n"},
		"killed": {script: "echo any text; kill -KILL $$", code: 137, stderr: "any text\n",
			stdout: "name: failed with exit status 137 after N s\n"},
		"all output": {script: names + "exit 3", env: []string{"V=1"}, code: 3,
			stdout: "== name: bash -c " + names + "exit 3 bash a b\ninternal/goarch\nexample.org/x/v2\n",
			stderr: "go: downloading example.org/x v1.0.0\n"},
	} {
		t.Run(about, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			cmd := step(t, c.script, append(c.env, "TMPDIR="+t.TempDir())...)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run() // the exit code is compared below
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if got := seconds.ReplaceAllString(stdout.String(), "N s"); got != c.stdout {
				t.Errorf("standard output is %q, want %q", got, c.stdout)
			}
			if stderr.String() != c.stderr {
				t.Errorf("standard error is %q, want %q", &stderr, c.stderr)
			}
		})
	}
}

var seconds = regexp.MustCompile(`\b\d+ s\b`)

// TestStepKeepsNoFiles checks that a step removes its file, also after a failure.
func TestStepKeepsNoFiles(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"true", "false"} {
		temp := t.TempDir()
		_ = step(t, script, "TMPDIR="+temp).Run()
		if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
			t.Errorf("%s leaves %v, %v", script, left, err)
		}
	}
}

// TestStepOnTerminal checks that the line of a step on a terminal shows the progress of the command.
func TestStepOnTerminal(t *testing.T) {
	t.Parallel()
	// The command goes on when the test has seen its progress.
	cmd := step(t, "echo go: downloading example.org/x v1.0.0; read -r line; exit 5", "TERM=xterm")
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	var text strings.Builder
	buf := make([]byte, 256)
	for !strings.Contains(text.String(), "s, 1 download") {
		n, err := terminal.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, text.String())
		}
		text.Write(buf[:n])
	}
	if strings.Contains(text.String(), "\n") {
		t.Errorf("the progress has more than one line: %q", text.String())
	}
	if _, err := terminal.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(terminal) // a terminal whose other end is closed returns EIO
	text.Write(rest)
	want := "\r\x1b[Kname: failed with exit status 5 after N s, 1 download\r\ngo: downloading example.org/x v1.0.0\r\n"
	if got := seconds.ReplaceAllString(text.String(), "N s"); !strings.HasSuffix(got, want) {
		t.Errorf("the terminal shows %q, which does not end with %q", got, want)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("the step ended with %v", err)
	}
}
