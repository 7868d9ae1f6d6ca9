package mount

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// asked makes all later mounts send their requests through a proxy that counts.
func (p *place) asked() *asks {
	p.t.Helper()
	a := newAsks(p.t, p.loc.Endpoint)
	p.loc.Endpoint = a.URL
	return a
}

// listed returns the entries of a directory, including those that cannot be described.
func listed(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer f.Close()
	all, err := f.Readdirnames(-1)
	if err != nil {
		t.Error(err)
	}
	slices.Sort(all)
	return fmt.Sprintf("%q", all)
}

// TestOpenAtTheEnd checks that files that are still open when a sandbox ends are stored, with the data written so far.
// mission: D5
func TestOpenAtTheEnd(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("old", "12345")
	dir, err := p.Mount(t.Context(), about("sbx_open"))
	if err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string]int{"new": os.O_CREATE | os.O_WRONLY, "old": os.O_RDWR} {
		f, err := os.OpenFile(filepath.Join(dir, name), flags, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString("abc"); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Finish(t.Context(), "sbx_open"); err != nil {
		t.Errorf("its end: %v", err)
	}
	if got, old := p.object("new"), p.object("old"); got != "abc" || old != "abc45" {
		t.Errorf("stored %q and %q", got, old)
	}
	if got := names(t, p.dir); got != "[]" {
		t.Errorf("left: %s", got)
	}
}

// TestReadAgain checks that reading a file again requests none of its data from S3 while the object is unchanged, and
// returns the new content after another client has replaced it.
// mission: D5
func TestReadAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	other := p.mounted(about("sbx_again2"))
	a := p.asked()
	content := string(random(300_000))
	write(t, filepath.Join(other, "f"), content)
	path := filepath.Join(p.mounted(about("sbx_again1")), "f")
	if got := read(t, path); got != content {
		t.Errorf("it reads %d bytes", len(got))
	}
	asks := func() int { return len(a.of("GET", keyPath("f"))) }
	if asks() == 0 {
		t.Fatal("the proxy counts nothing")
	}
	silent := false
	for range 20 { // the kernel may drop a page at any time
		before := asks()
		if got := read(t, path); got != content {
			t.Errorf("again it reads %d bytes", len(got))
		}
		silent = silent || asks() == before
	}
	if !silent {
		t.Errorf("each time it asks again: %s", a.of("GET", keyPath("f")))
	}
	newer := strings.Repeat("n", len(content))
	write(t, filepath.Join(other, "f"), newer)
	eventually(t, "it reads the new content", func() bool {
		got, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, unix.ESTALE) { // what a file gets that is open while it is replaced
			t.Fatal(err)
		}
		return string(got) == newer
	})
}

// TestReserved checks that Harvest's own data below .harvest/ is neither visible nor changed: files that programs
// create under that name are their own, with another key.
// mission: D5
func TestReserved(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put(manifest.Key, "of syncs")
	p.put("f", "seen")
	dir := p.mounted(about("sbx_reserved"))
	own := filepath.Join(dir, tree.Reserved)
	record := filepath.Join(dir, manifest.Key)
	if got := listed(t, dir); got != `["f"]` {
		t.Errorf("list %s", got)
	}
	for _, path := range []string{own, record} {
		_, err := os.Stat(path)
		is(t, err, syscall.ENOENT)
	}
	is(t, os.WriteFile(record, []byte("mine"), 0o600), syscall.ENOENT)
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, own); got != "[]" {
		t.Errorf("in a program's own: %s", got)
	}
	write(t, record, "mine")
	if got := p.object("%~2Eharvest/manifest-v1"); got != "mine" || read(t, record) != got {
		t.Errorf("a program's own is stored as %q, and reads %q", got, read(t, record))
	}
	if err := os.Rename(filepath.Join(dir, "f"), filepath.Join(own, "f")); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(own); err != nil {
		t.Error(err)
	}
	if got := listed(t, dir); got != "[]" {
		t.Errorf("list %s", got)
	}
	if got := names(t, filepath.Join(s3test.Dir(p.bucket), "work", tree.Reserved)); got != `["manifest-v1"]` ||
		p.object(manifest.Key) != "of syncs" {
		t.Errorf("Harvest's own are %s, the manifest is %q", got, p.object(manifest.Key))
	}
}

