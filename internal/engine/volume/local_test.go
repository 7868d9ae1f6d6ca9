package volume_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

var _ volume.Provider = (*volume.Local)(nil)

func open(t testing.TB, dir string) *volume.Local {
	t.Helper()
	l, err := volume.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func create(t testing.TB, l *volume.Local, name string) volume.Volume {
	t.Helper()
	v, err := l.Create(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// archive returns a tar stream of one file.
func archive(t testing.TB, name, content string) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o640, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	io.WriteString(tw, content)
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func expect(t testing.TB, what string, err error, want errors.Kind) {
	t.Helper()
	if errors.KindOf(err) != want {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}

// mission: C1
func TestVolumesOutliveTheirProvider(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "volumes")
	l, err := volume.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	v := create(t, l, "one")
	if v.Name() != "one" {
		t.Errorf("got the name %q", v.Name())
	}
	if err := v.CopyIn(t.Context(), "a/b", archive(t, "f", "content")); err != nil {
		t.Fatal(err)
	}
	if err := v.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	l = open(t, dir)
	if v, err = l.Open(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if err := v.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(l.Path("one"), "a/b/f")); err != nil || string(data) != "content" {
		t.Errorf("got %q, %v", data, err)
	}
	out, err := v.CopyOut(t.Context(), "/a/b/f")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	tr := tar.NewReader(out)
	if hdr, err := tr.Next(); err != nil || hdr.Name != "f" || hdr.Mode != 0o640 {
		t.Errorf("got %v, %v", hdr, err)
	}
	if data, err := io.ReadAll(tr); err != nil || string(data) != "content" {
		t.Errorf("got %q, %v", data, err)
	}
	list, err := l.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("got %v, %v", list, err)
	}
	if list[0].Created.Before(before.Add(-time.Second)) || list[0].Created.After(time.Now()) {
		t.Errorf("created at %v, now is %v", list[0].Created, time.Now())
	}
	list[0].Created = time.Time{}
	if diff := cmp.Diff([]volume.Info{{Name: "one", Size: 7, Files: 1}}, list); diff != "" {
		t.Error(diff)
	}
}

// mission: C2
func TestStateVolumeHasItsDirectories(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir())
	v := create(t, l, volume.StateName)
	list, err := v.ReadDir(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		if e.Mode != syscall.S_IFDIR|0o755 {
			t.Errorf("%s has the mode %o", e.Name, e.Mode)
		}
		got = append(got, e.Name)
	}
	if diff := cmp.Diff([]string{".cache", "checkpoints", "git-repos", "sessions", "workspace"}, got); diff != "" {
		t.Error(diff)
	}
	if err := v.Remove(t.Context(), "sessions"); err != nil {
		t.Fatal(err)
	}
	create(t, l, volume.StateName) // existing data is left alone
	if list, err = v.ReadDir(t.Context(), "/"); err != nil || len(list) != 4 {
		t.Errorf("got %v, %v", list, err)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "volumes")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	l := open(t, dir)
	create(t, l, "v")
	for name, want := range map[string]os.FileMode{dir: 0o700, l.Path("v"): 0o755} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: got %v, %v, want %o", name, info.Mode(), err, want)
		}
	}
}

func TestBadNames(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir())
	for _, name := range []string{"", "/", "a/b", "..", ".", "../x", ".trash", ".new-x", "-x", strings.Repeat("n", 300),
		strings.Repeat("n", 129), "a\x00b", "a\nb", "a\x1b[2J", "grüße", " ", "a b"} {
		_, err := l.Create(t.Context(), name)
		expect(t, "Create", err, errors.Invalid)
		if errors.RemedyOf(err) == "" || len(errors.Message(err)) > 300 {
			t.Errorf("%.20q: the error does not help: %v", name, err)
		}
		_, err = l.Open(t.Context(), name)
		expect(t, "Open", err, errors.Invalid)
		expect(t, "Delete", l.Delete(t.Context(), name), errors.Invalid)
		_, err = l.Use(name, "x")
		expect(t, "Use", err, errors.Invalid)
	}
	for _, name := range []string{"a", "0", "harvest-memory-owner-repo.x_y", strings.Repeat("n", 128)} {
		create(t, l, name)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir())
	_, err := l.Open(t.Context(), "none")
	expect(t, "Open", err, errors.NotFound)
	expect(t, "Delete", l.Delete(t.Context(), "none"), errors.NotFound)
	_, err = l.Use("none", "x")
	expect(t, "Use", err, errors.NotFound)

	v := create(t, l, "gone")
	if err := l.Delete(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	expect(t, "Commit", v.Commit(t.Context()), errors.NotFound)
	expect(t, "Reload", v.Reload(t.Context()), errors.NotFound)
	expect(t, "CopyIn", v.CopyIn(t.Context(), "", archive(t, "f", "")), errors.NotFound)
	_, err = v.CopyOut(t.Context(), "")
	expect(t, "CopyOut", err, errors.NotFound)
	_, err = v.ReadDir(t.Context(), "")
	expect(t, "ReadDir", err, errors.NotFound)
	expect(t, "Remove", v.Remove(t.Context(), "f"), errors.NotFound)
}

