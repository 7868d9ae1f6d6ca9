package files

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// TestMain runs the processes of the fake engine in this binary.
func TestMain(m *testing.M) {
	fake.Main()
	os.Exit(m.Run())
}

// serveFake starts a server on the fake engine and returns a client of it.
func serveFake(t *testing.T) *client.Client {
	t.Helper()
	data := t.TempDir()
	eng, err := fake.Open(filepath.Join(data, "fake"), fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	db := testdb.Open(t)
	fleet, err := fleet.Open(ctx, fleet.Options{Engine: eng, Store: db.Sandboxes(),
		Timeouts: spec.Timeouts{Grace: 10 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	srv := server.New(ctx, server.Options{Fleet: fleet, Images: eng.Images(), Volumes: eng.Volumes(), Engine: "fake",
		Replays: db.Replays(), Version: "test"})
	l, err := socket.Listen(data, client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeLocal(l)
	c := client.New(data)
	t.Cleanup(func() {
		for _, ref := range []string{"a", "b"} {
			if err := c.DestroySandbox(ctx, ref); err != nil && errors.KindOf(err) != errors.NotFound {
				t.Error(err)
			}
		}
		c.Close()
		err := errors.Join(srv.Close(), fleet.Close(ctx), eng.Close())
		if err != nil {
			t.Error(err)
		}
	})
	return c
}

// copySource and copyTarget make the directories of SOURCE and TARGET for every row.
const (
	copySource = `mkdir -p src/dir/sub && cd src && printf f >file && chmod 640 file && printf s >dir/sub/s && printf d >dir/d && chmod 750 dir && ln dir/d dir/hard && ln -s d dir/link &&
ln -s file flink && ln -s dir dlink && touch -d @1600000000 file dir/d dir`
	copyTarget = `mkdir -p dst/full/dir dst/has-file dst/has-dir/file && cd dst && printf old >old && printf kept ` +
		`>full/dir/kept && printf x >has-file/dir && ln -s full tolink && ln -s old tofile && ln -s new dangling`
)

// copyRows are the rules: the new and changed files below dst after each copy, or the error. says is the beginning of
// its message, with the arguments as they are in the row.
var copyRows = []struct {
	about, source, target string
	follow                bool
	want                  []string
	kind                  errors.Kind
	says                  string
}{
	{"file to a new name", "src/file", "dst/new", false, []string{"new=f"}, "", ""},
	{"file to a new name with a slash", "src/file", "dst/new/", false, nil, errors.NotFound,
		"dst/new: no such directory"},
	{"file over a file", "src/file", "dst/old", false, []string{"old=f"}, "", ""},
	{"file over a file with a slash", "src/file", "dst/old/", false, nil, errors.Invalid, "dst/old: not a directory"},
	{"file into a directory", "src/file", "dst/full", false, []string{"full/file=f"}, "", ""},
	{"file into a directory with a slash", "src/file", "dst/full/", false, []string{"full/file=f"}, "", ""},
	{"file into a directory with such a directory", "src/file", "dst/has-dir", false, nil, errors.Invalid,
		"dst/has-dir/file: is a directory, but src/file is a file"},
	{"file into a missing directory", "src/file", "dst/no/new", false, nil, errors.NotFound,
		"dst/no: no such directory"},
	{"file with a slash", "src/file/", "dst/new", false, nil, errors.Invalid, "src/file: not a directory"},
	{"file with a dot", "src/file/.", "dst/new", false, nil, errors.Invalid, "src/file: not a directory"},
	{"missing", "src/none", "dst/new", false, nil, errors.NotFound, "src/none: no such file or directory"},
	{"directory to a new name", "src/dir", "dst/new", false, copied("new"), "", ""},
	{"directory to a new name with a slash", "src/dir", "dst/new/", false, copied("new"), "", ""},
	{"directory with a slash to a new name", "src/dir/", "dst/new", false, copied("new"), "", ""},
	{"directory into a directory", "src/dir", "dst/full", false, copied("full/dir"), "", ""},
	{"directory with a slash into a directory", "src/dir/", "dst/full/", false, copied("full/dir"), "", ""},
	{"directory into a directory with such a file", "src/dir", "dst/has-file", false, nil, errors.Invalid,
		"dst/has-file/dir: is a file, but src/dir is a directory"},
	{"directory over a file", "src/dir", "dst/old", false, nil, errors.Invalid,
		"dst/old: not a directory, but src/dir is one"},
	{"directory into a missing one", "src/dir", "dst/no/new", false, nil, errors.NotFound, "dst/no: no such directory"},
	{"contents to a new name", "src/dir/.", "dst/new", false, copied("new"), "", ""},
	{"contents into a directory", "src/dir/.", "dst/full", false, copied("full")[1:], "", ""},
	{"contents into a directory with a dot", "src/dir/.", "dst/full/.", false, copied("full")[1:], "", ""},
	{"contents over a file", "src/dir/.", "dst/old", false, nil, errors.Invalid,
		"dst/old: not a directory, but src/dir is one"},
	{"link to a new name", "src/flink", "dst/new", false, []string{"new->file"}, "", ""},
	{"link into a directory", "src/dlink", "dst/full", false, []string{"full/dlink->dir"}, "", ""},
	{"link to a file, followed", "src/flink", "dst/new", true, []string{"new=f"}, "", ""},
	{"link to a file, followed, into a directory", "src/flink", "dst/full", true, []string{"full/flink=f"}, "", ""},
	{"link to a directory, followed", "src/dlink", "dst/new", true, copied("new"), "", ""},
	{"link to a directory, followed, into a directory", "src/dlink", "dst/full", true, copied("full/dlink"), "", ""},
	{"link to a directory with a slash", "src/dlink/", "dst/new", false, copied("new"), "", ""},
	{"contents of a link", "src/dlink/.", "dst/full", false, copied("full")[1:], "", ""},
	{"link to a file with a slash", "src/flink/", "dst/new", false, nil, errors.Invalid, "src/flink: not a directory"},
	{"file into a link to a directory", "src/file", "dst/tolink", false, []string{"full/file=f"}, "", ""},
	{"file over a link to a file", "src/file", "dst/tofile", false, []string{"old=f"}, "", ""},
	{"file over a dangling link", "src/file", "dst/dangling", false, []string{"new=f"}, "", ""},
	{"directory into a link to a directory", "src/dir", "dst/tolink", false, copied("full/dir"), "", ""},
}

// copied lists the contents of the directory that src/dir became.
func copied(top string) []string {
	return []string{top + "/", top + "/d=d", top + "/hard=d", top + "/link->d", top + "/sub/", top + "/sub/s=s"}
}

// paths lists the contents of dir: "name=content" for a file, "name/" for a directory, "name->target" for a link.
func paths(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		switch d.Type() {
		case fs.ModeDir:
			all = append(all, rel+"/")
		case fs.ModeSymlink:
			target, err := os.Readlink(name)
			all = append(all, rel+"->"+target)
			return err
		default:
			data, err := os.ReadFile(name)
			all = append(all, rel+"="+string(data))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// copyWorld has the files of the rows on this machine, and in two sandboxes or two volumes.
type copyWorld struct {
	t    *testing.T
	c    *client.Client
	dir  string // of this machine
	open func(ref string) location
}

func (w *copyWorld) cp(follow bool, in, source, target string) (string, error) {
	w.t.Helper()
	var out bytes.Buffer
	one := &copying{in: strings.NewReader(in), out: &out, follow: follow, noun: "SANDBOX", open: w.open}
	err := one.run(w.t.Context(), source, target)
	return out.String(), err
}

// fresh recreates a directory on this machine and then, by an archive, in ref, unless ref is "".
func (w *copyWorld) fresh(script, ref string) {
	w.t.Helper()
	at := w.dir
	if ref != "" {
		at = w.t.TempDir()
	}
	shell(w.t, at, "rm -rf src dst; "+script)
	if ref == "" {
		return
	}
	stream, err := here{}.out(w.t.Context(), at, tarfs.Naming{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer stream.Close()
	if err := w.open(ref).in(w.t.Context(), "/rows", stream); err != nil {
		w.t.Fatal(err)
	}
}

// result lists the contents of dst on this machine, or in ref.
func (w *copyWorld) result(ref string) (all []string, root string) {
	w.t.Helper()
	if ref == "" {
		return paths(w.t, filepath.Join(w.dir, "dst")), w.dir
	}
	stream, err := w.open(ref).out(w.t.Context(), "/rows", tarfs.Naming{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer stream.Close()
	root = w.t.TempDir()
	if err := (here{}).in(w.t.Context(), root, stream); err != nil {
		w.t.Fatal(err)
	}
	return paths(w.t, filepath.Join(root, "dst")), root
}

func shell(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// mission: A6
func TestCopyRules(t *testing.T) {
	t.Parallel()
	c := serveFake(t)
	for _, ref := range []string{"a", "b"} {
		if _, err := c.CreateSandbox(t.Context(), api.SandboxRequest{Name: ref}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.CreateVolume(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	inBox := func(ref string) location { return inSandbox{c, ref} }
	inVol := func(ref string) location { return inVolume{c, ref} }
	for _, way := range []struct {
		name     string
		from, to string // refs, "" is this machine
		open     func(ref string) location
	}{
		{"in", "", "a", inBox}, {"out", "a", "", inBox}, {"across", "a", "b", inBox}, {"within", "a", "a", inBox},
		{"into volume", "", "a", inVol}, {"out of volume", "a", "", inVol},
	} {
		t.Run(way.name, func(t *testing.T) {
			for _, row := range copyRows {
				t.Run(row.about, func(t *testing.T) {
					w := &copyWorld{t: t, c: c, dir: t.TempDir(), open: way.open}
					w.row(way.from, way.to, row.source, row.target, row.follow, row.want, row.kind, row.says)
				})
			}
		})
	}
}

func (w *copyWorld) row(from, to, source, target string, follow bool, want []string, kind errors.Kind, says string) {
	w.t.Helper()
	for _, ref := range []string{from, to} {
		if ref != "" {
			w.wipe(ref)
		}
	}
	w.fresh(copySource, from)
	w.fresh(copyTarget, to)
	if from == to {
		w.fresh("("+copySource+"); "+copyTarget, from)
	}
	before, _ := w.result(to)
	at := func(ref, name string) string {
		if ref == "" {
			return w.dir + "/" + name
		}
		return ref + ":/rows/" + name
	}
	_, err := w.cp(follow, "", at(from, source), at(to, target))
	if kind != "" {
		says = strings.NewReplacer("src/", at(from, "src/"), "dst/", at(to, "dst/")).Replace(says)
		got := strings.NewReplacer("/.: ", ": ", "/: ", ": ", "/. is", " is").Replace(errors.Message(err))
		if errors.KindOf(err) != kind || !strings.HasPrefix(got, says) {
			w.t.Errorf("%v (%s), want %s that says %q", err, errors.KindOf(err), kind, says)
		}
		want = nil
	} else if err != nil {
		w.t.Fatal(err)
	}
	after, root := w.result(to)
	var changed []string
	for _, p := range after {
		if !slices.Contains(before, p) {
			changed = append(changed, p)
		}
	}
	want = slices.DeleteFunc(slices.Clone(want), func(p string) bool { return slices.Contains(before, p) })
	slices.Sort(want)
	if !slices.Equal(changed, want) {
		w.t.Errorf("changed: %q, want %q", changed, want)
	}
	w.attributes(root, changed)
	if kind != "" {
		remedy := errors.RemedyOf(err)
		source, target := w.remedy(remedy, at(from, "src"), at(to, "dst"), at(from, source), at(to, target))
		if _, err := w.cp(follow, "", source, target); err != nil {
			w.t.Errorf("%q does not help: %v", remedy, err)
		}
	}
}

// remedy follows a remedy for an error of cp, and returns the arguments for the next attempt.
func (w *copyWorld) remedy(text, src, dst, source, target string) (string, string) {
	w.t.Helper()
	before := func(prefix, suffix string) (arg string, ok bool) {
		rest, ok := strings.CutPrefix(text, prefix)
		arg, cut := strings.CutSuffix(rest, suffix)
		return arg, ok && cut
	}
	ok := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatalf("%q: %v", text, err)
		}
	}
	if arg, found := before("to copy the file, name ", ""); found {
		return arg, target
	} else if arg, found = before("to replace the file, name ", ""); found {
		return source, arg
	} else if arg, found = before("create it first: harvest sandbox files mkdir -p ", ""); found {
		ref, name, _ := strings.Cut(arg, ":")
		_, err := w.c.MakeDirectory(w.t.Context(), ref, api.MkdirRequest{Path: name, Parents: true})
		ok(err)
	} else if arg, found = before("create it first: ", ""); found {
		shell(w.t, "/", arg)
	} else if arg, found = before("copy a directory to ", " first, which creates it"); found {
		_, err := w.cp(false, "", src+"/dir", arg)
		ok(err)
	} else if arg, found = before("remove ", " first, or name another TARGET"); found {
		ref, name, remote := strings.Cut(arg, ":")
		switch _, inBox := w.open(ref).(inSandbox); {
		case !remote:
			ok(os.RemoveAll(arg))
		case inBox:
			ok(w.c.RemoveFile(w.t.Context(), ref, name, true))
		default:
			ok(w.c.RemoveVolumeFile(w.t.Context(), ref, name))
		}
	} else if text == "name a directory as TARGET, or a path that does not exist" {
		return source, dst + "/full"
	} else if strings.HasPrefix(text, "check SOURCE; ") {
		return src + "/file", target
	} else {
		w.t.Errorf("the remedy %q is unknown", text)
	}
	return source, target
}

// attributes checks modes, times and hard links of copies.
func (w *copyWorld) attributes(root string, changed []string) {
	w.t.Helper()
	for _, p := range changed {
		name, content, isFile := strings.Cut(p, "=")
		if !isFile || content != "d" && content != "f" {
			continue
		}
		info, err := os.Lstat(filepath.Join(root, "dst", name))
		if err != nil {
			w.t.Fatal(err)
		}
		if info.ModTime().Unix() != 1600000000 || content == "f" && info.Mode().Perm() != 0o640 {
			w.t.Errorf("%s has the mode %v and the time %v", name, info.Mode(), info.ModTime())
		}
		if links := info.Sys().(*syscall.Stat_t).Nlink; content == "d" && links != 2 {
			w.t.Errorf("%s has %d names", name, links)
		}
	}
}

// wipe removes the rows before.
func (w *copyWorld) wipe(ref string) {
	w.t.Helper()
	var err error
	switch p := w.open(ref).(type) {
	case inSandbox:
		err = w.c.RemoveFile(w.t.Context(), ref, "/rows", true)
	case inVolume:
		err = w.c.RemoveVolumeFile(w.t.Context(), p.volume, "/rows")
	}
	if err != nil && errors.KindOf(err) != errors.NotFound {
		w.t.Fatal(err)
	}
}

// mission: A6
func TestCopyStreams(t *testing.T) {
	t.Parallel()
	c := serveFake(t)
	for _, ref := range []string{"a", "b"} {
		if _, err := c.CreateSandbox(t.Context(), api.SandboxRequest{Name: ref}, nil); err != nil {
			t.Fatal(err)
		}
	}
	w := &copyWorld{t: t, c: c, dir: t.TempDir(), open: func(ref string) location { return inSandbox{c, ref} }}
	for source, want := range map[string][]string{
		"src/dir": copied("full/dir"), "src/dir/.": copied("full")[1:], "src/file": {"full/file=f"},
		"src/flink": {"full/flink->file"}, "src/dlink/": copied("full/dlink"),
	} {
		w.wipe("a")
		w.wipe("b")
		w.fresh(copySource, "a")
		w.fresh(copyTarget, "b")
		before, _ := w.result("b")
		stream, err := w.cp(false, "", "a:/rows/"+source, "-")
		if err == nil {
			_, err = w.cp(false, stream, "-", "b:/rows/dst/tolink")
		}
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		after, _ := w.result("b")
		changed := slices.DeleteFunc(after, func(p string) bool { return slices.Contains(before, p) })
		want := slices.DeleteFunc(slices.Clone(want), func(p string) bool { return slices.Contains(before, p) })
		slices.Sort(want)
		if !slices.Equal(changed, want) {
			t.Errorf("%s through a pipe: %q, want %q", source, changed, want)
		}
	}
	for _, bad := range []struct {
		source, target string
		kind           errors.Kind
	}{
		{"-", "b:/rows/none", errors.NotFound}, {"-", "b:/rows/dst/old", errors.Invalid}, {"-", "-", errors.Invalid},
		{"x", "y", errors.Invalid}, {"-", "y", errors.Invalid},
		{"x", "-", errors.Invalid}, {"none:/x", w.dir, errors.NotFound}, {w.dir, "none:/x", errors.NotFound},
		{"b:/rows", "b:/rows/dst", errors.Invalid}, {"b:/rows/dst/.", "b:/rows/dst", errors.Invalid},
	} {
		if _, err := w.cp(false, "", bad.source, bad.target); errors.KindOf(err) != bad.kind ||
			errors.RemedyOf(err) == "" && !strings.HasPrefix(bad.source+bad.target, "none") {
			t.Errorf("%s to %s: %v (%s), remedy %q", bad.source, bad.target, err, errors.KindOf(err),
				errors.RemedyOf(err))
		}
	}
	if _, err := w.cp(false, "", "none:/x", w.dir); !strings.Contains(fmt.Sprint(err), "none") ||
		strings.Contains(fmt.Sprint(err), "no such file") {
		t.Errorf("no such sandbox: %v", err)
	}
}

func TestRemote(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string][2]string{
		"box:/a": {"box", "/a"}, "box:": {"box", ""}, "v:a:b": {"v", "a:b"}, "./a:b": {}, "/a:b": {}, "../a:b": {},
		"plain": {}, ":x": {},
	} {
		ref, file, ok := remote(arg)
		if ok != (want[0] != "") || ok && [2]string{ref, file} != want {
			t.Errorf("%q is %q, %q, %t", arg, ref, file, ok)
		}
	}
}

// TestFIFOsAreCreatedOnRequestOnly checks that a FIFO of a sandbox becomes none on this machine, and is named, unless
// the caller asks for it. A device fails then.
func TestFIFOsAreCreatedOnRequestOnly(t *testing.T) {
	t.Parallel()
	tarOf := func(kinds ...byte) archive {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i, kind := range kinds {
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Typeflag: kind, Mode: 0o644,
				ModTime: time.Now()}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return archive{ReadCloser: io.NopCloser(&b)}
	}
	names := func(dir string) (all []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Name()+" "+e.Type().String())
		}
		return all
	}
	var skipped []string
	to, dir := here{skipped: func(name string) { skipped = append(skipped, name) }}, t.TempDir()
	if err := to.in(t.Context(), dir, tarOf(tar.TypeReg, tar.TypeFifo, tar.TypeChar, tar.TypeBlock)); err != nil {
		t.Fatal(err)
	}
	if got := names(dir); !slices.Equal(got, []string{"0 ----------"}) || !slices.Equal(skipped,
		[]string{"1", "2", "3"}) {
		t.Errorf("by default there are %q, and %q are named", got, skipped)
	}
	dir = t.TempDir()
	if err := (here{}).in(t.Context(), dir, tarOf(tar.TypeFifo)); err != nil {
		t.Fatal(err)
	}
	if got := names(dir); !slices.Equal(got, []string{"0 p---------"}) {
		t.Errorf("on request there are %q", got)
	}
	for _, kind := range []byte{tar.TypeChar, tar.TypeBlock} {
		if err := (here{}).in(t.Context(), t.TempDir(), tarOf(kind)); err == nil {
			t.Errorf("a device of the type %c is created", kind)
		}
	}
}
