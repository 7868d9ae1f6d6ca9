package inside

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pkg/sftp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// client returns a client of the files of this machine, and a directory for its test.
func client(t *testing.T) (c *sftp.Client, dir string) {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan int, 1)
	go func() { done <- Main(t.Context(), []string{Files}, far, far, os.Stderr) }()
	c, err := sftp.NewClientPipe(near, near)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close() // is the end of its input
		if code := <-done; code != 0 {
			t.Errorf("it ended with %d", code)
		}
		_ = far.Close()
	})
	return c, t.TempDir()
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// TestAppend appends to a file whose client leaves the offset to the server.
func TestAppend(t *testing.T) {
	c, dir := client(t)
	path := filepath.Join(dir, "log")
	if err := os.WriteFile(path, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []int{os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND | os.O_CREATE} {
		f, err := c.OpenFile(path, flags)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, "new\n"); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := content(t, path); got != "old\nnew\nnew\n" {
		t.Errorf("the file has %q", got)
	}
}

// TestOpen opens files in the other ways.
func TestOpen(t *testing.T) {
	c, dir := client(t)
	path := filepath.Join(dir, "file")
	if _, err := c.Open(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	f, err := c.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("content"), 3); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 10)
	if n, err := f.ReadAt(buf, 0); string(buf[:n]) != "\x00\x00\x00content" {
		t.Errorf("it reads %q, %v", buf[:n], err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL); err == nil {
		t.Error("a file that exists is made")
	}
	if f, err = c.Create(path); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if got := content(t, path); got != "" {
		t.Errorf("it has %q after it was made again", got)
	}
}

// TestChanges renames, links, removes, and sets attributes.
func TestChanges(t *testing.T) {
	c, dir := client(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(in(name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Rename(in("one"), in("two")); err == nil {
		t.Error("Rename replaces a file")
	}
	if err := c.PosixRename(in("one"), in("two")); err != nil || content(t, in("two")) != "one" {
		t.Errorf("PosixRename: %v", err)
	}
	if err := c.Rename(in("two"), in("one")); err != nil {
		t.Errorf("Rename: %v", err)
	}
	if err := errors.Join(c.Link(in("one"), in("hard")), c.Symlink("one", in("soft")), c.Mkdir(in("dir"))); err != nil {
		t.Error(err)
	}
	if got, err := c.ReadLink(in("soft")); err != nil || got != "one" {
		t.Errorf("the link leads to %q, %v", got, err)
	}
	if got, err := os.Readlink(in("soft")); err != nil || got != "one" {
		t.Errorf("the link has %q, %v", got, err)
	}
	when := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	err := errors.Join(c.Chmod(in("one"), 0o640), c.Truncate(in("one"), 2), c.Chtimes(in("one"), when, when),
		c.Chown(in("one"), os.Getuid(), os.Getgid()))
	if info, statErr := os.Stat(in("hard")); err != nil || statErr != nil || info.Mode() != 0o640 || info.Size() != 2 ||
		!info.ModTime().Equal(when) {
		t.Errorf("attributes: %v, %v, %v", info, err, statErr)
	}
	info, err := c.Lstat(in("soft"))
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("Lstat: %v, %v", info, err)
	}
	if info, err = c.Stat(in("soft")); err != nil || info.Size() != 2 {
		t.Errorf("Stat: %v, %v", info, err)
	}
	list, err := c.ReadDir(dir)
	if err != nil || len(list) != 4 {
		t.Errorf("the directory has %v, %v", list, err)
	}
	if s, err := c.StatVFS(dir); err != nil || s.TotalSpace() == 0 {
		t.Errorf("StatVFS: %v, %v", s, err)
	}
	if err := c.Remove(in("dir")); err != nil { // the client tries both kinds of removal
		t.Error(err)
	}
	if err := c.RemoveDirectory(in("one")); err == nil {
		t.Error("a file is removed as a directory")
	}
	for _, name := range []string{"missing", "one/below"} {
		if _, err := c.ReadDir(in(name)); err == nil {
			t.Errorf("%s is a directory", name)
		}
		if _, err := c.Stat(in(name)); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	if got, err := c.RealPath("a/../b"); err != nil || !filepath.IsAbs(got) || filepath.Base(got) != "b" {
		t.Errorf("RealPath: %q, %v", got, err)
	}
	if got, err := c.Getwd(); err != nil || got != must(os.Getwd()) {
		t.Errorf("Getwd: %q, %v", got, err)
	}
}

func must(text string, err error) string {
	if err != nil {
		return err.Error()
	}
	return text
}

// TestManyFiles lists a directory that needs several answers.
func TestManyFiles(t *testing.T) {
	c, dir := client(t)
	for i := range 450 {
		if err := os.Mkdir(filepath.Join(dir, string(rune('a'+i%26))+string(rune('a'+i/26))), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := c.ReadDir(dir); err != nil || len(list) != 450 {
		t.Errorf("the list has %d names, %v", len(list), err)
	}
}

// TestAppendInOrder appends many parts, whose requests the client does not wait for.
func TestAppendInOrder(t *testing.T) {
	c, dir := client(t)
	path := filepath.Join(dir, "log")
	var want []byte
	for i := range 4 << 20 {
		want = append(want, byte(i>>12), byte(i))
	}
	f, err := c.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFromWithConcurrency(bytes.NewReader(want), 64); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has other content, %d bytes, %v", len(got), err)
	}
}

// TestInOrder reads requests one at a time, in any pieces.
func TestInOrder(t *testing.T) {
	var sent bytes.Buffer
	requests := []byte("\x00\x00\x00\x03abc\x00\x00\x00\x00\x00\x00\x00\x01x")
	o := newInOrder(iotest.OneByteReader(bytes.NewReader(requests)), &sent)
	read := func(n int) string {
		buf := make([]byte, n)
		n, err := io.ReadFull(o, buf)
		if err != nil {
			return err.Error()
		}
		return string(buf[:n])
	}
	if got := read(7); got != string(requests[:7]) {
		t.Errorf("the first request is %q", got)
	}
	next := make(chan string)
	go func() { next <- read(4) }()
	for _, part := range []string{"\x00\x00", "\x00\x02", "o", "k"} {
		select {
		case got := <-next:
			t.Fatalf("%q is read before the answer is complete", got)
		default:
		}
		if n, err := io.WriteString(o, part); n != len(part) || err != nil {
			t.Errorf("wrote %d, %v", n, err)
		}
	}
	if got := <-next; got != string(requests[7:11]) {
		t.Errorf("the second request is %q", got)
	}
	// Two answers in one piece allow one request.
	if _, err := io.WriteString(o, "\x00\x00\x00\x01a\x00\x00\x00\x01b"); err != nil {
		t.Error(err)
	}
	if got := read(5); got != string(requests[11:]) {
		t.Errorf("the third request is %q", got)
	}
	_ = o.Close()
	if got := read(1); got != io.EOF.Error() {
		t.Errorf("after Close it reads %q", got)
	}
	if sent.String() != "\x00\x00\x00\x02ok\x00\x00\x00\x01a\x00\x00\x00\x01b" {
		t.Errorf("it sent %q", sent.String())
	}
}
