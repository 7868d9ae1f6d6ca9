package oci_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/oci"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// hard is an archive with everything that layers have.
type hard struct {
	t   testing.TB
	buf bytes.Buffer
	tw  *tar.Writer
}

func newHard(t testing.TB) *hard {
	h := &hard{t: t}
	h.tw = tar.NewWriter(&h.buf)
	return h
}

func (h *hard) add(hdr tar.Header, content string) {
	h.t.Helper()
	hdr.Size, hdr.ModTime, hdr.Format = int64(len(content)), epoch, tar.FormatPAX
	if hdr.Typeflag == 0 {
		hdr.Typeflag = tar.TypeReg
	}
	if hdr.Mode == 0 {
		hdr.Mode = 0o644
	}
	if hdr.Typeflag == tar.TypeSymlink {
		hdr.Mode = 0o777
	}
	if err := h.tw.WriteHeader(&hdr); err != nil {
		h.t.Fatal(err)
	}
	if _, err := io.WriteString(h.tw, content); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hard) dir(name string, mode int64) {
	h.add(tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: mode}, "")
}

func (h *hard) bytes() []byte {
	h.t.Helper()
	if err := h.tw.Close(); err != nil {
		h.t.Fatal(err)
	}
	return h.buf.Bytes()
}

// difficult are layers with whiteouts, links of all sorts, modes, owners and attributes.
func difficult(t testing.TB) [][]byte {
	one := newHard(t)
	one.dir(".", 0o755)
	for _, d := range []string{"etc", "usr", "usr/bin", "var", "var/gone", "var/gone/deep", "var/opaque",
		"var/opaque/sub", "swap", "kept", "private"} {
		one.dir(d, 0o755)
	}
	one.dir("tmp", 0o1777)
	one.dir("private", 0o700)
	one.add(tar.Header{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"}, "")
	one.add(tar.Header{Name: "usr/bin/su", Mode: 0o4755}, "setuid")
	one.add(tar.Header{Name: "usr/bin/wall", Mode: 0o2755, Gid: 5}, "setgid")
	one.add(tar.Header{Name: "usr/bin/ping", Mode: 0o755,
		PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}}, "caps")
	one.add(tar.Header{Name: "usr/bin/noted",
		PAXRecords: map[string]string{"SCHILY.xattr.user.note": "\x00binary\xff"}}, "attr")
	one.add(tar.Header{Name: "usr/bin/noted2", Typeflag: tar.TypeLink, Linkname: "usr/bin/noted"}, "")
	one.add(tar.Header{Name: "etc/a", Uid: 1000, Gid: 2_000_000_000, Mode: 0o600}, "a1")
	one.add(tar.Header{Name: "etc/b"}, "b1")
	one.add(tar.Header{Name: "etc/hard", Typeflag: tar.TypeLink, Linkname: "etc/b"}, "")
	one.add(tar.Header{Name: "var/gone/deep/x"}, "x")
	one.add(tar.Header{Name: "var/opaque/old"}, "old")
	one.add(tar.Header{Name: "var/opaque/sub/older"}, "older")
	one.add(tar.Header{Name: "swap/was-dir/f"}, "f")
	one.add(tar.Header{Name: "swap/was-file"}, "file")
	one.add(tar.Header{Name: "swap/was-link", Typeflag: tar.TypeSymlink, Linkname: "../etc"}, "")
	one.add(tar.Header{Name: "etc/abs", Typeflag: tar.TypeSymlink, Linkname: "/usr/bin/su"}, "")
	one.add(tar.Header{Name: "etc/dangling", Typeflag: tar.TypeSymlink, Linkname: "../../../nowhere"}, "")
	one.add(tar.Header{Name: "grüße"}, "utf-8")
	one.add(tar.Header{Name: strings.Repeat("long-", 40) + "name"}, "long")
	one.add(tar.Header{Name: "zeros"}, strings.Repeat("\x00", 3<<20)+"end")
	one.add(tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o640}, "")

	two := newHard(t)
	two.dir("var", 0o711)
	two.add(tar.Header{Name: "var/.wh.gone"}, "")
	two.dir("var/opaque", 0o750)
	two.add(tar.Header{Name: "var/opaque/.wh..wh..opq"}, "")
	two.add(tar.Header{Name: "var/opaque/new"}, "new")
	two.add(tar.Header{Name: "etc/.wh.b"}, "")
	two.add(tar.Header{Name: "etc/a", Uid: 7}, "a2")
	two.add(tar.Header{Name: "swap/was-dir"}, "now a file")
	two.dir("swap/was-file", 0o755)
	two.add(tar.Header{Name: "swap/was-file/f"}, "in a directory now")
	two.dir("swap/was-link", 0o755)
	two.add(tar.Header{Name: "swap/was-link/f"}, "not in etc")
	two.add(tar.Header{Name: "bin/through"}, "through the link")
	two.add(tar.Header{Name: "etc/hard2", Typeflag: tar.TypeLink, Linkname: "etc/hard"}, "")

	three := newHard(t)
	three.add(tar.Header{Name: "etc/hard", Mode: 0o400}, "replaced; its twin stays")
	three.dir("var/gone", 0o700)
	three.add(tar.Header{Name: "var/gone/again"}, "again")
	return [][]byte{one.bytes(), two.bytes(), three.bytes()}
}

