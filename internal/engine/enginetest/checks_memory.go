package enginetest

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

var memories = needs(func(c engine.Capabilities) bool { return c.Memory },
	"the engine announces no checkpoints of memory")

// mission: A4, A10
var memoryChecks = []check{
	{"MemoryGoesOn",
		"sandboxes made from one checkpoint go on where it was made, each by itself, and so does the one it was made of", both(memories, reopen), checkMemoryGoesOn},
	{"MemoryOutlives",
		"a checkpoint outlives its sandbox and the server; a sandbox made from it does too, and can be checkpointed",
		both(memories, reopen), checkMemoryOutlives},
	{"MemoryRandom", "sandboxes from one checkpoint have different random numbers", memories, checkMemoryRandom},
	{"MemoryCanceled", "a canceled checkpoint leaves nothing, and the sandbox continues", memories,
		checkMemoryCanceled},
	{"MemoryRefused", "what cannot be in a checkpoint is refused, and nothing is left of the attempt", memories,
		checkMemoryRefused},
	{"MemoryTerminal", "a command with a terminal is a Conflict", both(memories, terminals), checkMemoryTerminal},
	{"MemoryVolumes", "a sandbox with a volume cannot be checkpointed", both(memories, mounts), checkMemoryVolumes},
}

// remembering answers each line of its input with the number of lines so far, the content that it wrote to a
// file, and the data that it received over a connection to itself and from a child. It remembers a random
// number, and exits with 7.
const remembering = `
import os, socket, subprocess, sys, threading
secret = os.urandom(8).hex()
ballast = os.urandom(4 << 20)
kept = open('/kept-file', 'a')
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()
child = subprocess.Popen(['sh', '-c', 'while read x; do echo child-$x; done'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print('ready', secret, os.getpid(), flush=True)
n = 0
for line in sys.stdin:
    n += 1
    kept.write(line); kept.flush()
    client.sendall(line.encode())
    child.stdin.write(line.encode()); child.stdin.flush()
    print(n, secret, os.getpid(), accepted.recv(100).decode().strip(), child.stdout.readline().decode().strip(), flush=True)
child.kill(); child.wait()
sys.exit(7)
`

// conversation is a command that runs remembering.
type conversation struct {
	probe.Command
	in *io.PipeWriter
}

// say sends the command a line, and waits for the given answer.
func (c conversation) say(t *testing.T, line, answer string) {
	t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
	c.Stdout.Until(t, answer+" "+line+" child-"+line+"\n")
}

// begin starts a remembering command, and returns its first output.
func begin(t *testing.T, sb engine.Sandbox) (conversation, string) {
	t.Helper()
	in, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	cmd := python(remembering)
	cmd.Stdin = in
	c := conversation{probe.Start(t, sb, cmd), w}
	c.Stdout.Until(t, "\n")
	self, ok := strings.CutPrefix(strings.TrimSpace(c.Stdout.String()), "ready ")
	if !ok {
		t.Fatalf("the command says %q", c.Stdout.String())
	}
	return c, self
}

// resume opens a remembering command in a sandbox made from a checkpoint.
func resume(t *testing.T, sb engine.Sandbox, id string) conversation {
	t.Helper()
	in, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	return conversation{found(t, sb.(engine.ProcessOpener), id, in), w}
}

// checkpoint makes a checkpoint of sb, which is removed when t ends.
func (s *suite) checkpoint(t *testing.T, sb engine.Sandbox) string {
	t.Helper()
	dir := filepath.Join(s.DataDir(t), "checkpoint")
	if err := sb.(engine.Checkpointer).Checkpoint(probe.Patient(t), dir); err != nil {
		t.Fatalf("Checkpoint: %v", err)
	}
	return dir
}

// restored makes a sandbox from a checkpoint, without an image.
func (s *suite) restored(t *testing.T, spec engine.Spec) engine.Sandbox {
	t.Helper()
	spec.ID, spec.Network.Mode = probe.NewID(), engine.NetworkNone
	sb, err := s.engine.Create(probe.Patient(t), spec)
	if err != nil {
		t.Fatalf("Create from a checkpoint: %v", err)
	}
	h := sb.Handle()
	t.Cleanup(func() { s.destroy(t, h, sb) })
	return sb
}

func checkMemoryGoesOn(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	c, self := begin(t, sb)
	c.say(t, "first", "1 "+self)
	probe.Start(t, sb, probe.Sh("exit 3")).Expect(t, engine.Exit{Code: 3}, "")
	from := s.checkpoint(t, sb)
	c.say(t, "original", "2 "+self)
	var copies []conversation
	var sandboxes []engine.Sandbox
	for range 2 {
		again := s.restored(t, engine.Spec{Checkpoint: from, Env: map[string]string{"NEW": "yes"}})
		infos, err := again.(engine.ProcessOpener).Processes(probe.Patient(t))
		if err != nil || len(infos) != 1 || infos[0].ID != c.ID() || infos[0].Exit != nil {
			t.Errorf("Processes: %+v, %v; want %s, running", infos, err, c.ID())
		}
		copies, sandboxes = append(copies, resume(t, again, c.ID())), append(sandboxes, again)
	}
	for i, name := range []string{"one", "two"} {
		copies[i].say(t, name, "2 "+self)
		copies[i].say(t, "more", "3 "+self)
		if got := probe.Output(t, sandboxes[i], probe.Sh(`cat /kept-file; echo "$NEW"`)); got != "first\n"+name+
			"\nmore\nyes\n" {
			t.Errorf("copy %s has %q", name, got)
		}
	}
	if err := copies[0].in.Close(); err != nil {
		t.Fatal(err)
	}
	copies[0].Expect(t, engine.Exit{Code: 7}, copies[0].Stdout.String())
	if err := copies[1].Kill(probe.Patient(t)); err != nil {
		t.Errorf("Kill: %v", err)
	}
	copies[1].Expect(t, engine.Exit{Code: 137, Signal: "KILL"}, copies[1].Stdout.String())
	c.say(t, "last", "3 "+self)
	if err := c.in.Close(); err != nil {
		t.Fatal(err)
	}
	c.Expect(t, engine.Exit{Code: 7}, c.Stdout.String())
}

