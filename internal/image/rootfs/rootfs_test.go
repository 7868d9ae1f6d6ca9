package rootfs_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/erofs/go-erofs"
	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

var epoch = time.Unix(1_600_000_000, 123_456_789)

// file is one entry of an archive, for short tests.
type file struct {
	name, link, content string
	kind                byte
	mode                int64
	uid, gid            int
}

func (f file) header() *tar.Header {
	hdr := &tar.Header{Name: f.name, Linkname: f.link, Typeflag: f.kind, Mode: f.mode, Uid: f.uid, Gid: f.gid,
		Size: int64(len(f.content)), ModTime: epoch, Format: tar.FormatPAX}
	if f.kind == 0 {
		hdr.Typeflag = tar.TypeReg
	}
	if f.mode == 0 {
		hdr.Mode = 0o644
	}
	if f.kind == tar.TypeXGlobalHeader {
		return &tar.Header{Typeflag: f.kind, PAXRecords: map[string]string{"comment": "x"}}
	}
	return hdr
}

func archive(t testing.TB, files ...file) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range files {
		if err := tw.WriteHeader(f.header()); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// build makes an image of archives and returns its file.
func build(t testing.TB, opts rootfs.Options, archives ...[]byte) (*os.File, rootfs.Stats, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	w := rootfs.NewWriter(f, opts)
	for _, a := range archives {
		if err := w.AddTar(bytes.NewReader(a), nil); err != nil {
			return f, rootfs.Stats{}, err
		}
	}
	stats, err := w.Close()
	return f, stats, err
}

// read describes every file of an image through an independent reader: type and mode, owner, time, links and content.
func read(t testing.TB, f *os.File) map[string]string {
	t.Helper()
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err = fs.WalkDir(img, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*erofs.Stat)
		inode := rawInode(t, f, st.Ino)
		text := fmt.Sprintf("%v %d:%d", info.Mode()|special(inode), st.UID, st.GID)
		if !info.ModTime().Equal(epoch) {
			text += " " + info.ModTime().UTC().Format(time.RFC3339)
		}
		if st.Nlink != 1 && !d.IsDir() {
			text += fmt.Sprintf(" %d links", st.Nlink)
		}
		switch info.Mode().Type() {
		case 0:
			data, err := fs.ReadFile(img, p)
			if err != nil {
				return err
			}
			text += " " + string(data)
			checkMappable(t, f, p, inode, len(data))
		case fs.ModeSymlink:
			target, err := fs.ReadLink(img, p)
			if err != nil {
				return err
			}
			text += " -> " + target
		}
		if len(st.Xattrs) > 0 {
			t.Errorf("%s has extended attributes, which gVisor refuses", p)
		}
		got[p] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// rawInode returns an inode in its stored form.
func rawInode(t testing.TB, f *os.File, nid int64) []byte {
	t.Helper()
	super, inode := make([]byte, 128), make([]byte, 64)
	if _, err := f.ReadAt(super, 1024); err != nil {
		t.Fatal(err)
	}
	meta := int64(binary.LittleEndian.Uint32(super[40:])) << 12
	if _, err := f.ReadAt(inode, meta+nid*32); err != nil {
		t.Fatal(err)
	}
	return inode
}

// special returns the bits of an inode's mode that the reader leaves out.
func special(inode []byte) (mode fs.FileMode) {
	raw := binary.LittleEndian.Uint16(inode[4:])
	if raw&syscall.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if raw&syscall.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if raw&syscall.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// checkMappable fails if a regular file's content does not begin at a block, which gVisor needs to map the file.
func checkMappable(t testing.TB, f *os.File, name string, inode []byte, size int) {
	t.Helper()
	if layout := inode[0] >> 1; layout != 0 {
		t.Errorf("%s has the data layout %d, want plain", name, layout)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	block := int64(binary.LittleEndian.Uint32(inode[16:]))
	if end := block<<12 + (int64(size)+4095)&^4095; size > 0 && (block == 0 || end > info.Size()) {
		t.Errorf("the blocks of %s end at %d of %d", name, end, info.Size())
	}
}

// check runs the format's own checker if it is installed.
func check(t testing.TB, f *os.File) {
	t.Helper()
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		return
	}
	if out, err := exec.Command(fsck, f.Name()).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
}

// mission: B1
func TestImageHasWhatTheTarHas(t *testing.T) {
	t.Parallel()
	big := make([]byte, 3<<20)
	rand.NewChaCha8([32]byte{1}).Read(big)
	long := strings.Repeat("long/", 60) + strings.Repeat("n", 255)
	files := []file{
		{kind: tar.TypeXGlobalHeader},
		{name: "./", kind: tar.TypeDir, mode: 0o711, uid: 7, gid: 8},
		{name: "./bin", kind: tar.TypeSymlink, link: "usr/bin"},
		{name: "./usr/bin/su", content: "setuid", mode: 0o4755},
		{name: "./usr/bin/wall", content: "setgid", mode: 0o2755, gid: 5},
		{name: "./tmp/", kind: tar.TypeDir, mode: 0o1777},
		{name: "./empty"},
		{name: "./owned", content: "x", mode: 0o600, uid: 100_000, gid: 4_000_000_000},
		{name: "./dev/null", kind: tar.TypeChar, mode: 0o666},
		{name: "./dev/sda", kind: tar.TypeBlock, mode: 0o660},
		{name: "./pipe", kind: tar.TypeFifo, mode: 0o640},
		{name: "./hard", kind: tar.TypeLink, link: "usr/bin/su"},
		{name: "./through", kind: tar.TypeLink, link: "./bin/su"},
		{name: "bin/sh", content: "#!"},
		{name: "/abs", content: "absolute"},
		{name: "far", kind: tar.TypeSymlink, link: strings.Repeat("t", 4095)},
		{name: "grüße/日本", content: "utf-8"},
		{name: "latin\xe9", content: "not utf-8"},
		{name: "zeros", content: strings.Repeat("\x00", 5<<20) + "end"},
		{name: "block", content: strings.Repeat("b", 4096)},
		{name: "more", content: strings.Repeat("m", 4097)},
		{name: "big", content: string(big)},
		{name: long, content: "deep"},
	}
	f, stats, err := build(t, rootfs.Options{}, archive(t, files...))
	if err != nil {
		t.Fatal(err)
	}
	got := read(t, f)
	want := map[string]string{
		".": "drwx--x--x 7:8", "bin": "Lrw-r--r-- 0:0 -> usr/bin", "usr": "drwxr-xr-x 0:0", "usr/bin": "drwxr-xr-x 0:0",
		"usr/bin/su": "urwxr-xr-x 0:0 3 links setuid", "usr/bin/wall": "grwxr-xr-x 0:5 setgid",
		"usr/bin/sh": "-rw-r--r-- 0:0 #!",
		"tmp":        "dtrwxrwxrwx 0:0", "empty": "-rw-r--r-- 0:0 ", "owned": "-rw------- 100000:4000000000 x",
		"pipe": "prw-r----- 0:0", "hard": "urwxr-xr-x 0:0 3 links setuid", "through": "urwxr-xr-x 0:0 3 links setuid",
		"abs": "-rw-r--r-- 0:0 absolute",
		"far": "Lrw-r--r-- 0:0 -> " + strings.Repeat("t", 4095), "grüße": "drwxr-xr-x 0:0",
		"grüße/日本": "-rw-r--r-- 0:0 utf-8", "latin\xe9": "-rw-r--r-- 0:0 not utf-8",
		"zeros": "-rw-r--r-- 0:0 " + strings.Repeat("\x00", 5<<20) + "end",
		"block": "-rw-r--r-- 0:0 " + strings.Repeat("b", 4096),
		"more":  "-rw-r--r-- 0:0 " + strings.Repeat("m", 4097), "big": "-rw-r--r-- 0:0 " + string(big),
		long: "-rw-r--r-- 0:0 deep",
	}
	for d := filepath.Dir(long); d != "."; d = filepath.Dir(d) {
		want[d] = "drwxr-xr-x 0:0"
	}
	for name := range want {
		// Directories that the archive only implies have the time of the first file in them, in whole seconds.
		if text, ok := got[name]; ok && strings.HasPrefix(text, "d") {
			got[name] = strings.TrimSuffix(text, " "+epoch.UTC().Format(time.RFC3339))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	check(t, f)
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() != stats.Size || info.Size()%4096 != 0 {
		t.Errorf("the image has %d bytes, its stats say %d", info.Size(), stats.Size)
	}
	if disk := info.Sys().(*syscall.Stat_t).Blocks * 512; disk > stats.Size-(4<<20) {
		t.Errorf("the image takes %d bytes on disk: zeros were written", disk)
	}
	if want := int64(len(got) - 2); stats.Files != want {
		t.Errorf("the stats count %d files, want %d", stats.Files, want)
	}
}

func TestLargeDirectories(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	// Around the sizes at which a directory no longer fits beside its inode, into one block, into several.
	for _, n := range []int{1, 100, 160, 161, 162, 163, 164, 165, 166, 2000, 20_000} {
		var files []file
		want := map[string]bool{".": true, "d": true}
		for i := range n {
			name := fmt.Sprintf("d/%012d", i*7919%n)
			if !want[name] {
				files = append(files, file{name: name})
			}
			want[name] = true
		}
		f, _, err := build(t, rootfs.Options{}, archive(t, files...))
		if err != nil {
			t.Fatal(err)
		}
		got := read(t, f)
		if len(got) != len(want) {
			t.Errorf("of %d files %d were found", len(want), len(got))
		}
		for name := range want {
			if _, ok := got[name]; !ok {
				t.Errorf("%s is missing", name)
			}
		}
		check(t, f)
	}
}

func TestNamesAreSortedAmongDots(t *testing.T) {
	t.Parallel()
	f, _, err := build(t, rootfs.Options{}, archive(t, file{name: "!first"}, file{name: "-"}, file{name: ".." + "x"},
		file{name: ".a"}, file{name: "...."}, file{name: "z"}))
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, f); len(got) != 7 {
		t.Errorf("got %d files: %v", len(got), got)
	}
	check(t, f)
}

func TestLaterEntriesReplace(t *testing.T) {
	t.Parallel()
	one := archive(t, file{name: "f", content: "old"}, file{name: "d/keep", content: "1"},
		file{name: "d/", kind: tar.TypeDir, mode: 0o700}, file{name: "gone/x", content: "1"},
		file{name: "l", kind: tar.TypeSymlink, link: "d"}, file{name: "a", content: "shared"},
		file{name: "b", kind: tar.TypeLink, link: "a"})
	two := archive(t, file{name: "f", content: "new"}, file{name: "d/", kind: tar.TypeDir, mode: 0o750},
		file{name: "gone", content: "file"}, file{name: "l/new", content: "2"},
		file{name: "a", content: "own"}, file{name: "b", kind: tar.TypeLink, link: "b"})
	f, _, err := build(t, rootfs.Options{}, one, two)
	if err != nil {
		t.Fatal(err)
	}
	got := read(t, f)
	delete(got, ".")
	want := map[string]string{"f": "-rw-r--r-- 0:0 new", "d": "drwxr-x--- 0:0", "d/keep": "-rw-r--r-- 0:0 1",
		"d/new": "-rw-r--r-- 0:0 2", "gone": "-rw-r--r-- 0:0 file",
		"l": "Lrw-r--r-- 0:0 -> d", "a": "-rw-r--r-- 0:0 own", "b": "-rw-r--r-- 0:0 shared"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	check(t, f)
}

func TestEqualInputGivesEqualImages(t *testing.T) {
	t.Parallel()
	a := archive(t, file{name: "b/c", content: "1"}, file{name: "a", content: "2"})
	one, _, err := build(t, rootfs.Options{}, a)
	if err != nil {
		t.Fatal(err)
	}
	two, _, err := build(t, rootfs.Options{}, a)
	if err != nil {
		t.Fatal(err)
	}
	x, _ := os.ReadFile(one.Name())
	y, _ := os.ReadFile(two.Name())
	if len(x) == 0 || !bytes.Equal(x, y) {
		t.Errorf("the images of %d and %d bytes differ", len(x), len(y))
	}
}

// refused entries, with the kind.
var refused = []struct {
	name  string
	files []file
	opts  rootfs.Options
	want  errors.Kind
}{
	{name: "parent", files: []file{{name: "../up"}}, want: errors.Invalid},
	{name: "inner parent", files: []file{{name: "a/../../up"}}, want: errors.Invalid},
	{name: "root as a file", files: []file{{name: "./", kind: tar.TypeSymlink, link: "x"}}, want: errors.Invalid},
	{name: "root as a hard link", files: []file{{name: "f"}, {name: ".", kind: tar.TypeLink, link: "f"}},
		want: errors.Invalid},
	{name: "hard link to nothing", files: []file{{name: "l", kind: tar.TypeLink, link: "none"}}, want: errors.Invalid},
	{name: "hard link below nothing", files: []file{{name: "l", kind: tar.TypeLink, link: "none/below"}},
		want: errors.Invalid},
	{name: "hard link out", files: []file{{name: "l", kind: tar.TypeLink, link: "../../etc/passwd"}},
		want: errors.Invalid},
	{name: "hard link to a directory", files: []file{{name: "d/", kind: tar.TypeDir},
		{name: "l", kind: tar.TypeLink, link: "d"}}, want: errors.Invalid},
	{name: "hard link below a file", files: []file{{name: "f"}, {name: "l", kind: tar.TypeLink, link: "f/x"}},
		want: errors.Invalid},
	{name: "file as directory", files: []file{{name: "f"}, {name: "f/x"}}, want: errors.Invalid},
	{name: "loop of links", files: []file{{name: "a", kind: tar.TypeSymlink, link: "b"},
		{name: "b", kind: tar.TypeSymlink, link: "/a"}, {name: "a/x"}}, want: errors.Invalid},
	{name: "link without target", files: []file{{name: "l", kind: tar.TypeSymlink}}, want: errors.Invalid},
	{name: "target too long", files: []file{{name: "l", kind: tar.TypeSymlink, link: strings.Repeat("t", 4096)}},
		want: errors.Invalid},
	{name: "name too long", files: []file{{name: strings.Repeat("n", 256)}}, want: errors.Invalid},
	{name: "directory name too long", files: []file{{name: strings.Repeat("n", 256) + "/x"}}, want: errors.Invalid},
	{name: "path too long", files: []file{{name: strings.Repeat("n/", 2048) + "x"}}, want: errors.Invalid},
	{name: "negative owner", files: []file{{name: "f", uid: -1}}, want: errors.Invalid},
	{name: "unknown type", files: []file{{name: "f", kind: 'Z'}}, want: errors.Invalid},
	{name: "too many bytes", files: []file{{name: "a", content: "12345"}, {name: "b", content: "123456"}},
		opts: rootfs.Options{MaxBytes: 10}, want: errors.Exhausted},
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range refused {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f, err := os.Create(filepath.Join(t.TempDir(), "image"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			w := rootfs.NewWriter(f, tc.opts)
			for _, file := range tc.files {
				err = w.Add(file.header(), strings.NewReader(file.content))
			}
			if errors.KindOf(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestLinksResolveInsideTheImage(t *testing.T) {
	t.Parallel()
	f, _, err := build(t, rootfs.Options{}, archive(t, file{name: "up", kind: tar.TypeSymlink, link: "../../.."},
		file{name: "up/x", content: "1"},
		file{name: "abs", kind: tar.TypeSymlink, link: "/d"}, file{name: "abs/y", content: "2"}))
	if err != nil {
		t.Fatal(err)
	}
	got := read(t, f)
	if got["x"] != "-rw-r--r-- 0:0 1" || got["d/y"] != "-rw-r--r-- 0:0 2" {
		t.Errorf("got %q", got)
	}
}

func TestDamagedArchives(t *testing.T) {
	t.Parallel()
	good := archive(t, file{name: "a", content: strings.Repeat("x", 2000)}, file{name: "b", content: "y"})
	for name, data := range map[string][]byte{"nothing": nil, "half a header": good[:300], "half a file": good[:1500],
		"no end": good[:len(good)-1024]} {
		if _, _, err := build(t, rootfs.Options{}, data); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: got %v, want Invalid", name, err)
		}
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hdr := file{name: "f", content: "long"}.header()
	if err := rootfs.NewWriter(f, rootfs.Options{}).Add(hdr,
		strings.NewReader("sho")); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a file shorter than its entry: got %v", err)
	}
	hdr.Size = 1 << 50
	if err := rootfs.NewWriter(f, rootfs.Options{}).Add(hdr, nil); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("a file larger than the format allows: got %v", err)
	}
}

func TestTapSeesContent(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var status bytes.Buffer
	w := rootfs.NewWriter(f, rootfs.Options{})
	err = w.AddTar(bytes.NewReader(archive(t, file{name: "./var/status", content: "Package: x"},
		file{name: "other", content: "y"})), func(name string) io.Writer {
		if name == "var/status" {
			return &status
		}
		return nil
	})
	if err != nil || status.String() != "Package: x" {
		t.Errorf("got %q, %v", status.String(), err)
	}
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=4m")
	for name, size := range map[string]int{"while packing": 8 << 20, "at the end": 4<<20 - 4096 - 100} {
		f, err := os.Create(filepath.Join(dir, "image"))
		if err != nil {
			t.Fatal(err)
		}
		w := rootfs.NewWriter(f, rootfs.Options{})
		err = w.Add(file{name: "big", content: strings.Repeat("x", size)}.header(),
			strings.NewReader(strings.Repeat("x", size)))
		if err == nil {
			_, err = w.Close()
		}
		f.Close()
		if errors.KindOf(err) != errors.Exhausted || !strings.Contains(errors.Message(err), "disk is full") ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func FuzzAddTar(f *testing.F) {
	for _, tc := range refused {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		for _, file := range tc.files {
			if tw.WriteHeader(file.header()) == nil {
				io.WriteString(tw, file.content)
			}
		}
		tw.Close()
		f.Add(buf.Bytes())
	}
	f.Add(archive(f, file{name: "d/", kind: tar.TypeDir}, file{name: "d/f", content: "x"},
		file{name: "l", kind: tar.TypeSymlink, link: "d"}, file{name: "l/g", content: "y"},
		file{name: "h", kind: tar.TypeLink, link: "l/g"}))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		image, err := os.CreateTemp(dir, "image")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(image.Name())
		defer image.Close()
		w := rootfs.NewWriter(image, rootfs.Options{MaxBytes: 1 << 20})
		if err := w.AddTar(bytes.NewReader(data), nil); err != nil {
			if errors.KindOf(err) == errors.Internal {
				t.Errorf("an archive became an internal error: %v", err)
			}
			return
		}
		stats, err := w.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, image); int64(len(got)) < stats.Files {
			t.Errorf("of %d files %d can be read", stats.Files, len(got))
		}
	})
}