// describeTree describes a directory in the form of describeImage.
func describeTree(t testing.TB, root string) map[string]string {
	t.Helper()
	got, inodes := map[string]string{}, map[uint64]string{}
	err := filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(full, &st); err != nil {
			return err
		}
		text := fmt.Sprintf("%o %d:%d %d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec)
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFLNK:
			target, err := os.Readlink(full)
			if err != nil {
				return err
			}
			text += " -> " + target
		case syscall.S_IFREG:
			data, err := os.ReadFile(full)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %d %x", len(data), sha256.Sum256(data))
			if first := inodes[st.Ino]; first != "" {
				text = "same as " + first
			}
			inodes[st.Ino] = name
		}
		for _, attr := range []string{"security.capability", "user.note"} {
			buf := make([]byte, 256)
			if n, err := unix.Lgetxattr(full, attr, buf); err == nil && !strings.HasPrefix(text, "same") {
				text += fmt.Sprintf(" %s=%q", attr, buf[:n])
			}
		}
		got[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func describeImage(t testing.TB, root *os.File) map[string]string {
	t.Helper()
	r, err := rootfs.OpenReader(root)
	if err != nil {
		t.Fatal(err)
	}
	got, last := map[string]string{}, map[string]string{}
	kinds := map[byte]int64{tar.TypeReg: syscall.S_IFREG, tar.TypeDir: syscall.S_IFDIR,
		tar.TypeSymlink: syscall.S_IFLNK, tar.TypeFifo: syscall.S_IFIFO}
	err = r.Walk(".", func(hdr *tar.Header, content io.Reader) error {
		name := strings.TrimSuffix(hdr.Name, "/")
		if hdr.Typeflag == tar.TypeLink {
			before := last[hdr.Linkname]
			if before == "" {
				before = hdr.Linkname
			}
			got[name], last[hdr.Linkname] = "same as "+before, name
			return nil
		}
		text := fmt.Sprintf("%o %d:%d %d", hdr.Mode|kinds[hdr.Typeflag], hdr.Uid, hdr.Gid, hdr.ModTime.Unix())
		switch hdr.Typeflag {
		case tar.TypeSymlink:
			text += " -> " + hdr.Linkname
		case tar.TypeReg:
			sum := sha256.New()
			if content != nil {
				if _, err := io.Copy(sum, content); err != nil {
					return err
				}
			}
			text += fmt.Sprintf(" %d %x", hdr.Size, sum.Sum(nil))
		}
		for _, attr := range []string{"security.capability", "user.note"} {
			if value, ok := hdr.PAXRecords["SCHILY.xattr."+attr]; ok {
				text += fmt.Sprintf(" %s=%q", attr, value)
			}
		}
		got[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// unpacked returns the files that skopeo fetches and umoci unpacks.
func unpacked(t testing.TB, from string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	run(t, "skopeo", "--insecure-policy", "copy", "--src-tls-verify=false", from, "oci:"+dir+"/layout:x")
	run(t, "umoci", "unpack", "--image", dir+"/layout:x", dir+"/bundle")
	return describeTree(t, dir+"/bundle/rootfs")
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func needPeers(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can unpack images with their owners")
	}
	testenv.RequireTool(t, "skopeo", "skopeo")
	testenv.RequireTool(t, "umoci", "umoci")
}

// Images come out as other tools unpack them.
// mission: B2
func TestAsSkopeoAndUmoci(t *testing.T) {
	t.Parallel()
	needPeers(t)
	h := newHub(t)
	ref := h.push(t, "difficult", imageOf(t, v1.Config{}, difficult(t)...))
	got, err := pull(t, open(t, oci.Options{}), ref, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := describeImage(t, got.root), unpacked(t, "docker://"+ref)
	implied(ours, theirs)
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("- umoci, + ours:\n%s", diff)
	}
}

// TestDebianPackages checks that Debian's packages, each a layer of an OCI layout that umoci makes, and a whiteout over
// them, give the same files as umoci unpacks.
// mission: B2
func TestDebianPackages(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	needPeers(t)
	testenv.RequireTool(t, "dpkg-deb", "dpkg")
	dir := t.TempDir()
	names := []string{"base-files", "tzdata", "passwd", "mount",
		"netbase"} // they have links, set-user-id bits and many small files, among other things
	get := exec.Command("apt-get", append([]string{"-q", "-o", "APT::Sandbox::User=root", "download"}, names...)...)
	get.Dir = dir
	if out, err := get.CombinedOutput(); err != nil {
		t.Skipf("Debian's packages cannot be fetched here (apt-get update may help): %v\n%s", err, out)
	}
	layout := dir + "/layout"
	run(t, "umoci", "init", "--layout", layout)
	run(t, "umoci", "new", "--image", layout+":x")
	for _, name := range names {
		found, err := filepath.Glob(dir + "/" + name + "_*.deb")
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", name, found, err)
		}
		run(t, "sh", "-c", `dpkg-deb --fsys-tarfile "$1" >"$2"`, "sh", found[0], dir+"/layer.tar")
		run(t, "umoci", "raw", "add-layer", "--image", layout+":x", dir+"/layer.tar")
	}
	run(t, "umoci", "insert", "--image", layout+":x", "--whiteout", "/usr/share/zoneinfo/Europe")
	h := newHub(t)
	ref := h.host + "/debian:packages"
	run(t, "skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", "oci:"+layout+":x", "docker://"+ref)
	got, err := pull(t, open(t, oci.Options{}), ref, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := describeImage(t, got.root), unpacked(t, "oci:"+layout+":x")
	if len(theirs) < 1000 || theirs["usr/share/zoneinfo/Asia/Tokyo"] == "" ||
		theirs["usr/share/zoneinfo/Europe"] != "" {
		t.Errorf("umoci has unpacked %d files, not what the packages have", len(theirs))
	}
	implied(ours, theirs)
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("- umoci, + ours:\n%s", diff)
	}
}

// implied removes the times of directories that whiteouts, and files without an entry for their directory, have
// changed: tools differ there.
func implied(ours, theirs map[string]string) {
	for name, text := range ours {
		if other := theirs[name]; strings.HasPrefix(text, "4") && strings.HasPrefix(other, "4") &&
			text[:strings.LastIndexByte(text, ' ')] == other[:strings.LastIndexByte(other, ' ')] {
			ours[name], theirs[name] = "directory", "directory"
		}
	}
}

// TestExportForOthers checks that other tools read an exported image with the original content.
// mission: B2
func TestExportForOthers(t *testing.T) {
	t.Parallel()
	needPeers(t)
	h := newHub(t)
	config := v1.Config{
		Env: []string{"A=b"}, User: "7:8", WorkingDir: "/w", Entrypoint: []string{"/e"}, Cmd: []string{"c"},
		ExposedPorts: map[string]struct{}{"80/tcp": {}},
		Volumes:      map[string]struct{}{"/data": {}}, Labels: map[string]string{"l": "m"}, StopSignal: "SIGINT",
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "true"}},
	}
	ref := h.push(t, "app", imageOf(t, config, difficult(t)...))
	got, err := pull(t, open(t, oci.Options{}), ref, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	layerName := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(layerName, tarOf(t, "etc/.wh.a", "", "snapshot", "taken"), 0o600); err != nil {
		t.Fatal(err)
	}
	layer, err := os.Open(layerName)
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	img := image.Image{Names: []string{"team/app:1", "base", "x@sha256:" + strings.Repeat("0", 64)}, Config: got.Config,
		Built: time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)}
	file := filepath.Join(t.TempDir(), "app.tar")
	for _, f := range []*os.File{nil, layer} {
		var first, second bytes.Buffer
		for _, w := range []io.Writer{&first, &second} {
			if err := oci.Export(t.Context(), w, img, got.root, f); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Error("two exports of an image differ")
		}
		if err := os.WriteFile(file, first.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		want := describeImage(t, got.root)
		if f != nil {
			delete(want, "etc/a")
			want["snapshot"] = fmt.Sprintf("100644 0:0 %d 5 %x", epoch.Unix(), sha256.Sum256([]byte("taken")))
		}
		for _, from := range []string{"oci-archive:" + file + ":1", "docker-archive:" + file + ":team/app:1"} {
			ours := map[string]string{}
			for k, v := range want {
				ours[k] = v
			}
			theirs := unpacked(t, from)
			implied(ours, theirs)
			if diff := cmp.Diff(ours, theirs); diff != "" {
				t.Errorf("%s: - ours, + umoci:\n%s", from, diff)
			}
			about := run(t, "skopeo", "inspect", "--config", from)
			for _, text := range []string{`"A=b"`, `"7:8"`, `"/w"`, `"/e"`, `"80/tcp"`, `"/data"`, `"SIGINT"`,
				`"l": "m"`, runtime.GOARCH, `"2024-02-03T04:05:06Z"`} {
				if !strings.Contains(about, text) && !strings.Contains(about, strings.ReplaceAll(text, ": ", ":")) {
					t.Errorf("%s: %s is missing in %s", from, text, about)
				}
			}
		}
	}
}

// mission: B2
func TestManyFiles(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	const files = 200_000
	for i := range files {
		hdr := &tar.Header{Name: fmt.Sprintf("d%d/e%d/file-%d", i%50, i%1000, i), Typeflag: tar.TypeReg, Mode: 0o644,
			ModTime: epoch, Format: tar.FormatUSTAR}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	h := newHub(t)
	ref := h.push(t, "many", imageOfLayers(t, v1.Config{}, runtime.GOARCH,
		layerOf(t, gzipped(t, buf.Bytes()), buf.Bytes(), types.OCILayer)))
	got, err := pull(t, open(t, oci.Options{}), ref, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.files) != files+50+1000+1 {
		t.Errorf("the image has %d entries", len(got.files))
	}
}
