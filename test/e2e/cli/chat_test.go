package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// window is a terminal of 80 columns and 24 rows in which a command runs.
type window struct {
	t    *testing.T
	tty  *os.File
	cmd  *exec.Cmd
	mu   sync.Mutex
	term *vt.Emulator  // guarded by mu
	gone chan struct{} // closed when all was read
}

func openWindow(t *testing.T, h *host.Host, dir string, args ...string) *window {
	t.Helper()
	cmd := h.Command(t.Context(), args...)
	cmd.Dir = dir
	return openCommand(t, cmd)
}

// openCommand opens a window in which cmd runs.
func openCommand(t *testing.T, cmd *exec.Cmd) *window {
	t.Helper()
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	w := &window{t: t, tty: tty, cmd: cmd, term: vt.NewEmulator(80, 24), gone: make(chan struct{})}
	answers := make(chan struct{})
	go func() { // the terminal's answers to queries
		defer close(answers)
		_, _ = io.Copy(io.Discard, w.term)
	}()
	go func() {
		defer close(w.gone)
		buf := make([]byte, 4096)
		for {
			n, err := tty.Read(buf)
			w.mu.Lock()
			_, _ = w.term.Write(buf[:n])
			w.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		tty.Close()
		<-w.gone
		_ = w.term.InputPipe().(io.Closer).Close() // Close alone would race with the reader
		<-answers
		w.term.Close()
	})
	return w
}

// screen returns the content of the window.
func (w *window) screen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.term.String()
}

// scrolled returns the lines that have left the window at its top.
func (w *window) scrolled() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, line := range w.term.Scrollback().Lines() {
		b.WriteString(line.String() + "\n")
	}
	return b.String()
}

func (w *window) types(text string) {
	w.t.Helper()
	if _, err := io.WriteString(w.tty, text); err != nil {
		w.t.Fatal(err)
	}
}

// shows waits until the window shows all of texts.
func (w *window) shows(texts ...string) {
	w.t.Helper()
	testenv.Try(w.t, func() error {
		screen := w.screen()
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				return errors.Errorf("%q is not on the screen:\n%s", text, screen)
			}
		}
		return nil
	})
}

// ends waits for the end of the command, which must succeed.
func (w *window) ends() {
	w.t.Helper()
	<-w.gone
	if err := w.cmd.Wait(); err != nil {
		w.t.Errorf("it ended with %v:\n%s", err, w.screen())
	}
}

// A conversation in a terminal of 80 x 24: prompt, streamed answer, folded tool, question, stop, changes,
// hand-back, resume, end.
// mission: A4, E1, E3
func TestConversation(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	project := h.Project()
	w := openWindow(t, h, project, "agent", "--agent", "scripted")
	w.shows("› a prompt, or /help", "ready · $0.00 · /help")
	w.types("say **hello**\r")
	w.shows("› say **hello**", "You said: say hello", "● Write  SCRIPTED-AGENT.md", "+- say **hello**",
		"1 file changed")
	w.types("/run seq 1 40\r")
	w.shows("● Bash  seq 1 40", "… 35 lines above", "│ 40")
	w.types("/ask Which colour? | red | blue\r")
	w.shows("? Which colour?", "1. red", "2. blue", "or the agent decides")
	w.types("2\r")
	w.shows("The answer is blue.")
	w.types("/run sleep 1000\r")
	w.shows("running Bash", "Esc stops")
	w.types("and more\r")
	w.shows("queued: and more")
	w.types("/cancel\r")
	w.shows("not sent: and more", "› and more")
	w.types("\x15\x1b")
	w.shows("stopped", "ready")
	w.types("/diff\r")
	w.shows("+++ b/SCRIPTED-AGENT.md", "+- say **hello**")
	w.types("/checkout\r")
	w.shows("The agent's work is on the branch harvest/")
	w.types("/apply\r")
	w.shows("1 file, +1 -0: applied to the files")
	if text, err := os.ReadFile(project + "/SCRIPTED-AGENT.md"); err != nil ||
		!strings.Contains(string(text), "say **hello**") {
		t.Errorf("%q, %v", text, err)
	}
	w.types("/run seq 1 60\r")
	w.shows("│ 60", "done")
	w.types("/output\r")
	w.shows("\n58\n59\n60\n", "ready")
	if past := w.scrolled(); strings.Count(past, "ready · ") > 0 || strings.Count(past, "› a prompt") > 0 ||
		!strings.Contains(past, "\n7\n8\n9\n") {
		t.Errorf("what has scrolled away:\n%s", past)
	}
	w.types("\x03")
	w.shows("harvest agent --continue ses_")
	w.ends()

	w = openWindow(t, h, project, "agent", "--continue", "/say I am back")
	w.shows("● Bash  seq 1 60", "› /say I am back", "I am back\n", "ready · $0.00")
	w.types("/end\r")
	w.shows("The session has ended.")
	w.ends()
	if text := h.Must("sessions", "-o", "name"); text != "" {
		t.Errorf("sessions that stay: %s", text)
	}
}