// TestKeys checks that keys that no directory tree could have are handled: of a and a/b the file is visible, and
// invalid paths are not. Directories have objects.
// mission: D5
func TestKeys(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	store := s3mem.New()
	if err := store.CreateBucket("keys"); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(gofakes3.New(store).Server())
	t.Cleanup(s.Close)
	p.loc.Bucket, p.loc.Endpoint = "keys", s.URL
	there := func(key string) bool {
		o, err := store.HeadObject("keys", "work/"+key)
		return err == nil && o != nil
	}
	bad := []string{"/abs", "x//y", "dot/./f", "b/../../c", "..", ".", strings.Repeat("w", 256), "%~41"}
	for _, key := range append([]string{"a", "a/b", "implied/only", "fine"}, bad...) {
		if _, err := store.PutObject("keys", "work/"+key, map[string]string{}, strings.NewReader("body"), 4,
			nil); err != nil {
			t.Fatal(err)
		}
	}
	dir := p.mounted(about("sbx_keys"))
	at := func(name string) string { return filepath.Join(dir, name) }
	_, err := os.Stat(at("a/b")) // also before any list
	is(t, err, syscall.ENOTDIR)
	if got := listed(t, dir); got != `["a" "b" "dot" "fine" "implied" "x"]` {
		t.Errorf("list %s", got)
	}
	list, err := os.ReadDir(dir)
	if err != nil || slices.ContainsFunc(list, func(e os.DirEntry) bool { return e.Name() == "a" && e.IsDir() }) {
		t.Errorf("it lists %v, %v", list, err)
	}
	for _, name := range []string{"b", "dot", "x"} {
		if got := listed(t, at(name)); got != "[]" {
			t.Errorf("in %s is %s", name, got)
		}
	}
	if st, err := os.Stat(at("a")); err != nil || !st.Mode().IsRegular() || read(t, at("a")) != "body" {
		t.Errorf("a and a/b: %v, %v", st, err)
	}
	_, err = os.ReadFile(at("a/b"))
	is(t, err, syscall.ENOTDIR)
	// Without the file, the directory appears.
	if err := os.Remove(at("a")); err != nil || there("a") || !there("a/b") {
		t.Errorf("a is removed: %v", err)
	}
	if got := names(t, at("a")); got != `["b"]` || read(t, at("a/b")) != "body" {
		t.Errorf("without a there is %s", got)
	}
	if err := os.Mkdir(at("d"), 0o755); err != nil || !there("d/") {
		t.Errorf("a directory has no object: %v", err)
	}
	if there("implied/") {
		t.Error("a directory that was only seen has an object")
	}
	if err := os.Remove(at("implied/only")); err != nil || !there("implied/") || there("implied/only") {
		t.Errorf("a directory whose last file goes has no object: %v", err)
	}
	for _, key := range bad {
		if !there(key) {
			t.Errorf("%q is gone", key)
		}
	}
}

// TestMountOptions checks that no file of a bucket is executed as another user or is a device.
// mission: D5
func TestMountOptions(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	readOnly := about("sbx_options2")
	readOnly.ReadOnly = true
	for _, a := range []About{about("sbx_options1"), readOnly} {
		dir := p.mounted(a)
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		var options []string
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 5 && fields[4] == dir {
				options = strings.Split(fields[5], ",")
			}
		}
		if !slices.Contains(options, "nosuid") || !slices.Contains(options, "nodev") ||
			slices.Contains(options, "ro") != a.ReadOnly {
			t.Errorf("read-only %v: it is mounted with %q", a.ReadOnly, options)
		}
	}
}

