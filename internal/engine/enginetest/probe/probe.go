// Package probe works in the sandboxes of checks: it runs commands and copies files in and out. Whatever fails ends the
// check.
package probe

import (
	"archive/tar"
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Sh returns a command for the shell.
func Sh(script string) engine.Command {
	return engine.Command{Args: []string{"sh", "-c", script}}
}

// Command is a started command with its output.
type Command struct {
	engine.Process
	Stdout, Stderr *testenv.Output
}

// Start starts cmd, and collects its output unless cmd has writers. The command is killed when t ends.
func Start(t *testing.T, sb engine.Sandbox, cmd engine.Command) Command {
	t.Helper()
	c := Command{Stdout: new(testenv.Output), Stderr: new(testenv.Output)}
	if cmd.Stdout == nil {
		cmd.Stdout = c.Stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = c.Stderr
	}
	p, err := sb.Start(Patient(t), cmd)
	if err != nil {
		t.Fatalf("Start %.200q: %v (%s)", cmd.Args, err, errors.KindOf(err))
	}
	c.Process = p
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := p.Kill(ctx); err != nil && !errors.Is(err, errors.Conflict) && !errors.Is(err, errors.NotFound) {
			t.Errorf("Kill %.200q: %v", cmd.Args, err)
		}
	})
	return c
}

// End waits for the end.
func (c Command) End(t *testing.T) engine.Exit {
	t.Helper()
	return c.EndWithin(Patient(t), t)
}

// EndWithin waits for the end until ctx ends.
func (c Command) EndWithin(ctx context.Context, t *testing.T) engine.Exit {
	t.Helper()
	exit, err := c.Wait(ctx)
	if err != nil {
		t.Fatalf("Wait: %v (%s); stdout %.500q, stderr %.500q", err, errors.KindOf(err), c.Stdout, c.Stderr)
	}
	return exit
}

// Expect waits for the end, and compares the exit and the output.
func (c Command) Expect(t *testing.T, exit engine.Exit, stdout string) {
	t.Helper()
	got := c.End(t)
	got.Crashed = "" // not every engine reports crashes
	if got != exit || c.Stdout.String() != stdout {
		t.Fatalf("ended with %+v and stdout %.2000q (stderr %.500q); want %+v and %.2000q", got, c.Stdout,
			c.Stderr, exit, stdout)
	}
}

// Output runs a command that must succeed and returns its output.
func Output(t *testing.T, sb engine.Sandbox, cmd engine.Command) string {
	t.Helper()
	c := Start(t, sb, cmd)
	if exit := c.End(t); exit != (engine.Exit{}) {
		t.Fatalf("%.200q ended with %+v; stdout %.500q, stderr %.2000q", cmd.Args, exit, c.Stdout, c.Stderr)
	}
	return c.Stdout.String()
}

// Script runs a script in dir that must succeed and returns its output.
func Script(t *testing.T, sb engine.Sandbox, dir, text string) string {
	t.Helper()
	cmd := Sh(text)
	cmd.Dir = dir
	return Output(t, sb, cmd)
}

// WantKind fails t unless err is of one of the kinds and has a message for clients.
func WantKind(t *testing.T, what string, err error, kinds ...errors.Kind) {
	t.Helper()
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			if errors.Message(err) == "" {
				t.Errorf("%s: the error %v has no text for clients", what, err)
			}
			return
		}
	}
	t.Errorf("%s: got %v (%s), want %v", what, err, errors.KindOf(err), kinds)
}

// Alive counts the processes of the sandbox with token in their command line.
func Alive(t *testing.T, sb engine.Sandbox, token string) int {
	t.Helper()
	all := Output(t, sb, Sh(`tail -v -n +1 /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '`))
	n := 0
	for _, one := range strings.Split(all, "==> /proc/") {
		if strings.Contains(one, token) {
			n++
		}
	}
	return n
}

// AliveUntil waits until n processes have token in their command line.
func AliveUntil(t *testing.T, sb engine.Sandbox, token string, n int) {
	t.Helper()
	got := -1
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = Alive(t, sb, token); got == n {
			return
		}
	}
	t.Fatalf("%d processes have %s in their command line, want %d", got, token, n)
}