// mission: C1
func TestDelete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := volume.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	v := create(t, l, "v")
	if err := v.CopyIn(t.Context(), "d", archive(t, "f", "x")); err != nil {
		t.Fatal(err)
	}
	one, err := l.Use("v", "sandbox one")
	if err != nil {
		t.Fatal(err)
	}
	two, err := l.Use("v", "sandbox two")
	if err != nil {
		t.Fatal(err)
	}
	err = l.Delete(t.Context(), "v")
	expect(t, "in use", err, errors.Conflict)
	if text := errors.Message(err); !strings.Contains(text, "sandbox one, sandbox two") {
		t.Errorf("the error does not say who uses it: %s", text)
	}
	one()
	one() // a second time means nothing
	expect(t, "still in use", l.Delete(t.Context(), "v"), errors.Conflict)
	two()
	if err := l.Delete(t.Context(), "v"); err != nil {
		t.Fatal(err)
	}
	fresh := create(t, l, "v")
	if list, err := fresh.ReadDir(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("the new volume has %v, %v", list, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, ".trash")); err != nil || len(left) != 0 {
		t.Errorf("left in the trash: %v, %v", left, err)
	}
}

func TestOpenClearsAwayLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{".new-half/data", ".trash/old/data/locked"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l, err := volume.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := l.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Join(dir, ".trash")} {
		names, err := os.ReadDir(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if n.Name() != ".trash" {
				t.Errorf("%s is left", n.Name())
			}
		}
	}
}

func TestCreateAtTheSameTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			v, err := l.Create(context.WithoutCancel(t.Context()), volume.StateName)
			if err != nil {
				t.Error(err)
				return
			}
			if list, err := v.ReadDir(context.WithoutCancel(t.Context()), ""); err != nil || len(list) != 5 {
				t.Errorf("a half-made volume was seen: %v, %v", list, err)
			}
		})
	}
	wg.Wait()
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 2 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// hostile fills a volume with files that a sandbox might leave to trick the host.
func hostile(t *testing.T) (l *volume.Local, v volume.Volume, outside string) {
	t.Helper()
	l = open(t, filepath.Join(t.TempDir(), "volumes"))
	v = create(t, l, "v")
	outside = t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"abs": outside, "up": "../../..",
		"file": filepath.Join(outside, "secret"), "loop": "loop", "ok": "real"} {
		if err := os.Symlink(target, filepath.Join(l.Path("v"), name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(l.Path("v"), "real/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	return l, v, outside
}

// mission: C1
func TestNoPathLeavesTheVolume(t *testing.T) {
	t.Parallel()
	l, v, outside := hostile(t)
	for _, p := range []string{"..", "../v", "a/../../x", "abs", "abs/x", "up", "up/x", "nul\x00", "loop/x"} {
		_, err := v.ReadDir(t.Context(), p)
		expect(t, "ReadDir "+p, err, errors.Invalid)
		expect(t, "CopyIn "+p, v.CopyIn(t.Context(), p, archive(t, "f", "x")), errors.Invalid)
		if p == "abs" || p == "up" {
			continue // these are links, which may be copied out and removed as such
		}
		_, err = v.CopyOut(t.Context(), p)
		expect(t, "CopyOut "+p, err, errors.Invalid)
		expect(t, "Remove "+p, v.Remove(t.Context(), p), errors.Invalid)
	}
	expect(t, "Remove all", v.Remove(t.Context(), "/"), errors.Invalid)
	expect(t, "CopyIn over a link", v.CopyIn(t.Context(), "", archive(t, "file", "new")), "")
	if err := v.CopyIn(t.Context(), "ok/sub", archive(t, "f", "through a link that stays")); err != nil {
		t.Error(err)
	}
	if err := v.Remove(t.Context(), "abs"); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(data) != "secret" {
		t.Errorf("the file outside became %q, %v", data, err)
	}
	if names, _ := os.ReadDir(outside); len(names) != 1 {
		t.Errorf("outside there is now %v", names)
	}
	list, err := l.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("got %v, %v", list, err)
	}
	if list[0].Files != 5 || list[0].Size != int64(len("new")+len("through a link that stays")) {
		t.Errorf("List followed links: %+v", list[0])
	}
}

func TestReadDirAndRemove(t *testing.T) {
	t.Parallel()
	l, v, _ := hostile(t)
	when := time.Unix(1_600_000_000, 5).UTC()
	name := filepath.Join(l.Path("v"), "real/f")
	if err := os.WriteFile(name, []byte("four"), 0o604); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o604); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, when, when); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("f", filepath.Join(l.Path("v"), "real/link")); err != nil {
		t.Fatal(err)
	}
	list, err := v.ReadDir(t.Context(), "/ok/")
	if err != nil || len(list) != 3 {
		t.Fatalf("got %v, %v", list, err)
	}
	if diff := cmp.Diff(volume.Entry{Name: "f", Mode: syscall.S_IFREG | 0o604, Size: 4, Modified: when},
		list[0]); diff != "" {
		t.Error(diff)
	}
	if list[1].Link != "f" || list[1].Mode&syscall.S_IFMT != syscall.S_IFLNK || list[2].Name != "sub" {
		t.Errorf("got %+v", list[1:])
	}
	_, err = v.ReadDir(t.Context(), "real/f")
	expect(t, "ReadDir of a file", err, errors.Invalid)
	_, err = v.ReadDir(t.Context(), "real/none")
	expect(t, "ReadDir of nothing", err, errors.NotFound)
	expect(t, "Remove of nothing", v.Remove(t.Context(), "real/none"), errors.NotFound)
	if err := v.Remove(t.Context(), "/real"); err != nil {
		t.Fatal(err)
	}
	_, err = v.ReadDir(t.Context(), "real")
	expect(t, "ReadDir after Remove", err, errors.NotFound)
}

