//go:build linux

package tarfs_test

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/google/go-cmp/cmp"
)

var epoch = time.Unix(1_600_000_000, 123_456_789)

// entry is a header with content, for short tests.
type entry struct {
	name, link, content string
	kind                byte
	mode                int64
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		hdr := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.content)),
			ModTime: epoch, Format: tar.FormatPAX}
		if e.kind == tar.TypeXGlobalHeader {
			hdr = &tar.Header{Typeflag: e.kind, PAXRecords: map[string]string{"comment": "x"}}
		}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func openRoot(t testing.TB, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// tree describes everything below dir in one line each.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch info.Mode().Type() {
		case 0:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += " " + string(data)
		case fs.ModeSymlink:
			target, _ := os.Readlink(p)
			text += " " + target
		}
		got[rel] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// mission: C1
func TestUnpackAndPackKeepATree(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long/", 60) + "name"
	data := archive(t,
		entry{kind: tar.TypeXGlobalHeader},
		entry{name: "./", kind: tar.TypeDir, mode: 0o700},
		entry{name: "dir/", kind: tar.TypeDir, mode: 0o555},
		entry{name: "dir/run", content: "#!/bin/sh\n", mode: 0o4755},
		entry{name: "dir/same", kind: tar.TypeLink, link: "dir/run"},
		entry{name: "link", kind: tar.TypeSymlink, link: "/etc/passwd"},
		entry{name: "implicit/file", content: "x", mode: 0o600},
		entry{name: "grüße/日本", content: "utf-8"},
		entry{name: "latin\xe9", content: "not utf-8"},
		entry{name: "pipe", kind: tar.TypeFifo},
		entry{name: long, content: "far"},
		entry{name: "empty/", kind: tar.TypeDir, mode: 0o750},
	)
	dir := t.TempDir()
	root := openRoot(t, dir)
	if err := tarfs.Unpack(root, "a/b", bytes.NewReader(data), tarfs.Options{SetID: true}); err != nil {
		t.Fatal(err)
	}
	got := tree(t, filepath.Join(dir, "a/b"))
	want := map[string]string{
		".": "drwxr-xr-x", "dir": "dr-xr-xr-x", "dir/run": "urwxr-xr-x #!/bin/sh\n",
		"dir/same": "urwxr-xr-x #!/bin/sh\n",
		"link":     "Lrwxrwxrwx /etc/passwd", "implicit": "drwxr-xr-x", "implicit/file": "-rw------- x",
		"grüße": "drwxr-xr-x", "grüße/日本": "-rw-r--r-- utf-8", "latin\xe9": "-rw-r--r-- not utf-8",
		"pipe":  "prw-r--r--",
		"empty": "drwxr-x---", long: "-rw-r--r-- far",
	}
	for d := filepath.Dir(long); d != "."; d = filepath.Dir(d) {
		want[d] = "drwxr-xr-x"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{"dir", "dir/run", "link", "empty", "latin\xe9"} {
		info, err := os.Lstat(filepath.Join(dir, "a/b", name))
		if err != nil {
			t.Fatal(err)
		}
		if !info.ModTime().Equal(epoch) {
			t.Errorf("%s has the time %v, want %v", name, info.ModTime(), epoch)
		}
	}

	var out bytes.Buffer
	if err := tarfs.Pack(root, "/a/b/", &out); err != nil {
		t.Fatal(err)
	}
	if err := tarfs.Unpack(root, "copy", bytes.NewReader(out.Bytes()), tarfs.Options{SetID: true,
		Owners: os.Geteuid() == 0}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, tree(t, filepath.Join(dir, "copy"))); diff != "" {
		t.Error("the copy differs:", diff)
	}
	one, err := os.Stat(filepath.Join(dir, "copy/dir/run"))
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.Stat(filepath.Join(dir, "copy/dir/same"))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(one, two) {
		t.Error("the hard link became a copy")
	}
	var again bytes.Buffer
	if err := tarfs.Pack(root, "copy", &again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("packing the copy gives another stream")
	}
}

func TestUnpackDropsSetIDUnlessAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := archive(t, entry{name: "f", mode: 0o6755}, entry{name: "d", kind: tar.TypeDir, mode: 0o1777})
	if err := tarfs.Unpack(openRoot(t, dir), "", bytes.NewReader(data), tarfs.Options{}); err != nil {
		t.Fatal(err)
	}
	got := tree(t, dir)
	if got["f"] != "-rwxr-xr-x " || got["d"] != "drwxrwxrwx" {
		t.Errorf("got %q", got)
	}
}

func TestUnpackReplaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, "precious")
	write(t, filepath.Join(dir, "file"), "old")
	if err := os.Link(outside, filepath.Join(dir, "hard")); err != nil {
		t.Fatal(err)
	}
	symlink(t, outside, filepath.Join(dir, "link"))
	if err := os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	symlink(t, "usr/bin", filepath.Join(dir, "bin"))
	data := archive(t, entry{name: "file", content: "new"}, entry{name: "hard", content: "new"}, entry{name: "link",
		content: "new"},
		entry{name: "bin/", kind: tar.TypeDir, mode: 0o755}, entry{name: "bin/sh", content: "sh"},
		entry{name: "p", kind: tar.TypeFifo}, entry{name: "p", kind: tar.TypeFifo}, entry{name: "s",
			kind: tar.TypeSymlink, link: "a"},
		entry{name: "s", kind: tar.TypeSymlink, link: "b"}, entry{name: "l", kind: tar.TypeLink, link: "file"},
		entry{name: "l", kind: tar.TypeLink, link: "hard"})
	if err := tarfs.Unpack(openRoot(t, dir), "/", bytes.NewReader(data),
		tarfs.Options{Owners: os.Geteuid() == 0}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{".": "drwxr-xr-x", "file": "-rw-r--r-- new", "hard": "-rw-r--r-- new",
		"link": "-rw-r--r-- new", "bin": "Lrwxrwxrwx usr/bin",
		"usr": "drwxr-xr-x", "usr/bin": "drwxr-xr-x", "usr/bin/sh": "-rw-r--r-- sh", "p": "prw-r--r--",
		"s": "Lrwxrwxrwx b", "l": "-rw-r--r-- new"}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
	if data, _ := os.ReadFile(outside); string(data) != "precious" {
		t.Errorf("the file outside became %q", data)
	}
}