// Sleeper returns a sleep of months with a unique duration, so that it can be found by its command line.
func Sleeper() string {
	return fmt.Sprintf("sleep 7%06d.%09d", rand.IntN(1e6), rand.IntN(1e9))
}

// Archive returns a tar stream.
func Archive(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, hdr := range entries {
		content := ""
		if hdr.Typeflag == tar.TypeReg {
			content = hdr.PAXRecords["HARVEST.content"]
			hdr.Size = int64(len(content))
		}
		hdr.PAXRecords = nil
		hdr.Format = tar.FormatPAX
		if err := w.WriteHeader(&hdr); err != nil {
			t.Fatalf("tar: %v", err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatalf("tar: %v", err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("tar: %v", err)
	}
	return &b
}

// SomeTime is the time of the entries of File, Directory and Link.
var SomeTime = time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC)

// File returns an entry for Archive: a regular file.
func File(name, content string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, ModTime: SomeTime,
		PAXRecords: map[string]string{"HARVEST.content": content}}
}

// Directory returns an entry for Archive.
func Directory(name string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: SomeTime}
}

// Link returns an entry for Archive: a symbolic link.
func Link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: SomeTime}
}

// Put copies files into a directory of the sandbox, which is created if missing.
func Put(t *testing.T, sb engine.Sandbox, dir string, entries ...tar.Header) {
	t.Helper()
	if err := sb.CopyIn(Patient(t), dir, Archive(t, entries...)); err != nil {
		t.Fatalf("CopyIn %s: %v", dir, err)
	}
}

// Entry is a file copied out of a sandbox.
type Entry struct {
	tar.Header
	Content string
}

// Get copies a file or a tree out of the sandbox. The keys are cleaned names.
func Get(t *testing.T, sb engine.Sandbox, path string) map[string]Entry {
	t.Helper()
	r, err := sb.CopyOut(Patient(t), path)
	if err != nil {
		t.Fatalf("CopyOut %s: %v", path, err)
	}
	defer r.Close()
	return Untar(t, r)
}

// Untar reads an archive. The keys are cleaned names.
func Untar(t *testing.T, r io.Reader) map[string]Entry {
	t.Helper()
	entries := map[string]Entry{}
	for tr := tar.NewReader(r); ; {
		hdr, err := tr.Next()
		if err == io.EOF {
			return entries
		}
		if err != nil {
			t.Fatalf("read the archive: %v", err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatalf("read %s in the archive: %v", hdr.Name, err)
		}
		name := strings.TrimPrefix(strings.TrimSuffix(hdr.Name, "/"), "./")
		if _, twice := entries[name]; twice {
			t.Errorf("%s is in the archive twice", name)
		}
		if name != "" && name != "." {
			entries[name] = Entry{*hdr, string(content)}
		}
	}
}

// NewDir creates a unique directory in the sandbox.
func NewDir(t *testing.T, sb engine.Sandbox) string {
	t.Helper()
	dir := "/checks/" + NewID()
	Put(t, sb, dir)
	return dir
}

// never is an input that provides no data.
type never struct{ closed chan struct{} }

func (n never) Read([]byte) (int, error) {
	<-n.closed
	return 0, io.EOF
}

// Silent returns an input that provides no data until t ends.
func Silent(t *testing.T) io.Reader {
	n := never{make(chan struct{})}
	t.Cleanup(func() { close(n.closed) })
	return n
}

// AliveAtLeast waits until at least n processes have token in their command line.
func AliveAtLeast(t *testing.T, sb engine.Sandbox, token string, n int) {
	t.Helper()
	got := -1
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = Alive(t, sb, token); got >= n {
			return
		}
	}
	t.Fatalf("%d processes have %s in their command line, want at least %d", got, token, n)
}

// NewID returns a new ID of a sandbox.
func NewID() string { return "t-" + strings.ToLower(cryptorand.Text()) }

// Patience is how long a check waits for an event that must happen. It only affects the duration of a failure.
const Patience = 90 * time.Second

// Patient returns a context that ends after Patience.
func Patient(t *testing.T) context.Context {
	t.Helper()
	return within(t, Patience)
}

// PatientLarge is for checks that transfer a hundred megabytes while others do the same.
func PatientLarge(t *testing.T) context.Context {
	t.Helper()
	return within(t, 5*Patience)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