func TestCancellation(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir())
	v := create(t, l, "v")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect(t, "CopyIn", v.CopyIn(ctx, "", archive(t, "f", "x")), errors.Canceled)
	_, err := l.List(ctx)
	expect(t, "List", err, errors.Canceled)
}

func TestDamagedDescription(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir)
	create(t, l, "v")
	create(t, l, "w")
	if err := os.WriteFile(filepath.Join(dir, "v/volume.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "w/volume.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "stray"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := l.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Created.IsZero() || list[1].Created.IsZero() {
		t.Errorf("got %v, %v", list, err)
	}
	_, err = l.Open(t.Context(), "stray")
	expect(t, "a file is no volume", err, errors.NotFound)
}

func TestOpenDirFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{file, filepath.Join(file, "below")} {
		if _, err := volume.OpenDir(p); errors.KindOf(err) != errors.Invalid {
			t.Errorf("got %v, want Invalid", err)
		}
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=64k,nr_inodes=8")
	l, err := volume.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	v := create(t, l, "v")
	expect(t, "CopyIn", v.CopyIn(t.Context(), "", archive(t, "f", strings.Repeat("x", 1<<20))), errors.Exhausted)
	_, err = l.Create(t.Context(), volume.StateName)
	expect(t, "Create", err, errors.Exhausted)
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 2 {
		t.Errorf("something half-made is left: %v, %v", names, err)
	}
}

// TestWhatIsInTheWay checks that an obstacle in place of a provider or a volume causes an error that names it, and that
// nothing incomplete is left.
func TestWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".trash"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := volume.OpenDir(dir)
	expect(t, "a file where the trash should be", err, errors.Invalid)
	if err := os.Remove(filepath.Join(dir, ".trash")); err != nil {
		t.Fatal(err)
	}
	l := open(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(t.Context(), "file"); err == nil {
		t.Error("a volume was made where a file is")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".new-*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	v := create(t, l, "data")
	if err := os.RemoveAll(filepath.Join(dir, "data", "data")); err != nil {
		t.Fatal(err)
	}
	if list, err := l.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("a volume without its files is listed: %v, %v", list, err)
	}
	for what, err := range map[string]error{"Commit": v.Commit(t.Context()), "Reload": v.Reload(t.Context()),
		"Remove": v.Remove(t.Context(), "x")} {
		expect(t, what, err, errors.NotFound)
	}
	if err := os.RemoveAll(filepath.Join(dir, ".trash")); err != nil {
		t.Fatal(err)
	}
	if err := l.Delete(t.Context(), "data"); err == nil {
		t.Error("a volume was deleted without a trash to put it into")
	}
	if err := os.Mkdir(filepath.Join(dir, ".trash"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect(t, "Delete", l.Delete(t.Context(), "data"), "")
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	create(t, l, "more")
	if _, err := volume.Of(l, "").List(dead); errors.KindOf(err) != errors.Canceled {
		t.Errorf("got %v", err)
	}
}
