package rootfs_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// reader opens an image.
func reader(t testing.TB, f *os.File) *rootfs.Reader {
	t.Helper()
	r, err := rootfs.OpenReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// inMemory returns an empty file whose Sync costs nothing.
func inMemory(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
	t.Cleanup(func() { f.Close() })
	return f
}

// layers makes an image from an image and layers.
func layers(t testing.TB, opts rootfs.Options, under *rootfs.Reader, all ...[]byte) (*os.File, rootfs.Stats, error) {
	t.Helper()
	f := inMemory(t)
	w := rootfs.NewWriter(f, opts)
	if under != nil {
		if err := w.AddImage(under); err != nil {
			return f, rootfs.Stats{}, err
		}
	}
	for _, layer := range all {
		if err := w.AddLayer(bytes.NewReader(layer), nil); err != nil {
			return f, rootfs.Stats{}, err
		}
	}
	stats, err := w.Close()
	return f, stats, err
}

// names returns the names in an image, with the content or target of each entry that is not a directory.
func names(t testing.TB, r *rootfs.Reader) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := r.Walk(".", func(hdr *tar.Header, content io.Reader) error {
		text := ""
		if content != nil {
			data, err := io.ReadAll(content)
			if err != nil {
				return err
			}
			text = string(data)
		}
		got[hdr.Name] = text
		if hdr.Linkname != "" {
			got[hdr.Name] = "-> " + hdr.Linkname
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// mission: B2
func TestLayers(t *testing.T) {
	t.Parallel()
	lower := archive(t, file{name: "d/", kind: tar.TypeDir, mode: 0o700}, file{name: "d/a", content: "1"},
		file{name: "d/b", content: "2"},
		file{name: "d/sub/x", content: "3"}, file{name: "link", kind: tar.TypeSymlink, link: "d"},
		file{name: "e", content: "4"}, file{name: "f/g", content: "5"})
	for name, test := range map[string]struct {
		layer []file
		want  map[string]string // replaces lower's entries; "-" means gone
	}{
		"nothing":            {nil, nil},
		"whiteout of a file": {[]file{{name: "d/.wh.a"}}, map[string]string{"d/a": "-"}},
		"whiteout of a directory": {[]file{{name: ".wh.d"}}, map[string]string{"d/": "-", "d/a": "-", "d/b": "-",
			"d/sub/": "-", "d/sub/x": "-"}},
		"whiteout through a link": {[]file{{name: "link/.wh.a"}}, map[string]string{"d/a": "-"}},
		"whiteout of nothing":     {[]file{{name: "d/.wh.zz"}, {name: "no/.wh.a"}}, nil},
		"whiteout, then the file": {[]file{{name: ".wh.e"}, {name: "e", content: "new"}},
			map[string]string{"e": "new"}},
		"the file, then its whiteout": {[]file{{name: "e", content: "new"}, {name: ".wh.e"}},
			map[string]string{"e": "new"}},
		"opaque": {[]file{{name: "d/.wh..wh..opq"}, {name: "d/c", content: "new"}},
			map[string]string{"d/a": "-", "d/b": "-", "d/sub/": "-", "d/sub/x": "-", "d/c": "new"}},
		"opaque, last": {[]file{{name: "d/c", content: "new"}, {name: "d/sub/y", content: "y"},
			{name: "d/.wh..wh..opq"}}, map[string]string{"d/a": "-", "d/b": "-", "d/sub/x": "-", "d/c": "new",
			"d/sub/y": "y"}},
		"opaque root": {[]file{{name: ".wh..wh..opq"}, {name: "c", content: "new"}},
			map[string]string{"d/": "-", "d/a": "-", "d/b": "-", "d/sub/": "-", "d/sub/x": "-", "link": "-", "e": "-",
				"f/": "-", "f/g": "-", "c": "new"}},
		"aufs's own": {[]file{{name: ".wh..wh.plnk"}, {name: ".wh..wh.aufs"}}, nil},
		"a directory for a link": {[]file{{name: "link/", kind: tar.TypeDir}, {name: "link/n", content: "n"}},
			map[string]string{"link": "-", "link/": "", "link/n": "n"}},
		"a file for a directory": {[]file{{name: "d", content: "file"}}, map[string]string{"d/": "-", "d/a": "-",
			"d/b": "-", "d/sub/": "-", "d/sub/x": "-", "d": "file"}},
		"up and away": {[]file{{name: "../../etc/x", content: "x"}, {name: "d/../../e", content: "y"},
			{name: "/abs", content: "z"}}, map[string]string{"etc/": "", "etc/x": "x", "e": "y", "abs": "z"}},
		"a hard link to a lower file": {[]file{{name: "h", kind: tar.TypeLink, link: "d/a"},
			{name: "h2", kind: tar.TypeLink, link: "../../d/b"}}, map[string]string{"h": "-> d/a", "h2": "-> d/b"}},
		"a link of a pruned directory": {[]file{{name: "f/k", kind: tar.TypeLink, link: "d/a"},
			{name: "f/.wh..wh..opq"}}, map[string]string{"f/g": "-", "f/k": "-> d/a"}},
		"a device for a file": {[]file{{name: "e", kind: tar.TypeChar}}, map[string]string{"e": "-"}},
		"a link out, then through it": {[]file{{name: "out", kind: tar.TypeSymlink, link: "/../../f"},
			{name: "out/z", content: "z"}}, map[string]string{"out": "-> /../../f", "f/z": "z"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, _, err := build(t, rootfs.Options{}, lower)
			if err != nil {
				t.Fatal(err)
			}
			want := names(t, reader(t, base))
			for name, text := range test.want {
				want[name] = text
				if text == "-" {
					delete(want, name)
				}
			}
			upper := archive(t, test.layer...)
			over, _, err := layers(t, rootfs.Options{}, reader(t, base), upper)
			if err != nil {
				t.Fatal(err)
			}
			both, _, err := layers(t, rootfs.Options{}, nil, lower, upper)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range []*os.File{over, both} {
				if diff := cmp.Diff(want, names(t, reader(t, f))); diff != "" {
					t.Error(diff)
				}
				check(t, f)
			}
			if diff := cmp.Diff(read(t, over), read(t, both)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLayersThatCannotBe(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][]file{
		"a whiteout of nothing": {{name: "d/.wh."}},
		"a whiteout of the parent": {{name: "d/.wh..."}, {name: "a/.wh.."}, {name: "d/b", content: "x"},
			{name: "d/b/c", content: "x"}},
		"a hard link to nothing": {{name: "a", kind: tar.TypeLink, link: "../b"}},
		"a hard link to a directory": {{name: "a/", kind: tar.TypeDir},
			{name: "b", kind: tar.TypeLink, link: "a"}},
		"links in a circle": {{name: "a", kind: tar.TypeSymlink, link: "b"},
			{name: "b", kind: tar.TypeSymlink, link: "a"}, {name: "a/x"}},
		"a file for the root":             {{name: "a/..", content: "x"}},
		"an unknown type":                 {{name: "x", kind: 'Z'}},
		"a whiteout in what is no folder": {{name: "x", content: "x"}, {name: "x/.wh.y"}},
	} {
		_, _, err := layers(t, rootfs.Options{}, nil, archive(t, files...))
		if errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	two := archive(t, file{name: "a", content: "123456"}, file{name: "b", content: "123456"})
	base, _, err := build(t, rootfs.Options{MaxBytes: 12, MaxFiles: 2}, two)
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range []rootfs.Options{{MaxBytes: 11}, {MaxFiles: 1}} {
		_, _, err := build(t, opts, two)
		if errors.KindOf(err) != errors.Exhausted {
			t.Errorf("%+v: got %v", opts, err)
		}
		if _, _, err = layers(t, opts, reader(t, base)); errors.KindOf(err) != errors.Exhausted {
			t.Errorf("%+v, an image: got %v", opts, err)
		}
	}
	far := strings.Repeat("t", 4095)
	w := rootfs.NewWriter(inMemory(t), rootfs.Options{})
	for i := 0; err == nil && i < 1<<20; i++ {
		err = w.Add(&tar.Header{Typeflag: tar.TypeSymlink, Name: fmt.Sprint(i), Linkname: far,
			PAXRecords: map[string]string{"x": far, "y": far, "z": far}}, nil)
		if i%1000 == 0 { // only the sum counts here, so that the test stays small
			err = errors.Join(err, w.Add(&tar.Header{Typeflag: tar.TypeFifo, Name: "x",
				PAXRecords: map[string]string{"x": strings.Repeat("x", 100<<20)}}, nil))
		}
	}
	if errors.KindOf(err) != errors.Exhausted {
		t.Errorf("got %v", err)
	}
}

// TestHiddenContentIsGone checks that hidden content takes no space: neither in an image over another nor on the disk
// of one made of layers.
func TestHiddenContentIsGone(t *testing.T) {
	t.Parallel()
	big := make([]byte, 8<<20)
	rand.NewChaCha8([32]byte{2}).Read(big)
	lower := archive(t, file{name: "big", content: string(big)}, file{name: "d/big", content: string(big)},
		file{name: "kept", content: string(big[:5000])}, file{name: "twin", kind: tar.TypeLink, link: "kept"})
	upper := archive(t, file{name: ".wh.big"}, file{name: ".wh.d"}, file{name: ".wh.twin"})
	base, _, err := build(t, rootfs.Options{}, lower)
	if err != nil {
		t.Fatal(err)
	}
	over, stats, err := layers(t, rootfs.Options{}, reader(t, base), upper)
	if err != nil || stats.Size > 64<<10 {
		t.Errorf("the image has %d bytes, %v", stats.Size, err)
	}
	both, _, err := layers(t, rootfs.Options{}, nil, lower, upper)
	if err != nil {
		t.Fatal(err)
	}
	info, err := both.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if disk := info.Sys().(*syscall.Stat_t).Blocks * 512; disk > 2<<20 {
		t.Logf("the file system keeps the room: %d bytes", disk)
	}
	for _, f := range []*os.File{over, both} {
		data, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, big[6000:7000]) {
			t.Error("what was deleted can still be read from the image's file")
		}
		if got := names(t, reader(t, f)); got["kept"] != string(big[:5000]) || len(got) != 2 {
			t.Errorf("got %d names", len(got))
		}
	}
}

// mission: B2
func TestImagesCanBeReadAndMadeAgain(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("\x00", 3<<20) + "end"
	files := []file{
		{name: "./", kind: tar.TypeDir, mode: 0o711, uid: 7, gid: 8},
		{name: "usr/bin/su", content: "setuid", mode: 0o4755},
		{name: "hard", kind: tar.TypeLink, link: "usr/bin/su"}, {name: "pipe", kind: tar.TypeFifo, mode: 0o640},
		{name: "zeros", content: content},
		{name: "far", kind: tar.TypeSymlink, link: strings.Repeat("t", 4095)}, {name: "latin\xe9", content: "x"},
		{name: "empty"},
	}
	for i := range 500 {
		files = append(files, file{name: fmt.Sprintf("many/%0100d", i), content: fmt.Sprint(i)})
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for i, f := range files {
		hdr := f.header()
		if f.name == "usr/bin/su" || i%100 == 50 {
			hdr.PAXRecords = map[string]string{"SCHILY.xattr.user.a": "\x00\xff",
				"SCHILY.xattr.security.capability": "cap", "SCHILY.xattr.trusted.overlay.opaque": "y",
				"SCHILY.xattr.security.selinux": "x"}
		}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	first, _, err := build(t, rootfs.Options{}, buf.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	check(t, first)
	again := func(r *rootfs.Reader) *os.File {
		var out bytes.Buffer
		if err := r.WriteTar(t.Context(), &out, nil); err != nil {
			t.Fatal(err)
		}
		f, _, err := build(t, rootfs.Options{}, out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	second := again(reader(t, first))
	if diff := cmp.Diff(read(t, first), read(t, second)); diff != "" {
		t.Error(diff)
	}
	third := again(reader(t, second))
	if a, b := bytesOf(t, second), bytesOf(t, third); !bytes.Equal(a, b) {
		t.Error("an image made of an image's files in their order differs from it")
	}
	copied, _, err := layers(t, rootfs.Options{}, reader(t, second))
	if err != nil {
		t.Fatal(err)
	}
	check(t, copied)
	if diff := cmp.Diff(read(t, first), read(t, copied)); diff != "" {
		t.Error(diff)
	}
	info, err := copied.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if disk := info.Sys().(*syscall.Stat_t).Blocks * 512; disk > info.Size()-(2<<20) {
		t.Errorf("the holes are lost: %d of %d bytes are on the disk", disk, info.Size())
	}
	for _, f := range []*os.File{first, second, third, copied} {
		hdr, _, err := reader(t, f).Open("/hard")
		want := map[string]string{"SCHILY.xattr.user.a": "\x00\xff", "SCHILY.xattr.security.capability": "cap"}
		if err != nil || cmp.Diff(want, hdr.PAXRecords) != "" {
			t.Errorf("got the attributes %v, %v", hdr, err)
		}
	}
	memory, err := rootfs.NewReader(bytes.NewReader(bytesOf(t, first)), int64(len(bytesOf(t, first))))
	if err != nil {
		t.Fatal(err)
	}
	unmapped, _, err := layers(t, rootfs.Options{}, memory)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(read(t, first), read(t, unmapped)); diff != "" {
		t.Error(diff)
	}
}

func bytesOf(t testing.TB, f *os.File) []byte {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestWalkAndOpen(t *testing.T) {
	t.Parallel()
	f, _, err := build(t, rootfs.Options{}, archive(t, file{name: "usr/lib/os-release", content: "ID=x"},
		file{name: "etc/os-release", kind: tar.TypeSymlink, link: "../usr/lib/os-release"},
		file{name: "lib", kind: tar.TypeSymlink, link: "/usr/lib"},
		file{name: "up", kind: tar.TypeSymlink, link: "lib/../lib/os-release"},
		file{name: "loop", kind: tar.TypeSymlink, link: "loop"}, file{name: "pipe", kind: tar.TypeFifo}))
	if err != nil {
		t.Fatal(err)
	}
	r := reader(t, f)
	for _, name := range []string{"etc/os-release", "/lib/os-release", "lib/../lib/./os-release",
		"../../lib/os-release", "up"} {
		hdr, content, err := r.Open(name)
		if err != nil || hdr.Name != "usr/lib/os-release" {
			t.Errorf("%s: got %+v, %v", name, hdr, err)
			continue
		}
		if data, err := io.ReadAll(content); err != nil || string(data) != "ID=x" {
			t.Errorf("%s: got %q, %v", name, data, err)
		}
	}
	for name, want := range map[string]errors.Kind{"no": errors.NotFound, "no/where": errors.NotFound,
		"loop": errors.Invalid, "pipe/x": errors.Invalid, "loop/x": errors.Invalid} {
		_, _, err := r.Open(name)
		if errors.KindOf(err) != want {
			t.Errorf("%s: got %v", name, err)
		}
		if name == "loop" { // it exists unless it is followed
			continue
		}
		if err := r.Walk(name, nil); errors.KindOf(err) != want {
			t.Errorf("Walk %s: got %v", name, err)
		}
	}
	for name, want := range map[string][]string{
		"lib/": {"lib"}, "lib/..": {"usr/", "usr/lib/", "usr/lib/os-release"}, "lib": {"lib"}, "pipe": {"pipe"},
		"usr/.": {"usr/", "usr/lib/", "usr/lib/os-release"},
	} {
		var got []string
		if err := r.Walk(name, func(hdr *tar.Header,
			_ io.Reader) error {
			got = append(got, hdr.Name)
			return nil
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	stop := errors.Newf(errors.Canceled, "enough")
	if err := r.Walk(".", func(*tar.Header, io.Reader) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestReadAndReplaceWhileWriting(t *testing.T) {
	t.Parallel()
	base, _, err := build(t, rootfs.Options{}, archive(t, file{name: "old", content: "old"}))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := rootfs.NewWriter(f, rootfs.Options{})
	if err := w.AddImage(reader(t, base)); err != nil {
		t.Fatal(err)
	}
	zero := strings.Repeat("\x00", 9000)
	if err := w.AddLayer(bytes.NewReader(archive(t, file{name: "new", content: "new", mode: 0o600, uid: 3},
		file{name: "link", kind: tar.TypeSymlink, link: "new"}, file{name: "zero", content: zero}, file{name: "d/x"})),
		nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"old": "old", "link": "new", "zero": zero, "d/x": ""} {
		if got, err := w.ReadFile(name, 9000); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	for name, want := range map[string]errors.Kind{"no": errors.NotFound, "d": errors.NotFound,
		"zero": errors.Exhausted} {
		_, err := w.ReadFile(name, 8999)
		if errors.KindOf(err) != want {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if !w.IsDir("/d/.") || w.IsDir("new") || w.IsDir("no") {
		t.Error("what is a directory is not told")
	}
	var tapped bytes.Buffer
	if err := w.AddLayer(bytes.NewReader(archive(t, file{name: "./d/../d/x", content: "tap"})),
		func(name string) io.Writer {
			if name == "d/x" {
				return &tapped
			}
			return nil
		}); err != nil || tapped.String() != "tap" {
		t.Errorf("got %q, %v", tapped.String(), err)
	}
	if err := w.Replace("/link", []byte("newer")); err != nil {
		t.Fatal(err)
	}
	if err := w.Replace("nothing", nil); errors.KindOf(err) != errors.NotFound {
		t.Errorf("got %v", err)
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, f); got["new"] != "-rw------- 3:0 newer" || got["old"] != "-rw-r--r-- 0:0 old" {
		t.Errorf("got %v", got)
	}
}

// TestLayersKeepOtherNames checks that a file with two names keeps its content under one of them, if a later layer
// replaces or removes the other. mutate.Extract does not: findings/ggcr-flattened-hard-links.sh.
func TestLayersKeepOtherNames(t *testing.T) {
	t.Parallel()
	lower := archive(t, file{name: "first", content: "old"}, file{name: "second", kind: tar.TypeLink, link: "first"})
	for name, test := range map[string]struct {
		layer []file
		want  map[string]string
	}{
		"first replaced": {[]file{{name: "first", content: "new"}},
			map[string]string{"first": "new", "second": "old"}},
		"second replaced": {[]file{{name: "second", content: "new"}},
			map[string]string{"first": "old", "second": "new"}},
		"first removed":  {[]file{{name: ".wh.first"}}, map[string]string{"second": "old"}},
		"second removed": {[]file{{name: ".wh.second"}}, map[string]string{"first": "old"}},
		"first is a directory": {[]file{{name: "first/", kind: tar.TypeDir}},
			map[string]string{"first/": "", "second": "old"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upper := archive(t, test.layer...)
			base, _, err := build(t, rootfs.Options{}, lower)
			if err != nil {
				t.Fatal(err)
			}
			over, _, err := layers(t, rootfs.Options{}, reader(t, base), upper)
			if err != nil {
				t.Fatal(err)
			}
			both, _, err := layers(t, rootfs.Options{}, nil, lower, upper)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range []*os.File{over, both} {
				got := names(t, reader(t, f))
				delete(got, "./")
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Error(diff)
				}
				check(t, f)
			}
		})
	}
}
