package mount

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// oldHandle is a file of 3 MiB. A program has read its beginning, and another program then removes or replaces it.
type oldHandle struct {
	*os.File
	t       *testing.T
	path    string
	content []byte
}

const oldSize = 3 << 20

func openOld(t *testing.T, path string, flags int) *oldHandle {
	t.Helper()
	h := &oldHandle{t: t, path: path, content: bytes.Repeat([]byte("1"), oldSize)}
	var err error
	if h.File, err = os.OpenFile(path, flags, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	if _, err := h.ReadAt(make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
	return h
}

// check reads the whole file. It must have the old content, or fail with ESTALE if that is allowed, since the mount may
// have lost the rest. It reports whether a read failed so.
func (h *oldHandle) check(stale bool) (lost bool) {
	h.t.Helper()
	buf := make([]byte, 64<<10)
	for at := int64(0); at < oldSize; at += int64(len(buf)) {
		n, err := h.ReadAt(buf, at)
		if stale && errors.Is(err, syscall.ESTALE) {
			lost = true
			continue
		}
		if err != nil || !bytes.Equal(buf[:n], h.content[at:at+int64(n)]) {
			h.t.Errorf("at %d the old handle reads %q…, %v", at, buf[:min(n, 4)], err)
			return lost
		}
	}
	if n, err := h.ReadAt(buf, oldSize); n > 0 || err != io.EOF {
		h.t.Errorf("after the end the old handle reads %q, %v", buf[:n], err)
	}
	return lost
}

// storedOld returns a place whose file f has oldSize bytes, in S3 only, and a directory where it is mounted.
func storedOld(t *testing.T, sandbox string) (p *place, dir, path string) {
	t.Helper()
	p = newPlace(t)
	p.put("f", string(bytes.Repeat([]byte("1"), oldSize)))
	dir = p.mounted(about(sandbox))
	return p, dir, filepath.Join(dir, "f")
}

// TestRenameOverOpenFile checks that renaming a file over another one leaves the old content to handles of the old
// file, to read and to write, and does not change their writes.
// mission: D5
func TestRenameOverOpenFile(t *testing.T) {
	t.Parallel()
	p, dir, path := storedOld(t, "sbx_over")
	reader, writer := openOld(t, path, os.O_RDONLY), openOld(t, path, os.O_RDWR)
	fresh, err := os.Open(path) // which has read nothing
	if err != nil {
		t.Fatal(err)
	}
	old := &oldHandle{File: fresh, t: t, content: reader.content}
	defer fresh.Close()
	newer := string(bytes.Repeat([]byte("2"), oldSize+100))
	write(t, path+".new", newer)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*oldHandle{reader, writer, old} {
		h.check(false)
	}
	if st, err := reader.Stat(); err != nil || st.Size() != oldSize {
		t.Errorf("the old file is %v, %v", st, err)
	}
	if _, err := writer.WriteAt([]byte("old"), 5); err != nil {
		t.Error(err)
	}
	copy(reader.content[5:], "old")
	if err := errors.Join(writer.Sync(), writer.Chmod(0o600)); err != nil {
		t.Error(err)
	}
	reader.check(false)
	if err := writer.Truncate(oldSize + 5); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o644 || st.Size() != oldSize+100 {
		t.Errorf("the new file is %v, %v", st, err)
	}
	if got := read(t, path); got != newer || p.object("f") != newer {
		t.Errorf("the new file has %q… of %d bytes, the object %d", got[:4], len(got), len(p.object("f")))
	}
	if err := errors.Join(writer.Close(), reader.Close(), fresh.Close()); err != nil {
		t.Error(err)
	}
	if got := p.object("f"); got != newer || names(t, dir) != `["f"]` {
		t.Errorf("after all are closed the object has %d bytes, and there is %s", len(got), names(t, dir))
	}
}

// TestUnlinkOfOpenFile checks that a file that is unlinked while open stays readable and writable for its handles, also
// for read-only ones, whether it is being written or only in S3. Another file can take the path.
// mission: D5
func TestUnlinkOfOpenFile(t *testing.T) {
	t.Parallel()
	p, dir, path := storedOld(t, "sbx_unlinked")
	reader, writer := openOld(t, path, os.O_RDONLY), openOld(t, path, os.O_RDWR)
	for _, written := range []bool{false, true} {
		if written {
			write(t, path, string(bytes.Repeat([]byte("1"), oldSize)))
			reader, writer = openOld(t, path, os.O_RDONLY), openOld(t, path, os.O_RDWR)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		reader.check(false)
		if _, err := writer.WriteAt([]byte("more"), 0); err != nil {
			t.Error(err)
		}
		copy(reader.content, "more")
		reader.check(false)
		if st, err := reader.Stat(); err != nil || st.Size() != oldSize {
			t.Errorf("the removed file is %v, %v", st, err)
		}
		if _, err := os.Stat(path); !errors.IsNotExist(err) || p.object("f") != "" {
			t.Errorf("it is still there: %v", err)
		}
		write(t, path, "another")
		reader.check(false)
		if err := errors.Join(writer.Close(), reader.Close()); err != nil {
			t.Error(err)
		}
		if got := p.object("f"); got != "another" || read(t, path) != "another" {
			t.Errorf("the new file has %q", got)
		}
	}
	spool, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), spoolName, "*"))
	if len(spool) > 2 { // the new file, and its note
		t.Errorf("left %q", spool)
	}
}