// TestCopies checks that S3 changes metadata by copying an object onto itself, and renames a file by a copy: no data is
// downloaded or uploaded.
// mission: D5
func TestCopies(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("f", "content")
	a := p.asked()
	path := filepath.Join(p.mounted(about("sbx_copies")), "f")
	for _, err := range []error{os.Chmod(path, 0o600), os.Rename(path, path+"2")} {
		if err != nil {
			t.Error(err)
		}
	}
	if got := a.of("PUT", keyPath("f")); len(got) != 1 || got[0].copies != "from "+keyPath("f") {
		t.Errorf("for another mode it asks %s", got)
	}
	if got := a.of("PUT", keyPath("f2")); len(got) != 1 || got[0].copies != "from "+keyPath("f") {
		t.Errorf("for another name it asks %s", got)
	}
	if got := append(a.of("GET", keyPath("f")), a.of("GET", keyPath("f2"))...); len(got) > 0 {
		t.Errorf("it asks %s", got)
	}
}

// TestTooLargeToCopy checks that a file that is too large for one copy stays unchanged.
func TestTooLargeToCopy(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("large", "")
	if err := os.Truncate(filepath.Join(s3test.Dir(p.bucket), "work", "large"), 5<<30+1); err != nil {
		t.Fatal(err)
	}
	dir := p.mounted(about("sbx_toolarge"))
	is(t, os.Rename(filepath.Join(dir, "large"), filepath.Join(dir, "other")), syscall.EOPNOTSUPP)
	is(t, os.Chmod(filepath.Join(dir, "large"), 0o600), syscall.EOPNOTSUPP)
	if got := names(t, dir); got != `["large"]` {
		t.Errorf("list %s", got)
	}
}

