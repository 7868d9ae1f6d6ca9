package mount

import (
	"bytes"
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// process is the process of a sandbox's mount.
func (p *place) process(sandbox string) int {
	p.t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		if text, _ := os.ReadFile(file); strings.HasPrefix(string(text), Name+"\x00"+p.Manager.dir(sandbox)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	p.t.Fatal("no process serves the mount")
	return 0
}

func is(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

// TestSilence checks that programs get an error after a while if S3 accepts requests and answers none, and at once when
// the sandbox ends.
func TestSilence(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newPlace(t)
	p.put("f", "content")
	dir := p.mounted(about("sbx_silence"))
	if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
		t.Fatal(err)
	}
	p.proxy.silence()
	_, err := os.ReadFile(filepath.Join(dir, "f"))
	is(t, err, syscall.EIO)
	waiting := make(chan error)
	go func() {
		_, err := os.ReadFile(filepath.Join(dir, "g"))
		waiting <- err
	}()
	select {
	case err := <-waiting:
		t.Errorf("before the end: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	p.Quiet(t.Context(), "sbx_silence")
	is(t, <-waiting, syscall.EIO)
	p.proxy.answer()
}

// TestFileFails checks that a file that cannot be stored is reported once, kept, and stored when S3 is back.
func TestFileFails(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newPlace(t)
	dir := p.mounted(about("sbx_fails"))
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("kept"); err != nil {
		t.Fatal(err)
	}
	p.proxy.stop()
	is(t, f.Sync(), syscall.EIO)
	is(t, f.Close(), syscall.EIO)
	if got := p.next(FileFailed); got.Path != "f" || got.Sandbox != "sbx_fails" || got.Reason == "" {
		t.Errorf("told %+v", got)
	}
	if got := read(t, filepath.Join(dir, "f")); got != "kept" {
		t.Errorf("meanwhile it reads %q", got)
	}
	p.proxy.start()
	for deadline := time.Now().Add(2 * time.Minute); p.object("f") != "kept"; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not stored again")
		}
	}
}

// TestKilledProcess checks that programs get an error when the process of a mount is killed, that this is reported, and
// that written data is still stored, at once or as soon as S3 is back.
// mission: D5
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir := p.mounted(about("sbx_killed"))
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("survives"); err != nil {
		t.Fatal(err)
	}
	if err := f.Chmod(0o600); err != nil {
		t.Fatal(err)
	}
	p.proxy.stop()
	if err := syscall.Kill(p.process("sbx_killed"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if told := p.next(Lost); !strings.Contains(told.Reason, "another sandbox") {
		t.Errorf("it is told %q", told.Reason)
	}
	_, err = os.ReadDir(dir)
	is(t, err, syscall.ENOTCONN)
	p.proxy.start()
	p.next(Sent)
	if got := p.object("f"); got != "survives" {
		t.Errorf("stored %q", got)
	}
	if err := p.Finish(t.Context(), "sbx_killed"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Dir(dir)); !errors.IsNotExist(err) {
		t.Errorf("its directory stays: %v", err)
	}
}

// TestLeft checks that files that cannot be stored at the end are kept and named, and stored by a later server. A mount
// of a live sandbox stays.
func TestLeft(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newPlace(t)
	lives := p.mounted(about("sbx_lives"))
	dir, err := p.Mount(t.Context(), about("sbx_left"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("left"); err != nil {
		t.Fatal(err)
	}
	p.proxy.stop()
	f.Close()
	err = p.Finish(t.Context(), "sbx_left")
	is(t, err, errors.Unavailable)
	got := p.next(Left)
	if len(got.Unsent) != 1 || got.Unsent[0].Path != "f" || !strings.Contains(err.Error(), got.Dir) {
		t.Fatalf("told %+v; %v", got, err)
	}
	if content := read(t, got.Unsent[0].File); content != "left" {
		t.Errorf("kept %q", content)
	}
	// Again, without S3.
	is(t, p.Finish(t.Context(), "sbx_left"), errors.Unavailable)
	p.Close()
	p.proxy.start()
	if err := os.MkdirAll(filepath.Join(p.dir, "sbx_empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.open()
	if err := p.Recover(t.Context(), func(sandbox string) bool { return sandbox == "sbx_lives" }); err != nil {
		t.Fatal(err)
	}
	p.next(Sent)
	if got := p.object("f"); got != "left" {
		t.Errorf("stored %q", got)
	}
	write(t, filepath.Join(lives, "g"), "still mounted")
	if got := p.object("g"); got != "still mounted" {
		t.Errorf("stored %q", got)
	}
	if got := names(t, p.dir); got != `["sbx_lives"]` {
		t.Errorf("left: %s", got)
	}
	if err := p.Finish(t.Context(), "sbx_never"); err != nil {
		t.Errorf("without a mount: %v", err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	refused := func(want error, text string) {
		t.Helper()
		_, err := p.Mount(t.Context(), about("sbx_refused"))
		if !errors.Is(err, want) || !strings.Contains(errors.Message(err), text) {
			t.Errorf("%v, want %v %q", err, want, text)
		}
		if got := names(t, p.dir); got != "[]" {
			t.Errorf("left: %s", got)
		}
	}
	good := p.loc
	p.loc.Bucket = "nowhere"
	refused(errors.NotFound, "there is no bucket nowhere")
	p.loc = good
	p.loc.SecretAccessKey = "wrong"
	refused(errors.Unauthenticated, "the secret access key is wrong")
	p.loc = good
	p.proxy.silence()
	refused(errors.Unavailable, "S3 does not answer")
	p.proxy.answer()
	p.loc.Bucket = "not a bucket"
	refused(errors.Invalid, "invalid bucket name")
	p.loc = good
	p.opts.Locate = func(context.Context, About) (s3.Location, error) {
		return s3.Location{}, errors.Newf(errors.NotFound, "no secret")
	}
	refused(errors.NotFound, "no secret")
	p.opts.Locate = func(context.Context, About) (s3.Location, error) { return good, nil }
	p.opts.Executable = "/bin/false"
	refused(errors.Internal, "")
	p.opts.Executable = "/nothing"
	refused(errors.Internal, "")
	p.opts.Executable = "/proc/self/exe"
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Mount(ctx, about("sbx_canceled")); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := Open(t.Context(), Options{Dir: "/dev/null/x"}); err == nil {
		t.Error("a directory that cannot be made")
	}
	p.mounted(about("sbx_twice"))
	if _, err := p.Mount(t.Context(), about("sbx_twice")); err == nil {
		t.Error("mounted twice")
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	is(t, checkFor(0, "/nothing/fuse"), errors.Unsupported)
	if err := checkFor(0, os.DevNull); err != nil {
		t.Error(err)
	}
	for _, err := range []error{fs.ErrNotExist, syscall.ENODEV, syscall.EPERM, syscall.EACCES, syscall.EINVAL} {
		is(t, explainMount(err), errors.Unsupported)
	}
}

func TestCheckWithoutProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := checkFor(1000, ""); !errors.Is(err, errors.Unsupported) ||
		!strings.Contains(errors.RemedyOf(err), "fuse3") {
		t.Errorf("without fusermount3: %v", err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("PATH"), "fusermount"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := checkFor(1000, os.DevNull); err != nil {
		t.Errorf("with it: %v", err)
	}
	is(t, checkFor(1000, "/nothing/fuse"), errors.Unsupported)
}

// TestLimit checks that the amount of written data that is not yet stored is limited.
func TestLimit(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := about("sbx_limit")
	a.Limit = 1 << 20
	dir := p.mounted(a)
	path := filepath.Join(dir, "f")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(make([]byte, 2<<20))
	is(t, err, syscall.ENOSPC)
	is(t, f.Truncate(1<<40), syscall.ENOSPC)
	f.Close()
	p.put("large", strings.Repeat("x", 2<<20))
	g, err := os.OpenFile(filepath.Join(dir, "large"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	_, err = g.Write([]byte("y"))
	is(t, err, syscall.ENOSPC)
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
}

// TestOthers checks that a mount handles changes by another client.
func TestOthers(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("f", "old")
	p.put("link", "")
	dir := p.mounted(about("sbx_others1"))
	other := p.mounted(about("sbx_others2"))
	path := filepath.Join(dir, "f")
	if got := read(t, path); got != "old" {
		t.Errorf("read %q", got)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write(t, filepath.Join(other, "f"), "newer")
	write(t, filepath.Join(other, "g"), "another")
	if err := os.Chmod(path, 0o600); err != nil { // of another object than it knows
		t.Error(err)
	}
	eventually(t, "it reads the new content", func() bool {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, syscall.ESTALE) { // the object was replaced after the file was opened
			t.Error(err)
		}
		return string(b) == "newer"
	})
	eventually(t, "it lists the new file", func() bool { return names(t, dir) == `["f" "g" "link"]` })
	if err := os.Remove(filepath.Join(other, "g")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, "g")); err != nil && !errors.IsNotExist(err) {
		t.Error(err)
	}
	if err := os.Rename(filepath.Join(dir, "f"), filepath.Join(dir, "link")); err != nil {
		t.Error(err)
	}
	if got := p.object("link"); got != "newer" {
		t.Errorf("stored %q", got)
	}
}

// TestNoMixture checks that readers of a file that is replaced while open get ESTALE, also if the mount has seen the
// new file meanwhile. Data written through the same mount is read by all from then on.
// mission: D5
func TestNoMixture(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newPlace(t)
	dir, other := p.mounted(about("sbx_mixture")), p.mounted(about("sbx_mixture2"))
	const size = 64 << 20 // more than the read-ahead
	path := filepath.Join(dir, "f")
	for _, mine := range []bool{false, true} {
		if err := os.WriteFile(filepath.Join(other, "f"), bytes.Repeat([]byte("1"), size), 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(remember + time.Second)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		buf := make([]byte, 4096)
		if _, err := f.ReadAt(buf, 0); err != nil || buf[0] != '1' {
			t.Fatalf("at the beginning: %q, %v", buf[0], err)
		}
		by := other
		if mine {
			by = dir
		}
		if err := os.WriteFile(filepath.Join(by, "f"), bytes.Repeat([]byte("2"), size), 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(remember + time.Second)
		if _, err := os.Stat(path); err != nil { // the mount hears of it
			t.Fatal(err)
		}
		for at := int64(size / 2); at < size; at += 8 << 20 {
			_, err := f.ReadAt(buf, at)
			if mine && (err != nil || buf[0] != '2') || !mine && !errors.Is(err, syscall.ESTALE) {
				t.Errorf("written here %v: at %d it reads %q, %v", mine, at, buf[:1], err)
			}
		}
		if got := read(t, path); got[0] != '2' || len(got) != size {
			t.Errorf("who opens it now reads %q", got[0])
		}
	}
}

// A file that is not used is stored though it is open, and dropped here when it was stored.
func TestTend(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newPlace(t)
	a := about("sbx_tend")
	dir := p.mounted(a)
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("still open"); err != nil {
		t.Fatal(err)
	}
	spool := func() int {
		all, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), spoolName, "*"))
		return len(all)
	}
	for deadline := time.Now().Add(2 * time.Minute); p.object("f") == "" ||
		spool() > 0; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("stored %q, %d files in the spool", p.object("f"), spool())
		}
	}
	if _, err := f.WriteString(", and goes on"); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	if got := p.object("f"); got != "still open, and goes on" {
		t.Errorf("stored %q", got)
	}
}

// TestSocket checks that a mount's process ignores invalid messages, and that a process which does not react is killed.
func TestSocket(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.mounted(about("sbx_socket"))
	for _, text := range []string{"{", `{"op":"nothing"}` + "\n"} {
		conn, err := socket.Dial(t.Context(), p.Manager.dir("sbx_socket"), socketName)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Error(err)
		}
		if c, ok := conn.(*net.UnixConn); ok {
			_ = c.CloseWrite()
		}
		if n, _ := conn.Read(make([]byte, 1)); n != 0 {
			t.Error("it answers nonsense")
		}
		conn.Close()
	}
	pid := p.process("sbx_socket")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for { // a signal stops one thread after the other
		states, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "stat"))
		running := false
		for _, file := range states {
			text, _ := os.ReadFile(file)
			running = running || !strings.Contains(string(text), ") T ")
		}
		if !running {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	p.Quiet(t.Context(), "sbx_socket")
	if err := syscall.Kill(pid, 0); err == nil {
		if text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")); len(text) > 0 {
			t.Error("it lives")
		}
	}
}

// FuzzNote checks that a note left on disk by a process never leads out of the bucket's prefix.
func FuzzNote(f *testing.F) {
	f.Add([]byte(`{"path":"a/b","mode":420}`))
	f.Add([]byte(`{"path":"../a"}`))
	f.Add([]byte(`{"path":"a","mode":4294967295}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parseNote(text)
		if err != nil {
			return
		}
		for part := range strings.SplitSeq(n.Path, "/") {
			if part == "" || part == "." || part == ".." {
				t.Errorf("%q", n.Path)
			}
		}
		if n.Mode > 0o7777 {
			t.Errorf("%o", n.Mode)
		}
	})
}

func TestErrno(t *testing.T) {
	t.Parallel()
	for kind, want := range map[errors.Kind]syscall.Errno{
		errors.NotFound: syscall.ENOENT, errors.Denied: syscall.EACCES, errors.Unauthenticated: syscall.EACCES,
		errors.Exhausted: syscall.ENOSPC,
		errors.Conflict:  syscall.ESTALE, errors.Unsupported: syscall.EOPNOTSUPP, errors.Unavailable: syscall.EIO,
		errors.Internal: syscall.EIO,
	} {
		is(t, errno(errors.Newf(kind, "some")), want)
	}
	is(t, errno(errors.Wrapf(syscall.ENOSPC, "write")), syscall.ENOSPC)
	is(t, errno(errors.Explainf(syscall.ECONNREFUSED, errors.Unavailable, "away")), syscall.EIO)
	if errno(nil) != 0 {
		t.Error("nothing is an error")
	}
}

// TestNoteIsReplaced checks that the note of an unstored file is replaced at once: a process that is killed meanwhile
// leaves the earlier note or the next one, and the next process adopts the file. Another name of the earlier note keeps
// its content.
func TestNoteIsReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &spool{name: filepath.Join(dir, "1"), dirty: true, e: tree.Entry{Path: "a/long/name/of/a/file", Mode: 0o644}}
	if err := s.write(); err != nil {
		t.Fatal(err)
	}
	before, other := read(t, s.name+noteSuffix), filepath.Join(dir, "other")
	if err := os.Link(s.name+noteSuffix, other); err != nil {
		t.Fatal(err)
	}
	s.e.Path = "short"
	if err := s.write(); err != nil {
		t.Fatal(err)
	}
	if kept := read(t, other); kept != before || read(t, s.name+noteSuffix) == before {
		t.Errorf("the note %q became %q", before, kept)
	}
}