// FIFOs and devices are left out, and named, if the caller wants that.
func TestUnpackLeavesOutSpecialFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var skipped []string
	data := archive(t, entry{name: "a", content: "a"}, entry{name: "d/p", kind: tar.TypeFifo}, entry{name: "null",
		kind: tar.TypeChar},
		entry{name: "disk", kind: tar.TypeBlock}, entry{name: "z", content: "z"})
	opts := tarfs.Options{Skipped: func(name string) { skipped = append(skipped, name) }}
	if err := tarfs.Unpack(openRoot(t, dir), ".", bytes.NewReader(data), opts); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"d/p", "null", "disk"}, skipped); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{".": "drwxr-xr-x", "a": "-rw-r--r-- a", "z": "-rw-r--r-- z"},
		tree(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func write(t testing.TB, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func symlink(t testing.TB, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

// hostile archives, each refused with the kind.
var hostile = []struct {
	name    string
	entries []entry
	opts    tarfs.Options
	want    errors.Kind
}{
	{name: "absolute", entries: []entry{{name: "/abs"}}, want: errors.Invalid},
	{name: "parent", entries: []entry{{name: "../up"}}, want: errors.Invalid},
	{name: "inner parent", entries: []entry{{name: "a/../../up"}}, want: errors.Invalid},
	{name: "its own directory as a file", entries: []entry{{name: ".", content: "x"}}, want: errors.Invalid},
	{name: "link out, then write through it", entries: []entry{{name: "l", kind: tar.TypeSymlink, link: "../outside"},
		{name: "l/x"}}, want: errors.Invalid},
	{name: "absolute link, then write through it", entries: []entry{{name: "l", kind: tar.TypeSymlink, link: "/"},
		{name: "l/x"}}, want: errors.Invalid},
	{name: "link out, then make it a directory", entries: []entry{{name: "l", kind: tar.TypeSymlink,
		link: "../outside"}, {name: "l/", kind: tar.TypeDir}}, want: errors.Invalid},
	{name: "chain of links", entries: []entry{{name: "a", kind: tar.TypeSymlink, link: "b/.."},
		{name: "b", kind: tar.TypeSymlink, link: ".."}, {name: "a/x"}}, want: errors.Invalid},
	{name: "loop of links", entries: []entry{{name: "a", kind: tar.TypeSymlink, link: "a"}, {name: "a/x"}},
		want: errors.Invalid},
	{name: "hard link out", entries: []entry{{name: "l", kind: tar.TypeLink, link: "../outside/secret"}},
		want: errors.Invalid},
	{name: "absolute hard link", entries: []entry{{name: "l", kind: tar.TypeLink, link: "/etc/passwd"}},
		want: errors.Invalid},
	{name: "hard link through a link", entries: []entry{{name: "d", kind: tar.TypeSymlink, link: "../outside"},
		{name: "l", kind: tar.TypeLink, link: "d/secret"}}, want: errors.Invalid},
	{name: "hard link to nothing", entries: []entry{{name: "l", kind: tar.TypeLink, link: "nothing"}},
		want: errors.Invalid},
	{name: "hard link to itself", entries: []entry{{name: "l"}, {name: "l", kind: tar.TypeLink, link: "l"}},
		want: errors.Invalid},
	{name: "hard link to a directory", entries: []entry{{name: "d/", kind: tar.TypeDir}, {name: "l", kind: tar.TypeLink,
		link: "d"}}, want: errors.Invalid},
	{name: "character device", entries: []entry{{name: "null", kind: tar.TypeChar}}, want: errors.Invalid},
	{name: "block device", entries: []entry{{name: "sda", kind: tar.TypeBlock}}, want: errors.Invalid},
	{name: "unknown type", entries: []entry{{name: "what", kind: 'Z'}}, want: errors.Invalid},
	{name: "symbolic link without target", entries: []entry{{name: "l", kind: tar.TypeSymlink}}, want: errors.Invalid},
	{name: "file over directory", entries: []entry{{name: "d/", kind: tar.TypeDir}, {name: "d"}}, want: errors.Invalid},
	{name: "directory over file", entries: []entry{{name: "f"}, {name: "f/", kind: tar.TypeDir}}, want: errors.Invalid},
	{name: "file as directory", entries: []entry{{name: "f"}, {name: "f/x"}}, want: errors.Invalid},
	{name: "symlink over directory", entries: []entry{{name: "d/", kind: tar.TypeDir},
		{name: "d", kind: tar.TypeSymlink, link: "x"}}, want: errors.Invalid},
	{name: "hard link over directory", entries: []entry{{name: "f"}, {name: "d/", kind: tar.TypeDir},
		{name: "d", kind: tar.TypeLink, link: "f"}}, want: errors.Invalid},
	{name: "pipe over directory", entries: []entry{{name: "d/", kind: tar.TypeDir}, {name: "d", kind: tar.TypeFifo}},
		want: errors.Invalid},
	{name: "name too long", entries: []entry{{name: strings.Repeat("n", 300)}}, want: errors.Invalid},
	{name: "directory name too long", entries: []entry{{name: strings.Repeat("n", 300) + "/x"}}, want: errors.Invalid},
	{name: "too many bytes", entries: []entry{{name: "a", content: "12345"}, {name: "b", content: "123456"}},
		opts: tarfs.Options{MaxBytes: 10}, want: errors.Exhausted},
	{name: "too many entries", entries: []entry{{name: "a"}, {name: "b"}, {name: "c"}},
		opts: tarfs.Options{MaxEntries: 2}, want: errors.Exhausted},
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range hostile {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			top := guarded(t)
			err := tarfs.Unpack(openRoot(t, top), "in", bytes.NewReader(archive(t, tc.entries...)), tc.opts)
			if errors.KindOf(err) != tc.want {
				t.Errorf("got %v (%s), want %s", err, errors.KindOf(err), tc.want)
			}
			if strings.Contains(errors.Message(err), "the request is not valid") {
				t.Errorf("the error explains nothing: %v", err)
			}
			checkGuarded(t, top)
		})
	}
}

// guarded makes a directory with a place to unpack in and one that must stay unchanged.
func guarded(t testing.TB) string {
	t.Helper()
	top := t.TempDir()
	for _, d := range []string{"in", "outside"} {
		if err := os.Mkdir(filepath.Join(top, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(top, "outside/secret"), "secret")
	return top
}

func checkGuarded(t testing.TB, top string) {
	t.Helper()
	got := tree(t, top)
	for name := range got {
		if name == "in" || strings.HasPrefix(name, "in/") {
			delete(got, name)
		}
	}
	want := map[string]string{".": got["."], "outside": "drwxr-xr-x", "outside/secret": "-rw-r--r-- secret"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("something outside was touched:", diff)
	}
	info, err := os.Stat(filepath.Join(top, "outside/secret"))
	if err != nil {
		t.Fatal(err)
	}
	if n := info.Sys().(*syscall.Stat_t).Nlink; n != 1 {
		t.Errorf("the file outside has %d names", n)
	}
}

func TestUnpackRefusesDamage(t *testing.T) {
	t.Parallel()
	good := archive(t, entry{name: "a", content: strings.Repeat("x", 2000)}, entry{name: "b", content: "y"})
	broken := bytes.Clone(good)
	broken[600] ^= 0xff // content may be anything
	broken[0] ^= 0x01   // but this breaks the checksum
	for name, data := range map[string][]byte{
		"nothing": nil, "half a header": good[:300], "half a file": good[:1500],
		"between entries":  good[:len(good)-1024],
		"one block of end": good[:len(good)-512], "checksum": broken, "noise": bytes.Repeat([]byte("noise"), 500),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := openRoot(t, t.TempDir())
			for kind, r := range map[string]io.Reader{"whole": bytes.NewReader(data),
				"bytes":     iotest.OneByteReader(bytes.NewReader(data)),
				"early EOF": iotest.DataErrReader(bytes.NewReader(data))} {
				if err := tarfs.Unpack(root, "", r, tarfs.Options{}); errors.KindOf(err) != errors.Invalid {
					t.Errorf("%s: got %v, want Invalid", kind, err)
				}
			}
		})
	}
}

func TestUnpackTellsTheReadersErrors(t *testing.T) {
	t.Parallel()
	data := archive(t, entry{name: "a", content: strings.Repeat("x", 2000)})
	for _, n := range []int64{0, 700, 1500, int64(len(data))} {
		r := io.MultiReader(io.LimitReader(bytes.NewReader(data), n), iotest.ErrReader(errors.Newf(errors.Unavailable,
			"the line is cut")))
		err := tarfs.Unpack(openRoot(t, t.TempDir()), "", r, tarfs.Options{})
		if errors.KindOf(err) != errors.Unavailable {
			t.Errorf("after %d bytes: got %v, want the reader's error", n, err)
		}
	}
}

func TestUnpackReadsThePadding(t *testing.T) {
	t.Parallel()
	r := bytes.NewReader(append(archive(t, entry{name: "a"}), make([]byte, 10_240)...))
	if err := tarfs.Unpack(openRoot(t, t.TempDir()), "", iotest.DataErrReader(r), tarfs.Options{}); err != nil {
		t.Fatal(err)
	}
	if r.Len() != 0 {
		t.Errorf("%d bytes were left unread", r.Len())
	}
}

func TestPathsOfTheCaller(t *testing.T) {
	t.Parallel()
	top := guarded(t)
	symlink(t, "../outside", filepath.Join(top, "in/out"))
	symlink(t, "/etc", filepath.Join(top, "in/abs"))
	write(t, filepath.Join(top, "in/file"), "f")
	root := openRoot(t, filepath.Join(top, "in"))
	good := archive(t, entry{name: "x"})
	for dir, want := range map[string]errors.Kind{"../outside": errors.Invalid, "a/../../outside": errors.Invalid,
		"out": errors.Invalid, "out/new": errors.Invalid,
		"abs": errors.Invalid, "nul\x00": errors.Invalid, "file": errors.Invalid, "file/below": errors.Invalid,
		strings.Repeat("n", 300): errors.Invalid} {
		if err := tarfs.Unpack(root, dir, bytes.NewReader(good), tarfs.Options{}); errors.KindOf(err) != want {
			t.Errorf("Unpack to %q: got %v, want %s", dir, err, want)
		}
	}
	for name, want := range map[string]errors.Kind{"../outside": errors.Invalid, "out/secret": errors.Invalid,
		"abs/passwd": errors.Invalid, "nul\x00": errors.Invalid,
		"none": errors.NotFound, "none/at/all": errors.NotFound, "file/below": errors.Invalid} {
		if err := tarfs.Pack(root, name, io.Discard); errors.KindOf(err) != want {
			t.Errorf("Pack of %q: got %v, want %s", name, err, want)
		}
	}
	checkGuarded(t, top)
}

func TestPackOneFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a/b/file"), "content")
	symlink(t, "/nowhere", filepath.Join(dir, "a/b/link"))
	root := openRoot(t, dir)
	for name, want := range map[string]tar.Header{
		"/a/b/file": {Name: "file", Typeflag: tar.TypeReg, Mode: 0o644, Size: 7},
		"a/b/link":  {Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/nowhere", Mode: 0o777},
	} {
		var out bytes.Buffer
		if err := tarfs.Pack(root, name, &out); err != nil {
			t.Fatal(err)
		}
		tr := tar.NewReader(&out)
		hdr, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		got := tar.Header{Name: hdr.Name, Typeflag: hdr.Typeflag, Linkname: hdr.Linkname, Mode: hdr.Mode,
			Size: hdr.Size}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if _, err := tr.Next(); err != io.EOF {
			t.Errorf("there is more than one entry: %v", err)
		}
	}
}

// mutator changes a file while it is packed, as soon as its header is through.
type mutator struct {
	bytes.Buffer
	mutate func()
}

func (m *mutator) Write(p []byte) (int, error) {
	if m.mutate != nil && m.Len() >= 512 {
		m.mutate()
		m.mutate = nil
	}
	return m.Buffer.Write(p)
}

func TestPackOfChangingFiles(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	for name, change := range map[string]int64{"grows": 3 * size, "shrinks": 100, "vanishes": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "a")
			write(t, file, strings.Repeat("x", size))
			write(t, filepath.Join(dir, "b"), "after")
			out := &mutator{mutate: func() {
				if err := os.Truncate(file, change); err != nil {
					t.Error(err)
				}
				os.Remove(filepath.Join(dir, "gone"))
			}}
			write(t, filepath.Join(dir, "gone"), "soon")
			if err := tarfs.Pack(openRoot(t, dir), "", out); err != nil {
				t.Fatal(err)
			}
			tr := tar.NewReader(&out.Buffer)
			var names []string
			for {
				hdr, err := tr.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				data, err := io.ReadAll(tr)
				if err != nil {
					t.Fatal(err)
				}
				if hdr.Name == "a" && len(data) != size || hdr.Name == "b" && string(data) != "after" {
					t.Errorf("%s has %d bytes", hdr.Name, len(data))
				}
				names = append(names, hdr.Name)
			}
			if diff := cmp.Diff([]string{"a", "b"}, names); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPackPassesOverSockets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: filepath.Join(dir, "s")}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := tarfs.Pack(openRoot(t, dir), "", &out); err != nil {
		t.Fatal(err)
	}
	if hdr, err := tar.NewReader(&out).Next(); err != io.EOF {
		t.Errorf("got the entry %v", hdr)
	}
}

func TestPackTellsTheWritersErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "big"), strings.Repeat("x", 1<<20))
	for _, n := range []int64{0, 600, 1 << 19} {
		err := tarfs.Pack(openRoot(t, dir), "", &failing{left: n})
		if errors.KindOf(err) != errors.Unavailable {
			t.Errorf("after %d bytes: got %v", n, err)
		}
	}
}

type failing struct{ left int64 }

func (f *failing) Write(p []byte) (int, error) {
	if f.left -= int64(len(p)); f.left < 0 {
		return 0, errors.Newf(errors.Unavailable, "nobody listens")
	}
	return len(p), nil
}

func TestDeepTrees(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := strings.Repeat("d/", 3000) + "file" // longer than a path may be
	root := openRoot(t, dir)
	if err := tarfs.Unpack(root, "in", bytes.NewReader(archive(t, entry{name: name, content: "deep"})),
		tarfs.Options{}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := tarfs.Pack(root, "in", &out); err != nil {
		t.Fatal(err)
	}
	entries := 0
	for tr := tar.NewReader(&out); ; entries++ {
		if _, err := tr.Next(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if entries != 3001 {
		t.Errorf("got %d entries, want 3001", entries)
	}
}