// overSSH returns a command that runs cmd in a terminal on a server of OpenSSH. The server has its own keys and handles
// one connection, on the pipes of its client.
func overSSH(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	client := testenv.RequireTool(t, "ssh", "openssh-client")
	keygen := testenv.RequireTool(t, "ssh-keygen", "openssh-client")
	server := testenv.RequireTool(t, "sshd", "openssh-server")
	const empty = "/run/sshd" // sshd requires it; Debian's service makes it
	if err := os.Mkdir(empty, 0o755); err == nil {
		t.Cleanup(func() { _ = os.Remove(empty) }) // best effort: a service may use it meanwhile
	} else if !os.IsExist(err) {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"host", "user"} {
		if out, err := exec.CommandContext(t.Context(), keygen, "-q", "-t", "ed25519", "-N", "", "-f",
			dir+"/"+name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	settings := fmt.Sprintf("HostKey %[1]s/host\nAuthorizedKeysFile %[1]s/user.pub\nStrictModes no\nUsePAM no\n"+
		"PermitRootLogin prohibit-password\nPidFile none\n", dir)
	if err := os.WriteFile(dir+"/settings", []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	quote := func(words []string) string {
		var b strings.Builder
		for _, word := range words {
			b.WriteString(" '" + strings.ReplaceAll(word, "'", `'\''`) + "'")
		}
		return b.String()
	}
	line := "cd" + quote([]string{cmd.Dir}) + " && exec env -i TERM=$TERM" + quote(cmd.Env) + quote(cmd.Args)
	return exec.CommandContext(t.Context(), client, "-tt", "-F", "none", "-i", dir+"/user", "-o", "LogLevel=ERROR",
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile="+dir+"/known",
		"-o", "ProxyCommand="+server+" -i -f "+dir+"/settings", "root@harvest", line)
}

// TestConversationOverSSH checks that the conversation works through ssh in a terminal of 80 x 24.
// mission: A4, E3
func TestConversationOverSSH(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	cmd := h.Command(t.Context(), "agent", "--agent", "scripted")
	cmd.Dir = h.Project()
	w := openCommand(t, overSSH(t, cmd))
	w.shows("› a prompt, or /help", "ready · $0.00 · /help")
	w.types("say **hello**\r")
	w.shows("› say **hello**", "You said: say hello", "● Write  SCRIPTED-AGENT.md", "1 file changed")
	w.types("/ask Which colour? | red | blue\r")
	w.shows("? Which colour?", "1. red", "2. blue")
	w.types("2\r")
	w.shows("The answer is blue.")
	w.types("/run sleep 1000\r")
	w.shows("running Bash", "Esc stops")
	w.types("\x1b")
	w.shows("stopped", "ready")
	w.types("/end discard\r")
	w.shows("The session has ended.")
	w.ends()
	if text := h.Must("sessions", "-o", "name"); text != "" {
		t.Errorf("sessions that stay: %s", text)
	}
}

// TestCompare checks in a terminal that the number of the session to keep is asked, and that Ctrl-C leaves the
// sessions, whose agents go on.
// mission: A4, E3
func TestCompare(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	project := h.Project()
	w := openWindow(t, h, project, "compare", "--agents", "scripted", "--n", "2", "say hello")
	w.shows("1  scripted  done    1      +1 -0  -     $0.00", "keep which? 1-2, or Enter for all:")
	w.types("3\r")
	w.types("2\r")
	w.ends()
	w.shows("kept ses_")
	if list := h.Must("sessions", "-o", "name"); strings.Count(list, "ses_") != 1 ||
		!strings.Contains(w.screen(), "kept "+list) {
		t.Errorf("the sessions are %s", list)
	}
	h.Must("end", "--discard", h.Session())

	w = openWindow(t, h, project, "compare", "--agents", "scripted", "--n", "2", "/run sleep 1000")
	w.shows("2 sessions; Ctrl-C leaves them")
	testenv.Eventually(t, "two sessions at work",
		func() bool { return strings.Count(h.Must("sessions"), "running_tool") == 2 })
	w.types("\x03")
	w.shows("left 2 sessions; their agents continue", "or end all: harvest end --discar")
	<-w.gone
	if err := w.cmd.Wait(); err == nil || w.cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("it ended with %v", err)
	}
	list := strings.Fields(h.Must("sessions", "-o", "name"))
	if len(list) != 2 || strings.Count(h.Must("sessions"), "running_tool") != 2 {
		t.Errorf("the sessions are %v", list)
	}
	h.Must(append([]string{"end", "--discard"}, list...)...)
}