// Room that removed files took is free when they are closed.
func TestRemovedFilesFreeTheirRoom(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := about("sbx_room")
	a.Limit = 4 << 20
	dir := p.mounted(a)
	for range 5 {
		f, err := os.Create(filepath.Join(dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
		if _, err := f.Write(make([]byte, 3<<20)); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		testenv.Eventually(t, "there is room again", func() bool { return roomFor(filepath.Join(dir, "g"), 2<<20) })
	}
}

// roomFor reports whether a file of size bytes can be written. The kernel releases handles shortly after programs close
// them.
func roomFor(path string, size int) bool {
	defer os.Remove(path)
	return os.WriteFile(path, make([]byte, size), 0o600) == nil
}

// TestUnlinkWithoutContent checks that handles of a removed file whose content is no longer in S3 read the old content
// or get ESTALE, and that writes to them reach no other file.
// mission: D5
func TestUnlinkWithoutContent(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("f", string(bytes.Repeat([]byte("1"), oldSize)))
	a := p.asked()
	path := filepath.Join(p.mounted(about("sbx_unlinked2")), "f")
	h := openOld(t, path, os.O_RDWR)
	a.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || r.URL.Query().Has("list-type") {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	a.answers(nil)
	write(t, path, "another")
	h.check(true)
	_, err := h.WriteAt([]byte("lost"), 0)
	is(t, err, syscall.ESTALE)
	is(t, h.Chmod(0o600), syscall.ESTALE)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if got := p.object("f"); got != "another" || read(t, path) != "another" {
		t.Errorf("the new file has %q", got)
	}
}

// TestRenameThatFails checks that a failed rename leaves the file that it would have replaced unchanged, also if that
// is not stored yet.
// mission: D5
func TestRenameThatFails(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := p.asked()
	dir := p.mounted(about("sbx_fails"))
	path := filepath.Join(dir, "f")
	write(t, path+".new", "new")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("mine"); err != nil {
		t.Fatal(err)
	}
	a.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("X-Amz-Copy-Source") == "" {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	is(t, os.Rename(path+".new", path), syscall.EACCES)
	a.answers(nil)
	if got := read(t, path); got != "mine" {
		t.Errorf("the file has %q", got)
	}
	if err := f.Sync(); err != nil || p.object("f") != "mine" || p.object("f.new") != "new" {
		t.Errorf("stored %q and %q, %v", p.object("f"), p.object("f.new"), err)
	}
}

// TestRenameOfOpenFile checks that a program can still read a file that is renamed while open.
// mission: D5
func TestRenameOfOpenFile(t *testing.T) {
	t.Parallel()
	_, _, path := storedOld(t, "sbx_renamed")
	h := openOld(t, path, os.O_RDONLY)
	if err := os.Rename(path, path+".2"); err != nil {
		t.Fatal(err)
	}
	h.check(false)
}

// TestReplacedByOthersWhileOpen checks that handles stay consistent when another program replaces an object that is
// open, and partly in the kernel's cache. The old handle reads old bytes or gets ESTALE, also after others have opened
// the new object. Later opens see the new one.
// mission: D5
func TestReplacedByOthersWhileOpen(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir, other := p.mounted(about("sbx_replaced")), p.mounted(about("sbx_replaced2"))
	write(t, filepath.Join(other, "f"), string(bytes.Repeat([]byte("1"), oldSize)))
	path := filepath.Join(dir, "f")
	old := openOld(t, path, os.O_RDONLY)
	again := openOld(t, path, os.O_RDONLY) // the kernel may answer it from its cache
	newer := string(bytes.Repeat([]byte("2"), oldSize+100))
	write(t, filepath.Join(other, "f"), newer)
	// A handle that reads ESTALE makes the next open look the name up again.
	if !old.check(true) {
		t.Error("the mount did not notice the new object")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != newer {
		t.Errorf("opened after ESTALE it has %d bytes, %v", len(b), err)
	}
	again.check(true)
	testenv.Eventually(t, "the new object is seen", func() bool {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, syscall.ESTALE) {
			t.Errorf("who opens it later: %v", err)
		}
		if err == nil && !bytes.Equal(b, []byte(newer)) && !bytes.Equal(b, old.content) {
			t.Errorf("who opens it later reads a mixture of %d bytes", len(b))
		}
		return string(b) == newer
	})
	old.check(true)
	if st, err := old.Stat(); err != nil || st.Size() != oldSize {
		t.Errorf("the old file is %v, %v", st, err)
	}
	if got := names(t, dir); got != `["f"]` {
		t.Errorf("list %s", got)
	}
}