// TestDenied checks that a refusal of S3 is EACCES, also if it comes only when the file is stored.
// mission: D5
func TestDenied(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("f", "secret")
	a := p.asked()
	dir := p.mounted(about("sbx_denied"))
	a.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead || r.URL.Query().Has("list-type") {
			return false
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>m</Message></Error>`)
		return true
	})
	_, err := os.ReadFile(filepath.Join(dir, "f"))
	is(t, err, syscall.EACCES)
	for what, err := range map[string]error{
		"remove": os.Remove(filepath.Join(dir, "f")), "mkdir": os.Mkdir(filepath.Join(dir, "d"), 0o700),
		"chmod": os.Chmod(filepath.Join(dir, "f"), 0o600),
		"link":  os.Symlink("f", filepath.Join(dir, "l")), "rename": os.Rename(filepath.Join(dir, "f"),
			filepath.Join(dir, "g")),
	} {
		if !errors.Is(err, syscall.EACCES) {
			t.Errorf("%s: %v", what, err)
		}
	}
	g, err := os.Create(filepath.Join(dir, "new"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.WriteString("mine"); err != nil {
		t.Error(err)
	}
	is(t, g.Sync(), syscall.EACCES)
	is(t, g.Close(), syscall.EACCES)
	if told := p.next(FileFailed); told.Path != "new" {
		t.Errorf("told %+v", told)
	}
	a.answers(nil)
	if err := p.Finish(t.Context(), "sbx_denied"); err != nil || p.object("new") != "mine" ||
		p.object("f") != "secret" {
		t.Errorf("at the end: %v, stored %q", err, p.object("new"))
	}
}

// TestNotKept checks that locks and similar state are local to one sandbox, and that unsupported operations fail.
func TestNotKept(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("f", "content")
	one, two := p.mounted(about("sbx_notkept1")), p.mounted(about("sbx_notkept2"))
	lock := func(dir string) (*os.File, error) {
		f, err := os.Open(filepath.Join(dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	first, err := lock(one)
	if err != nil {
		t.Errorf("a lock: %v", err)
	}
	_, err = lock(one)
	is(t, err, syscall.EWOULDBLOCK)
	if _, err := lock(two); err != nil {
		t.Errorf("a lock of another sandbox: %v", err)
	}
	first.Close()
	// If two clients create a file at the same time, the last one to close it wins.
	create := func(dir string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, "g"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	g1, g2 := create(one), create(two)
	for i, f := range []*os.File{g2, g1} {
		if _, err := f.WriteString([]string{"two", "one"}[i]); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := p.object("g"); got != "one" {
		t.Errorf("stored %q", got)
	}
	_, err = os.OpenFile(filepath.Join(one, "g"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	is(t, err, syscall.EEXIST)
	path := filepath.Join(one, "f")
	is(t, unix.Setxattr(path, "user.x", []byte("1"), 0), syscall.EOPNOTSUPP)
	_, err = unix.Getxattr(path, "user.x", nil)
	is(t, err, syscall.EOPNOTSUPP)
	is(t, syscall.Mknod(filepath.Join(one, "device"), syscall.S_IFCHR|0o600, 0), syscall.ENOTSUP)
	// Access times equal modification times.
	then := time.Unix(1_600_000_000, 0)
	if err := os.Chtimes(path, time.Unix(1_700_000_000, 0), then); err != nil {
		t.Error(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Atim.Sec != then.Unix() || st.Mtim.Sec != then.Unix() {
		t.Errorf("read at %d, changed at %d, %v", st.Atim.Sec, st.Mtim.Sec, err)
	}
}

// TestBesideSyncs checks that a mount and syncs understand each other's metadata. A mount leaves the manifest
// unchanged: its files are visible with List. It does not see files that a sync stored as sparse.
// mission: D5
func TestBesideSyncs(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newPlace(t)
	b, err := object.Open(t.Context(), p.loc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	then := time.Unix(1_600_000_000, 123_456_789)
	volume := t.TempDir()
	in := func(name string) string { return filepath.Join(volume, name) }
	write(t, in("f"), "of a sync")
	write(t, in("sparse"), "")
	for _, err := range []error{os.Truncate(in("sparse"), 65<<20), os.Symlink("f", in("link")),
		os.Chmod(in("f"), 0o640), os.Chtimes(in("f"), then, then)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sync := func(o s3sync.Options) {
		t.Helper()
		tree, err := tree.Open(volume)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		if stats, err := s3sync.Sync(t.Context(), tree, b, o); err != nil || len(stats.Failures) > 0 {
			t.Fatalf("sync: %v, %+v", err, stats.Failures)
		}
	}
	sync(s3sync.Options{Direction: plan.Up})
	before := p.object(manifest.Key)
	dir := p.mounted(about("sbx_beside"))
	if got := names(t, dir); got != `["f" "link"]` {
		t.Errorf("list %s", got)
	}
	if st, err := os.Stat(filepath.Join(dir, "f")); err != nil || st.Mode() != 0o640 || !st.ModTime().Equal(then) {
		t.Errorf("the mount shows %v, %v", st, err)
	}
	if target, err := os.Readlink(filepath.Join(dir, "link")); err != nil || target != "f" {
		t.Errorf("a link of a sync: %q, %v", target, err)
	}
	write(t, filepath.Join(dir, "g"), "of a mount")
	for _, err := range []error{os.Symlink("g", filepath.Join(dir, "link2")), os.Chmod(filepath.Join(dir, "g"), 0o604),
		os.Chtimes(filepath.Join(dir, "g"), then, then)} {
		if err != nil {
			t.Error(err)
		}
	}
	if p.object(manifest.Key) != before {
		t.Error("the mount has changed the manifest")
	}
	sync(s3sync.Options{Direction: plan.Down})
	if got := names(t, volume); got != `["f" "link" "sparse"]` {
		t.Errorf("without List comes %s", got)
	}
	sync(s3sync.Options{Direction: plan.Down, List: true})
	if got := names(t, volume); got != `["f" "g" "link" "link2" "sparse"]` {
		t.Errorf("with List comes %s", got)
	}
	if st, err := os.Stat(in("g")); err != nil || st.Mode() != 0o604 || !st.ModTime().Equal(then) ||
		read(t, in("g")) != "of a mount" {
		t.Errorf("a file of the mount comes as %v, %v", st, err)
	}
	if target, err := os.Readlink(in("link2")); err != nil || target != "g" {
		t.Errorf("a link of the mount: %q, %v", target, err)
	}
}