func checkMemoryOutlives(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{Env: map[string]string{"KEPT": "yes"}, Dir: "/tmp"})
	c, self := begin(t, sb)
	from := s.checkpoint(t, sb)
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatal(err)
	}
	s.restart(t)
	for i := range 2 { // a checkpoint of the original, and one of its copy
		again := s.restored(t, engine.Spec{Checkpoint: from})
		said := []string{"1 ", "2 "}[i] + self
		resume(t, again, c.ID()).say(t, "before", said)
		s.restart(t)
		again, _ = s.reopened(t, again.Handle())
		c := resume(t, again, c.ID())
		c.Stdout.Until(t, said)
		if got := probe.Output(t, again, probe.Sh(`echo "$KEPT"; pwd`)); got != "yes\n/tmp\n" {
			t.Errorf("a command has %q", got)
		}
		if err := os.RemoveAll(from); err != nil { // which the copy no longer needs
			t.Fatal(err)
		}
		from = s.checkpoint(t, again)
		c.say(t, "after", []string{"2 ", "3 "}[i]+self)
	}
}

// nothing fails t if a failed checkpoint has left anything in its parent directory.
func nothing(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) > 0 {
		t.Errorf("%v, %v is left of a checkpoint that failed", left, err)
	}
}

func checkMemoryCanceled(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	c, self := begin(t, sb)
	dir := filepath.Join(s.DataDir(t), "checkpoint")
	if err := sb.(engine.Checkpointer).Checkpoint(canceled(t), dir); err == nil {
		t.Error("a canceled checkpoint succeeds")
	}
	nothing(t, dir)
	c.say(t, "after", "1 "+self)
}

func checkMemoryRefused(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	dir := s.checkpoint(t, sb)
	probe.WantKind(t, "a checkpoint where one is", sb.(engine.Checkpointer).Checkpoint(probe.Patient(t), dir),
		errors.Conflict)
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the first one: %v", err)
	}
	spec := engine.Spec{ID: probe.NewID(), Checkpoint: filepath.Join(dir, "none"),
		Network: engine.Network{Mode: engine.NetworkNone}}
	_, err := s.engine.Create(probe.Patient(t), spec)
	probe.WantKind(t, "a checkpoint that is not there", err, errors.NotFound)
	spec.Checkpoint, spec.Limits = dir, engine.Limits{Memory: 300 << 20}
	_, err = s.engine.Create(probe.Patient(t), spec)
	probe.WantKind(t, "other limits", err, errors.Invalid)
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatal(err)
	}
	late := filepath.Join(s.DataDir(t), "checkpoint")
	probe.WantKind(t, "a sandbox that was destroyed", sb.(engine.Checkpointer).Checkpoint(probe.Patient(t), late),
		errors.Conflict)
	nothing(t, late)
	wantNone(t, s, "after sandboxes were refused")
}

func checkMemoryTerminal(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	cmd := probe.Sh("echo ready; sleep 1000")
	cmd.Terminal = &engine.Size{Rows: 24, Cols: 80}
	c := probe.Start(t, sb, cmd)
	c.Stdout.Until(t, "ready")
	dir := filepath.Join(s.DataDir(t), "checkpoint")
	probe.WantKind(t, "a command with a terminal", sb.(engine.Checkpointer).Checkpoint(probe.Patient(t), dir),
		errors.Conflict)
	nothing(t, dir)
}

func checkMemoryVolumes(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, mounted(newVolume(t, s), "/data"))
	dir := filepath.Join(s.DataDir(t), "checkpoint")
	probe.WantKind(t, "a volume", sb.(engine.Checkpointer).Checkpoint(probe.Patient(t), dir), errors.Unsupported)
	nothing(t, dir)
}

// checkMemoryRandom checks that clones do not repeat the random numbers of the kernel, from which programs make keys
// and tokens.
func checkMemoryRandom(t *testing.T, s *suite) {
	s = s.separate(t)
	sb := s.create(t, engine.Spec{})
	from := s.checkpoint(t, sb)
	seen := map[string]bool{}
	const clones = 2
	sandboxes := []engine.Sandbox{sb}
	for range clones {
		sandboxes = append(sandboxes, s.restored(t, engine.Spec{Checkpoint: from}))
	}
	for _, one := range sandboxes {
		got := probe.Output(t, one, python(`
import os, uuid
print(os.urandom(16).hex())
print(open("/dev/urandom", "rb").read(16).hex())
print(open("/proc/sys/kernel/random/uuid").read().strip() if os.path.exists("/proc/sys/kernel/random/uuid") else uuid.uuid4())
`))
		for line := range strings.Lines(got) {
			if seen[line] {
				t.Errorf("two sandboxes have the random number %s", line)
			}
			seen[line] = true
		}
	}
	if len(seen) != 3*len(sandboxes) {
		t.Errorf("%d random numbers of %d sandboxes", len(seen), len(sandboxes))
	}
}
