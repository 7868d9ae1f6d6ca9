package enginetest

import (
	"archive/tar"
	"bytes"
	"context"
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

// sh returns a command for the shell.
func sh(script string) engine.Command {
	return engine.Command{Args: []string{"sh", "-c", script}}
}

// command is a started command with its output.
type command struct {
	engine.Process
	stdout, stderr *testenv.Output
}

// start starts cmd, and collects its output unless cmd has writers. The command is killed when t ends.
func start(t *testing.T, sb engine.Sandbox, cmd engine.Command) command {
	t.Helper()
	c := command{stdout: new(testenv.Output), stderr: new(testenv.Output)}
	if cmd.Stdout == nil {
		cmd.Stdout = c.stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = c.stderr
	}
	p, err := sb.Start(patient(t), cmd)
	if err != nil {
		t.Fatalf("Start %.200q: %v (%s)", cmd.Args, err, errors.KindOf(err))
	}
	c.Process = p
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := p.Kill(ctx); err != nil && !errors.Is(err, errors.Conflict) && !errors.Is(err, errors.NotFound) {
			t.Errorf("Kill %.200q: %v", cmd.Args, err)
		}
	})
	return c
}

// wait waits for the end.
func (c command) wait(t *testing.T) engine.Exit {
	t.Helper()
	return c.waitWith(patient(t), t)
}

// waitWith waits for the end until ctx ends.
func (c command) waitWith(ctx context.Context, t *testing.T) engine.Exit {
	t.Helper()
	exit, err := c.Wait(ctx)
	if err != nil {
		t.Fatalf("Wait: %v (%s); stdout %.500q, stderr %.500q", err, errors.KindOf(err), c.stdout, c.stderr)
	}
	return exit
}

// expect waits for the end, and compares the exit and the output.
func (c command) expect(t *testing.T, exit engine.Exit, stdout string) {
	t.Helper()
	got := c.wait(t)
	got.Crashed = "" // not every engine reports crashes
	if got != exit || c.stdout.String() != stdout {
		t.Fatalf("ended with %+v and stdout %.2000q (stderr %.500q); want %+v and %.2000q", got, c.stdout,
			c.stderr, exit, stdout)
	}
}

// output runs a command that must succeed and returns its output.
func output(t *testing.T, sb engine.Sandbox, cmd engine.Command) string {
	t.Helper()
	c := start(t, sb, cmd)
	if exit := c.wait(t); exit != (engine.Exit{}) {
		t.Fatalf("%.200q ended with %+v; stdout %.500q, stderr %.2000q", cmd.Args, exit, c.stdout, c.stderr)
	}
	return c.stdout.String()
}

// script runs a script in dir that must succeed and returns its output.
func script(t *testing.T, sb engine.Sandbox, dir, text string) string {
	t.Helper()
	cmd := sh(text)
	cmd.Dir = dir
	return output(t, sb, cmd)
}

// wantKind fails t unless err is of one of the kinds and has a message for clients.
func wantKind(t *testing.T, what string, err error, kinds ...errors.Kind) {
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

// alive counts the processes of the sandbox with token in their command line.
func alive(t *testing.T, sb engine.Sandbox, token string) int {
	t.Helper()
	all := output(t, sb, sh(`tail -v -n +1 /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '`))
	n := 0
	for _, one := range strings.Split(all, "==> /proc/") {
		if strings.Contains(one, token) {
			n++
		}
	}
	return n
}

// aliveUntil waits until n processes have token in their command line.
func aliveUntil(t *testing.T, sb engine.Sandbox, token string, n int) {
	t.Helper()
	got := -1
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = alive(t, sb, token); got == n {
			return
		}
	}
	t.Fatalf("%d processes have %s in their command line, want %d", got, token, n)
}

// sleeper returns a sleep of months with a unique duration, so that it can be found by its command line.
func sleeper() string {
	return fmt.Sprintf("sleep 7%06d.%09d", rand.IntN(1e6), rand.IntN(1e9))
}

// archive returns a tar stream.
func archive(t *testing.T, entries ...tar.Header) *bytes.Buffer {
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

var someTime = time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC)

// file, directory and link are entries for archive.
func file(name, content string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, ModTime: someTime,
		PAXRecords: map[string]string{"HARVEST.content": content}}
}

func directory(name string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: someTime}
}

func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: someTime}
}

// put copies files into a directory of the sandbox, which is created if missing.
func put(t *testing.T, sb engine.Sandbox, dir string, entries ...tar.Header) {
	t.Helper()
	if err := sb.CopyIn(patient(t), dir, archive(t, entries...)); err != nil {
		t.Fatalf("CopyIn %s: %v", dir, err)
	}
}

// entry is a file copied out of a sandbox.
type entry struct {
	tar.Header
	content string
}

// get copies a file or a tree out of the sandbox. The keys are cleaned names.
func get(t *testing.T, sb engine.Sandbox, path string) map[string]entry {
	t.Helper()
	r, err := sb.CopyOut(patient(t), path)
	if err != nil {
		t.Fatalf("CopyOut %s: %v", path, err)
	}
	defer r.Close()
	return untar(t, r)
}

func untar(t *testing.T, r io.Reader) map[string]entry {
	t.Helper()
	entries := map[string]entry{}
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
			entries[name] = entry{*hdr, string(content)}
		}
	}
}

// newDir creates a unique directory in the sandbox.
func newDir(t *testing.T, sb engine.Sandbox) string {
	t.Helper()
	dir := "/checks/" + newID()
	put(t, sb, dir)
	return dir
}

// never is an input that provides no data.
type never struct{ closed chan struct{} }

func (n never) Read([]byte) (int, error) {
	<-n.closed
	return 0, io.EOF
}

// silent returns an input that provides no data until t ends.
func silent(t *testing.T) io.Reader {
	n := never{make(chan struct{})}
	t.Cleanup(func() { close(n.closed) })
	return n
}

// aliveAtLeast waits until at least n processes have token in their command line.
func aliveAtLeast(t *testing.T, sb engine.Sandbox, token string, n int) {
	t.Helper()
	got := -1
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = alive(t, sb, token); got >= n {
			return
		}
	}
	t.Fatalf("%d processes have %s in their command line, want at least %d", got, token, n)
}
