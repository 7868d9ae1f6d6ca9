package mount

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestFiles checks that file operations of programs work, and end up in the bucket.
// mission: D5
func TestFiles(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("there/a.txt", "from others")
	p.put("there/ü +%41", "odd name")
	dir := p.mounted(about("sbx_files"))
	at := func(name string) string { return filepath.Join(dir, name) }

	if got := read(t, at("there/a.txt")); got != "from others" {
		t.Errorf("read %q", got)
	}
	if got := names(t, at("there")); got != `["a.txt" "ü +%41"]` {
		t.Errorf("list %s", got)
	}
	if got := read(t, at("there/ü +%41")); got != "odd name" {
		t.Errorf("an odd name: %q", got)
	}
	if _, err := os.Stat(at("nothing")); !errors.IsNotExist(err) {
		t.Errorf("nothing: %v", err)
	}
	// Write, append, overwrite in the middle, cut.
	write(t, at("w.txt"), "hello")
	if got := p.object("w.txt"); got != "hello" {
		t.Errorf("stored %q", got)
	}
	change(t, at("w.txt"), os.O_APPEND|os.O_WRONLY,
		func(f *os.File) error { _, err := f.WriteString(" world"); return err })
	change(t, at("w.txt"), os.O_RDWR, func(f *os.File) error { _, err := f.WriteAt([]byte("J"), 0); return err })
	if got := p.object("w.txt"); got != "Jello world" || read(t, at("w.txt")) != got {
		t.Errorf("stored %q, read %q", got, read(t, at("w.txt")))
	}
	if err := os.Truncate(at("w.txt"), 5); err != nil || p.object("w.txt") != "Jello" {
		t.Errorf("cut: %v, %q", err, p.object("w.txt"))
	}
	change(t, at("w.txt"), os.O_TRUNC|os.O_WRONLY,
		func(f *os.File) error { _, err := f.WriteString("new"); return err })
	if got := p.object("w.txt"); got != "new" {
		t.Errorf("stored %q", got)
	}
	// A file with an older version in S3 is seen as written, and stored by fsync.
	change(t, at("w.txt"), os.O_RDWR, func(f *os.File) error {
		if _, err := f.WriteString("NEWER"); err != nil {
			return err
		}
		if got := read(t, at("w.txt")); got != "NEWER" || p.object("w.txt") != "new" {
			t.Errorf("while it is written: %q, %q", got, p.object("w.txt"))
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if got := p.object("w.txt"); got != "NEWER" {
			t.Errorf("after fsync: %q", got)
		}
		return nil
	})
	write(t, at("empty"), "")
	write(t, at("line\nbreak\xff"), "odd")
	if got := p.object("line%~0Abreak%~FF"); got != "odd" {
		t.Errorf("a name that can be no key: %q", got)
	}
	if st, err := os.Stat(filepath.Join(dir, "empty")); err != nil || st.Size() != 0 {
		t.Errorf("an empty file: %v", err)
	}
	if got := names(t, dir); got != `["empty" "line\nbreak\xff" "there" "w.txt"]` {
		t.Errorf("list %s", got)
	}
}

func change(t *testing.T, path string, flags int, do func(*os.File) error) {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := do(f); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return fmt.Sprintf("%q", all)
}

// TestNames checks that names work: directories, links, rename, removal, and operations that objects do not support.
func TestNames(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("implied/only.txt", "1")
	dir := p.mounted(about("sbx_names"))
	at := func(name string) string { return filepath.Join(dir, name) }
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	is := func(err error, want syscall.Errno) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	ok(os.MkdirAll(at("a/b/c"), 0o750))
	if st, err := os.Stat(at("a/b")); err != nil || st.Mode() != fs.ModeDir|0o750 {
		t.Errorf("a directory: %v %v", st, err)
	}
	is(os.Mkdir(at("a"), 0o755), syscall.EEXIST)
	is(os.Remove(at("a")), syscall.ENOTEMPTY)
	ok(os.Remove(at("a/b/c")))
	write(t, at("a/one"), "1")
	ok(os.Rename(at("a/one"), at("a/b/two")))
	if got := p.object("a/b/two"); got != "1" || p.object("a/one") != "" || read(t, at("a/b/two")) != "1" {
		t.Errorf("renamed: %q", got)
	}
	write(t, at("a/three"), "3")
	ok(os.Rename(at("a/three"), at("a/b/two"))) // over another
	if got := read(t, at("a/b/two")); got != "3" || names(t, at("a")) != `["b"]` {
		t.Errorf("renamed over: %q, %s", got, names(t, at("a")))
	}
	is(os.Rename(at("a/b"), at("d")), syscall.EXDEV)
	is(os.Link(at("a/b/two"), at("hard")), syscall.EPERM)
	ok(os.Symlink("a/b/two", at("link")))
	if target, err := os.Readlink(at("link")); err != nil || target != "a/b/two" || read(t, at("link")) != "3" ||
		p.object("link") != target {
		t.Errorf("a link: %q, %v", target, err)
	}
	ok(os.Rename(at("link"), at("link2")))
	if target, err := os.Readlink(at("link2")); err != nil || target != "a/b/two" {
		t.Errorf("a renamed link: %q, %v", target, err)
	}
	ok(os.Remove(at("link2")))
	// A directory that exists only in keys stays when its last file is removed.
	ok(os.Remove(at("implied/only.txt")))
	if got := names(t, at("implied")); got != "[]" {
		t.Errorf("list %s", got)
	}
	ok(os.Remove(at("implied")))
	ok(os.Remove(at("a/b/two")))
	is(os.Remove(at("a/b/two")), syscall.ENOENT)
	// A file that is removed while it is written is not stored.
	change(t, at("a/gone"), os.O_CREATE|os.O_RDWR, func(f *os.File) error {
		_, _ = f.WriteString("bye")
		ok(os.Remove(at("a/gone")))
		_, err := f.WriteString(" bye")
		buf := make([]byte, 7)
		if n, _ := f.ReadAt(buf, 0); string(buf[:n]) != "bye bye" {
			t.Errorf("a removed file has %q", buf[:n])
		}
		return err
	})
	if got := p.object("a/gone"); got != "" {
		t.Errorf("stored %q", got)
	}
	// A file that is renamed while it is written.
	change(t, at("tmp"), os.O_CREATE|os.O_WRONLY, func(f *os.File) error {
		_, _ = f.WriteString("one ")
		ok(os.Rename(at("tmp"), at("final")))
		_, err := f.WriteString("two")
		return err
	})
	if got := p.object("final"); got != "one two" || p.object("tmp") != "" {
		t.Errorf("stored %q", got)
	}
	is(os.WriteFile(at(strings.Repeat("n", 255)+"/x"), nil, 0o600), syscall.ENOENT)
	deep := dir
	for range 5 {
		deep = filepath.Join(deep, strings.Repeat("d", 250))
		if err := os.Mkdir(deep, 0o755); err != nil {
			is(err, syscall.ENAMETOOLONG)
			break
		}
	}
	ok(os.RemoveAll(at(strings.Repeat("d", 250))))
	is(syscall.Mkfifo(at("fifo"), 0o600), syscall.ENOTSUP)
	if got := names(t, dir); got != `["a" "final"]` {
		t.Errorf("list %s", got)
	}
}

// TestMetadata checks that mode, owner and time are stored in the object's headers, and that a later mount sees them.
func TestMetadata(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir := p.mounted(about("sbx_meta1"))
	then := time.Unix(1700000000, 123456789)
	file, sub := filepath.Join(dir, "f"), filepath.Join(dir, "d")
	write(t, file, "content")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, sub} {
		for _, err := range []error{os.Chmod(name, 0o711|fs.ModeSetuid), os.Chown(name, 1234, 5678),
			os.Chtimes(name, then, then)} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Error(err)
	}
	// The same holds for files that are not stored yet.
	change(t, filepath.Join(dir, "g"), os.O_CREATE|os.O_WRONLY, func(f *os.File) error {
		_, _ = f.WriteString("g")
		return errors.Join(f.Chmod(0o640), os.Chtimes(f.Name(), then, then))
	})
	p.loc.Patience = 0
	again := p.mounted(about("sbx_meta2"))
	for name, mode := range map[string]fs.FileMode{"f": 0o711, "d": fs.ModeDir | 0o711, "g": 0o640} {
		st, err := os.Stat(filepath.Join(again, name))
		if err != nil {
			t.Error(err)
			continue
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok {
			t.Fatal("no stat")
		}
		if st.Mode() != mode || !st.ModTime().Equal(then) || name != "g" && (sys.Uid != 1234 || sys.Gid != 5678) {
			t.Errorf("%s: %v %v %d:%d", name, st.Mode(), st.ModTime(), sys.Uid, sys.Gid)
		}
	}
	if got := read(t, filepath.Join(again, "f")); got != "content" {
		t.Errorf("read %q", got)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(again, &st); err != nil || st.Bavail == 0 {
		t.Errorf("statfs: %v", err)
	}
}

// TestOwnersOfASandboxWithUsersOfItsOwn checks that the bucket keeps the sandbox's owners, and that the mount shows
// them as users of the sandbox's range.
func TestOwnersOfASandboxWithUsersOfItsOwn(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	const first = 0x7000_0000
	owners := func(dir string) string {
		t.Helper()
		var all []string
		for _, name := range []string{".", "made", "given", "far"} {
			var st syscall.Stat_t
			if err := syscall.Stat(filepath.Join(dir, name), &st); err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%d:%d", st.Uid, st.Gid))
		}
		return strings.Join(all, " ")
	}
	dir := p.mounted(about("sbx_own1"))
	if _, err := os.Stat(dir); err != nil { // the kernel keeps the attributes
		t.Fatal(err)
	}
	if ok, err := p.SetOwner(t.Context(), dir, first); err != nil || !ok {
		t.Fatalf("SetOwner: %t, %v", ok, err)
	}
	for name, id := range map[string]int{"made": -1, "given": first + 1234, "far": -1} {
		write(t, filepath.Join(dir, name), "content")
		if err := os.Chown(filepath.Join(dir, name), id, id); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := owners(dir), fmt.Sprintf("%[1]d:%[1]d %[1]d:%[1]d %[2]d:%[2]d %[1]d:%[1]d", first,
		first+1234); got != want {
		t.Errorf("the mount shows %s, want %s", got, want)
	}
	plain := p.mounted(about("sbx_own2"))
	if err := os.Chown(filepath.Join(plain, "far"), 70000, 7); err != nil {
		t.Fatal(err)
	}
	if got, want := owners(plain), "0:0 0:0 1234:1234 70000:7"; got != want {
		t.Errorf("a mount of the host's users shows %s, want %s", got, want)
	}
	again := p.mounted(about("sbx_own3"))
	if ok, err := p.SetOwner(t.Context(), again, first); err != nil || !ok {
		t.Fatalf("SetOwner: %t, %v", ok, err)
	}
	if got, want := owners(again), fmt.Sprintf("%[1]d:%[1]d %[1]d:%[1]d %[2]d:%[2]d %[3]d:%[4]d", first,
		first+1234, first+nobody, first+7); got != want {
		t.Errorf("a later mount shows %s, want %s", got, want)
	}
	if ok, err := p.SetOwner(t.Context(), t.TempDir(), first); err != nil || ok {
		t.Errorf("a directory that is not a mount: %t, %v", ok, err)
	}
}

// TestLargeFile checks that a large file is uploaded and downloaded in parts, in order and out of order.
func TestLargeFile(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newPlace(t)
	dir := p.mounted(about("sbx_large"))
	const size = 200 << 20
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(data)
	path := filepath.Join(dir, "large")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(p.mounted(about("sbx_large2")), "large")
	got, err := os.ReadFile(again)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
		t.Errorf("in order: %v, %d bytes", err, len(got))
	}
	third := filepath.Join(p.mounted(about("sbx_large3")), "large")
	f, err := os.Open(third)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 70_000)
	for range 100 {
		at := rand.Int64N(size - int64(len(buf)))
		if _, err := f.ReadAt(buf, at); err != nil || !bytes.Equal(buf, data[at:at+int64(len(buf))]) {
			t.Fatalf("at %d: %v", at, err)
		}
	}
	// A byte in the middle: the rest is fetched and stored again.
	change(t, third, os.O_WRONLY, func(f *os.File) error {
		_, err := f.WriteAt([]byte{data[size/2] + 1},
			size/2)
		return err
	})
	data[size/2]++
	if sum := sha256.Sum256([]byte(p.object("large"))); sum != sha256.Sum256(data) {
		t.Error("what was stored after a change differs")
	}
}

func TestManyFiles(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newPlace(t)
	const n = 1500 // more than a page of a list
	for i := range n {
		p.put(fmt.Sprintf("many/%04d", i), fmt.Sprint(i))
	}
	dir := p.mounted(about("sbx_many"))
	list, err := os.ReadDir(filepath.Join(dir, "many"))
	if err != nil || len(list) != n {
		t.Fatalf("%d names, %v", len(list), err)
	}
	for i, e := range list {
		if st, err := e.Info(); err != nil || st.Size() != int64(len(fmt.Sprint(i))) {
			t.Fatalf("%s: %v", e.Name(), err)
		}
	}
	for i := range 100 {
		write(t, filepath.Join(dir, fmt.Sprintf("new%d", i)), "x")
	}
	for i := range 100 {
		if p.object(fmt.Sprintf("new%d", i)) != "x" {
			t.Errorf("new%d is not stored", i)
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "many")); err != nil {
		t.Error(err)
	}
	if got := p.object("many/0007"); got != "" {
		t.Errorf("still there: %q", got)
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("f", "1")
	a := about("sbx_ro")
	a.ReadOnly = true
	dir := p.mounted(a)
	if got := read(t, filepath.Join(dir, "f")); got != "1" {
		t.Errorf("read %q", got)
	}
	for what, err := range map[string]error{
		"write":  os.WriteFile(filepath.Join(dir, "f"), nil, 0o600),
		"create": os.WriteFile(filepath.Join(dir, "g"), nil, 0o600),
		"remove": os.Remove(filepath.Join(dir, "f")), "mkdir": os.Mkdir(filepath.Join(dir, "d"), 0o700),
		"chmod": os.Chmod(filepath.Join(dir, "f"), 0o600),
	} {
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
