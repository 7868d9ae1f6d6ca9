package volsync

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// machine is a volume with its machine's state.
type machine struct {
	dir, state string
	b          *object.Bucket
}

// machines returns n machines that synchronise one place, and direct access to the place.
func machines(t *testing.T, n int) ([]*machine, *object.Bucket, *asked) {
	t.Helper()
	loc := location(t)
	direct := openBucket(t, loc)
	a := between(t, &loc)
	all := make([]*machine, n)
	for i := range all {
		all[i] = &machine{t.TempDir(), t.TempDir(), direct}
	}
	all[0].b = openBucket(t, loc)
	return all, direct, a
}

// twoAt returns two new machines that synchronise one place.
func twoAt(t *testing.T, b *object.Bucket) (one, two *machine) {
	t.Helper()
	return &machine{t.TempDir(), t.TempDir(), b}, &machine{t.TempDir(), t.TempDir(), b}
}

// both synchronises in both directions. Nothing may fail.
func (m *machine) both(t *testing.T) Stats {
	t.Helper()
	return mustSync(t, m.dir, m.b, Options{Direction: plan.Both, State: m.state, Owners: true})
}

// settle synchronises all machines until nothing is left to do, which must be soon, and compares them.
func settle(t *testing.T, all ...*machine) {
	t.Helper()
	for range 2 {
		for _, m := range all {
			m.both(t)
		}
	}
	for _, m := range all {
		if s := m.both(t); s.Files+s.Updated+s.Deleted+s.Conflicts > 0 {
			t.Errorf("another sync is not quiet: %s %+v", s, s.Decided)
		}
		sameTrees(t, all[0].dir, m.dir)
	}
}

// filesOf are the contents of all files of a tree, by path, with the times left out of the names of conflicts.
func filesOf(t *testing.T, dir string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		name, _, conflict := strings.Cut(name, ".conflict-")
		if conflict {
			name += " copy"
		}
		all[name] = append(all[name], string(raw))
		return err
	}))
	for _, c := range all {
		slices.Sort(c)
	}
	return all
}

// bothContents checks that a path has two contents, of which one is a copy.
func bothContents(t *testing.T, m *machine, path, one, other string) {
	t.Helper()
	got := filesOf(t, m.dir)
	have := append(slices.Clone(got[path]), got[path+" copy"]...)
	slices.Sort(have)
	want := []string{one, other}
	slices.Sort(want)
	if len(got[path]) != 1 || !slices.Equal(have, want) {
		t.Errorf("%s has %q, and the copies %q", path, got[path], got[path+" copy"])
	}
}

func named(t *testing.T, path string, stats ...Stats) {
	t.Helper()
	for _, s := range stats {
		for _, d := range s.Decided {
			if d.Path == path {
				if strings.Contains(d.Reason, ".conflict-") &&
					(d.Copy == "" || !strings.HasSuffix(d.Reason, " "+d.Copy)) {
					t.Errorf("%s has the copy %q", d.Reason, d.Copy)
				}
				return
			}
		}
	}
	t.Errorf("no sync named the conflict of %s: %+v", path, stats)
}

// disguise edits a file in place, and keeps its size and time.
func disguise(t *testing.T, dir, path, content string) {
	t.Helper()
	full := filepath.Join(dir, path)
	info, err := os.Stat(full)
	must(t, err)
	must(t, os.WriteFile(full, []byte(content), 0o644))
	must(t, os.Chtimes(full, info.ModTime(), info.ModTime()))
}

// asks calls do once, at the server's first request that matches what.
func asks(a *asked, method, what string, do func()) {
	var done atomic.Bool
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if r.Method == method && strings.HasSuffix(r.URL.Path, what) && done.CompareAndSwap(false, true) {
			do()
		}
		return false
	})
}

// TestOverlapKeepsBothEdits checks that both edits survive everywhere if two machines edit a file and their syncs
// overlap, and that one is reported as a conflict.
// mission: D1, D2
func TestOverlapKeepsBothEdits(t *testing.T) {
	t.Parallel()
	for name, at := range map[string][2]string{
		"before the object":   {http.MethodPut, "work/p"},
		"before the manifest": {http.MethodPut, manifest.Key},
	} {
		t.Run(name, func(t *testing.T) {
			all, _, a := machines(t, 2)
			one, two := all[0], all[1]
			write(t, one.dir, "p", "zero")
			write(t, one.dir, "new", "zero")
			settle(t, one, two)
			write(t, one.dir, "p", "edit of one")
			write(t, two.dir, "p", "the edit of two")
			for i := range 20 {
				write(t, one.dir, fmt.Sprintf("q%02d", i), "behind it")
			}
			// Both make this one, too.
			write(t, one.dir, "made", "made by one")
			write(t, two.dir, "made", "made by the other")
			var second Stats
			asks(a, at[0], at[1], func() { second = two.both(t) })
			first := one.both(t)
			a.reset(nil)
			settle(t, one, two)
			for _, m := range all {
				bothContents(t, m, "p", "edit of one", "the edit of two")
				bothContents(t, m, "made", "made by one", "made by the other")
			}
			named(t, "p", first, second)
		})
	}
}

// TestKilledBeforeManifest checks that a machine whose sync was killed between an object and the manifest sees an edit
// that another machine made meanwhile.
// mission: A8, D1, D2
func TestKilledBeforeManifest(t *testing.T) {
	t.Parallel()
	for _, gently := range []bool{true, false} {
		t.Run(fmt.Sprintf("canceled=%v", gently), func(t *testing.T) {
			all, _, a := machines(t, 2)
			one, two := all[0], all[1]
			write(t, one.dir, "p", "zero")
			write(t, one.dir, "q", "zero")
			settle(t, one, two)
			write(t, one.dir, "p", "edit of one")
			must(t, os.Remove(filepath.Join(one.dir, "q")))
			if gently {
				ctx, cancel := context.WithCancel(t.Context())
				asks(a, http.MethodPut, manifest.Key, cancel)
				if _, err := Sync(ctx, openTree(t, one.dir), one.b, Options{Direction: plan.Both, State: one.state,
					Owners: true}); err == nil {
					t.Fatal("the sync was not canceled")
				}
			} else {
				killedAt(t, a, childSpec{one.dir, one.state, plan.Both, one.b.Location(), ""}, http.MethodPut,
					manifest.Key)
			}
			a.reset(nil)
			write(t, two.dir, "p", "the edit of two")
			second := two.both(t)
			first := one.both(t)
			settle(t, one, two)
			for _, m := range all {
				bothContents(t, m, "p", "edit of one", "the edit of two")
				if _, err := os.Stat(filepath.Join(m.dir, "q")); err == nil {
					t.Error("a file that was deleted came back")
				}
			}
			named(t, "p", first, second)
		})
	}
}

// killedAt runs a sync in its own process, which is killed when the server receives the request what.
func killedAt(t *testing.T, a *asked, c childSpec, method, what string) {
	t.Helper()
	killedWhen(t, a, c, func(r *http.Request) bool { return r.Method == method && strings.HasSuffix(r.URL.Path, what) })
}

// killedWhen is killedAt for the first request that is one.
func killedWhen(t *testing.T, a *asked, c childSpec, is func(r *http.Request) bool) {
	t.Helper()
	spec, err := json.Marshal(c)
	must(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "S3SYNC_TEST_CHILD="+string(spec))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan struct{})
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if is(r) {
			<-started
			_ = cmd.Process.Kill()
			return xmlFault(w, http.StatusServiceUnavailable, "SlowDown")
		}
		return false
	})
	must(t, cmd.Start())
	close(started)
	_ = cmd.Wait()
	if status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("it was not killed: %s", cmd.ProcessState)
	}
}

// TestContentOfDirectoryKeys checks that an object whose key ends with a slash can have content. It is not a file: it
// is reported and stays.
// mission: 3.4
func TestContentOfDirectoryKeys(t *testing.T) {
	t.Parallel()
	b := openBucket(t, location(t))
	strict := strictBucket(t)
	for name, b := range map[string]*object.Bucket{"embedded": b, "strict": strict} {
		t.Run(name, func(t *testing.T) {
			body := []byte("content")
			etag, err := b.Put(t.Context(), "d/", body, crc64nvme.Checksum(body), nil)
			if err != nil {
				t.Skipf("this server cannot have such objects: %v", err)
			}
			dir, state := t.TempDir(), t.TempDir()
			names := func(o Options) {
				t.Helper()
				stats, err := Sync(t.Context(), openTree(t, dir), b, o)
				if err != nil || stats.Failed != 1 || stats.Failures[0].Path != "d/" {
					t.Errorf("%s: %s %+v, %v", o.Direction, stats, stats.Failures, err)
				}
				if now, err := b.Head(t.Context(), "d/"); err != nil || object.Unquote(now.Header.Get("ETag")) != etag {
					t.Errorf("%s: the object is another one: %v", o.Direction, err)
				}
			}
			names(Options{Direction: plan.Down, State: state})
			must(t, os.Chmod(filepath.Join(dir, "d"), 0o700))
			write(t, dir, "d/x", "x")
			must(t, os.Chmod(filepath.Join(dir, "d"), 0o700))
			names(Options{Direction: plan.Up, State: state, List: true})
			must(t, os.RemoveAll(filepath.Join(dir, "d")))
			write(t, dir, "other", "x")
			names(Options{Direction: plan.Up, State: state, List: true, Mirror: true})
			names(Options{Direction: plan.Both, State: state, List: true})
		})
	}
	// A sync that relies on the manifest does not see it.
	dir := t.TempDir()
	write(t, dir, "f", "x")
	state := t.TempDir()
	mustSync(t, dir, strict, Options{Direction: plan.Up, State: state})
	body := []byte("content")
	_, err := strict.Put(t.Context(), "e/", body, crc64nvme.Checksum(body), nil)
	must(t, err)
	must(t, os.Mkdir(filepath.Join(dir, "e"), 0o700))
	stats, err := Sync(t.Context(), openTree(t, dir), strict, Options{Direction: plan.Up, State: state})
	if err != nil || stats.Failed != 1 {
		t.Errorf("%s, %v", stats, err)
	}
	if now, err := strict.Stat(t.Context(), "e/"); err != nil || now.Size != 7 {
		t.Errorf("the object is %+v, %v", now, err)
	}
}

// TestReplacedByRename checks that a file that is replaced by another one of equal size and time counts as changed.
// mission: D2
func TestReplacedByRename(t *testing.T) {
	t.Parallel()
	for _, list := range []bool{false, true} {
		for _, direction := range []plan.Direction{plan.Up, plan.Both} {
			t.Run(fmt.Sprintf("%s list=%v", direction, list), func(t *testing.T) {
				all, _, _ := machines(t, 2)
				one, two := all[0], all[1]
				for i, name := range []string{"p", "swap1", "swap2", "kept"} {
					write(t, one.dir, name, fmt.Sprintf("content%d", i))
					must(t, os.Chtimes(filepath.Join(one.dir, name), someTime, someTime))
				}
				settle(t, one, two)
				one.both(t)
				// Another machine writes the manifest meanwhile.
				write(t, two.dir, "other", "x")
				two.both(t)
				write(t, one.dir, "new", "CONTENT")
				must(t, os.WriteFile(filepath.Join(one.dir, "new"), []byte("replaced"), 0o644))
				must(t, os.Chtimes(filepath.Join(one.dir, "new"), someTime, someTime))
				must(t, os.Rename(filepath.Join(one.dir, "new"), filepath.Join(one.dir, "p")))
				must(t, unix.Renameat2(unix.AT_FDCWD, filepath.Join(one.dir, "swap1"), unix.AT_FDCWD,
					filepath.Join(one.dir, "swap2"), unix.RENAME_EXCHANGE))
				mustSync(t, one.dir, one.b, Options{Direction: direction, State: one.state, List: list, Owners: true})
				two.both(t)
				got := filesOf(t, two.dir)
				if got["p"][0] != "replaced" || got["swap1"][0] != "content2" || got["swap2"][0] != "content1" ||
					len(got) != 5 {
					t.Errorf("the other machine has %q", got)
				}
				// A restore brings back the bucket's content.
				must(t, os.Remove(filepath.Join(one.dir, "p")))
				write(t, one.dir, "p", "gone bad")
				must(t, os.Chtimes(filepath.Join(one.dir, "p"), someTime, someTime))
				mustSync(t, one.dir, one.b, Options{Direction: plan.Down, State: one.state, List: list, Owners: true})
				if got := filesOf(t, one.dir)["p"]; got[0] != "replaced" {
					t.Errorf("restored %q", got)
				}
			})
		}
	}
}

// TestEditedInDisguise checks that an edit in place that keeps size and time is detected, also after another machine
// has written the manifest or the same file.
// mission: D2
func TestEditedInDisguise(t *testing.T) {
	t.Parallel()
	all, _, _ := machines(t, 2)
	one, two := all[0], all[1]
	for _, name := range []string{"p", "clash", "deleted"} {
		write(t, one.dir, name, "content")
		must(t, os.Chtimes(filepath.Join(one.dir, name), someTime, someTime))
	}
	settle(t, one, two)
	write(t, two.dir, "other", "x")
	disguise(t, two.dir, "clash", "of two!")
	must(t, os.Remove(filepath.Join(two.dir, "deleted")))
	two.both(t)
	disguise(t, one.dir, "p", "edited!")
	disguise(t, one.dir, "clash", "of one!")
	disguise(t, one.dir, "deleted", "edited!")
	stats := one.both(t)
	named(t, "clash", stats)
	settle(t, one, two)
	for _, m := range all {
		got := filesOf(t, m.dir)
		if got["p"][0] != "edited!" || len(got["deleted"]) != 1 || got["deleted"][0] != "edited!" {
			t.Errorf("have %q", got)
		}
		bothContents(t, m, "clash", "of one!", "of two!")
	}
}

// TestNamesLikeTemporary checks that files of users with names like those of temporary files are treated as ordinary
// files.
func TestNamesLikeTemporary(t *testing.T) {
	t.Parallel()
	all, direct, _ := machines(t, 2)
	one, two := all[0], all[1]
	for _, name := range []string{".harvest-sync-notes", ".harvest-sync-ABCDEFGHIJKLMNOPQRSTUVWXYZ",
		"d/.harvest-sync-"} {
		write(t, one.dir, name, "mine")
	}
	for range 2 {
		settle(t, one, two)
	}
	if got := filesOf(t, two.dir); len(got) != 3 {
		t.Errorf("the other machine has %q", got)
	}
	// A real temporary file that another program stored is reported.
	name := tree.NewTempName()
	body := []byte("half")
	_, err := direct.Put(t.Context(), name, body, crc64nvme.Checksum(body), nil)
	must(t, err)
	stats, err := Sync(t.Context(), openTree(t, two.dir), direct, Options{Direction: plan.Down, List: true})
	if err != nil || stats.Failed != 1 || stats.Failures[0].Path != name {
		t.Errorf("%s %+v, %v", stats, stats.Failures, err)
	}
	if _, err := direct.Stat(t.Context(), name); err != nil {
		t.Errorf("the object: %v", err)
	}
}

// TestFileAndDirectory checks that a file on one side and a directory on the other are merged: the directory stays, the
// file becomes a copy, and later syncs find no conflict.
// mission: D2
func TestFileAndDirectory(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"new", "was a file", "was a directory"} {
		for _, order := range []string{"file first", "directory first"} {
			t.Run(kind+" "+order, func(t *testing.T) {
				all, _, _ := machines(t, 2)
				one, two := all[0], all[1]
				switch kind {
				case "was a file":
					write(t, one.dir, "n", "zero")
				case "was a directory":
					write(t, one.dir, "n/x", "zero")
				}
				settle(t, one, two)
				must(t, os.RemoveAll(filepath.Join(one.dir, "n")))
				write(t, one.dir, "n", "a file of one")
				if kind != "was a directory" {
					must(t, os.RemoveAll(filepath.Join(two.dir, "n")))
				}
				write(t, two.dir, "n/x", "beneath, of two")
				write(t, two.dir, "n/y", "new")
				write(t, two.dir, "n-between", "x")
				first, second := one, two
				if order == "directory first" {
					first, second = two, one
				}
				var s [4]Stats
				for i := range 2 {
					s[2*i], _ = Sync(t.Context(), openTree(t, first.dir), first.b,
						Options{Direction: plan.Both, State: first.state, Owners: true})
					s[2*i+1], _ = Sync(t.Context(), openTree(t, second.dir), second.b,
						Options{Direction: plan.Both, State: second.state, Owners: true})
				}
				settle(t, one, two)
				for _, m := range all {
					got := filesOf(t, m.dir)
					if len(got["n/x"]) != 1 || got["n/x"][0] != "beneath, of two" || len(got["n copy"]) != 1 ||
						got["n copy"][0] != "a file of one" || len(got["n/y"]) != 1 {
						t.Errorf("have %q", got)
					}
				}
			})
		}
	}
}

// TestForeignWritesAreKept checks that an object that another program stored meanwhile is not overwritten unread.
// mission: D2
func TestForeignWritesAreKept(t *testing.T) {
	t.Parallel()
	for _, direction := range []plan.Direction{plan.Both, plan.Up} {
		t.Run(string(direction), func(t *testing.T) {
			all, direct, _ := machines(t, 1)
			one := all[0]
			write(t, one.dir, "p", "zero")
			write(t, one.dir, "gone", "zero")
			large := strings.Repeat("0123456789abcdef", 17<<16)
			write(t, one.dir, "large", large)
			one.both(t)
			for key, body := range map[string]string{"p": "of another program", "new": "also of another",
				"gone": "changed by another", "large": "of another"} {
				_, err := direct.Put(t.Context(), key, []byte(body), crc64nvme.Checksum([]byte(body)), nil)
				must(t, err)
			}
			write(t, one.dir, "p", "edited")
			write(t, one.dir, "new", "made here")
			write(t, one.dir, "large", large+"!")
			must(t, os.Remove(filepath.Join(one.dir, "gone")))
			o := Options{Direction: direction, State: one.state, Owners: true, Mirror: direction == plan.Up}
			stats, err := Sync(t.Context(), openTree(t, one.dir), one.b, o)
			must(t, err)
			for _, name := range []string{"p", "new", "large"} {
				named(t, name, stats)
			}
			back := &machine{t.TempDir(), t.TempDir(), direct}
			mustSync(t, back.dir, direct, Options{Direction: plan.Down, List: true})
			bothContents(t, back, "p", "edited", "of another program")
			bothContents(t, back, "new", "made here", "also of another")
			bothContents(t, back, "large", large+"!", "of another")
			if got := filesOf(t, back.dir); len(got["gone"]) != 1 || got["gone"][0] != "changed by another" {
				t.Errorf("deleted although another program changed it: %q", got["gone"])
			}
		})
	}
}

// Metadata of one side and content of the other are both kept, and metadata that changed is a change.
// mission: D2
func TestMetadataAgainstContent(t *testing.T) {
	t.Parallel()
	names := []string{"chmod", "chmod-deleted", "touch", "xattr", "both-modes"}
	for _, list := range []bool{false, true} {
		t.Run(fmt.Sprintf("list=%v", list), func(t *testing.T) {
			for _, editFirst := range []bool{false, true} {
				all, _, _ := machines(t, 2)
				one, two := all[0], all[1]
				for _, name := range names {
					write(t, one.dir, name, "zero")
				}
				settle(t, one, two)
				at := func(name string) string { return filepath.Join(one.dir, name) }
				must(t, os.Chmod(at("chmod"), 0o600))
				must(t, os.Chmod(at("chmod-deleted"), 0o600))
				must(t, os.Chtimes(at("touch"), someTime, someTime))
				must(t, unix.Setxattr(at("xattr"), "user.colour", []byte("blue"), 0))
				must(t, os.Chmod(at("both-modes"), 0o640))
				for _, name := range names {
					write(t, two.dir, name, "edited")
				}
				must(t, os.Remove(filepath.Join(two.dir, "chmod-deleted")))
				must(t, unix.Setxattr(filepath.Join(two.dir, "xattr"), "user.size", []byte("big"), 0))
				order := []*machine{one, two, one}
				if editFirst {
					order = []*machine{two, one, two}
				}
				for _, m := range order {
					if s := mustSync(t, m.dir, m.b, Options{Direction: plan.Both, State: m.state, Owners: true,
						List: list}); s.Conflicts > 1 {
						t.Errorf("in conflict: %+v", s.Decided)
					}
				}
				settle(t, one, two)
				for name, mode := range map[string]fs.FileMode{"chmod": 0o600, "both-modes": 0o640} {
					info, err := os.Stat(at(name))
					must(t, err)
					if raw, err := os.ReadFile(at(name)); info.Mode() != mode || string(raw) != "edited" {
						t.Errorf("edit first %v: %s is %v, %q, %v", editFirst, name, info.Mode(), raw, err)
					}
				}
				if info, err := os.Stat(at("chmod-deleted")); err != nil || info.Mode() != 0o600 {
					t.Errorf("a change of the mode lost to a deletion: %v", err)
				}
				value := make([]byte, 10)
				for name, want := range map[string]string{"user.colour": "blue", "user.size": "big"} {
					if n, err := unix.Getxattr(at("xattr"), name, value); err != nil || string(value[:n]) != want {
						t.Errorf("%s is %q, %v", name, value[:max(n, 0)], err)
					}
				}
			}
		})
	}
}

// TestInterruptedDeletion checks that a deletion that an interrupted sync had decided still holds, and that the file
// does not come back.
// mission: D2
func TestInterruptedDeletion(t *testing.T) {
	t.Parallel()
	all, _, a := machines(t, 2)
	one, two := all[0], all[1]
	for i := range 10 {
		write(t, one.dir, fmt.Sprintf("f%d", i), "zero")
	}
	settle(t, one, two)
	must(t, os.Remove(filepath.Join(one.dir, "f3")))
	must(t, os.Remove(filepath.Join(two.dir, "f5")))
	two.both(t)
	write(t, one.dir, "f9", "edited")
	ctx, cancel := context.WithCancel(t.Context())
	asks(a, http.MethodPut, manifest.Key, cancel)
	if _, err := Sync(ctx, openTree(t, one.dir), one.b, Options{Direction: plan.Both, State: one.state,
		Owners: true}); err == nil {
		t.Fatal("the sync was not canceled")
	}
	a.reset(nil)
	settle(t, one, two)
	if got := filesOf(t, two.dir); len(got) != 8 || got["f9"][0] != "edited" {
		t.Errorf("have %q", got)
	}
}

// TestConflictsOfOneSecond checks that neither copy replaces the other if a file has two conflicts within one second.
func TestConflictsOfOneSecond(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree := openTree(t, dir)
	r := newRun(tree, nil, Options{})
	name := strings.Repeat("n", 250)
	want := map[string]bool{}
	for range 3 {
		free, err := r.freeName(plan.ConflictName("d/"+name, time.Unix(0, 0)))
		must(t, err)
		if want[free] || len(filepath.Base(free)) > 255 {
			t.Fatalf("the name %q", free)
		}
		want[free] = true
		write(t, dir, free, "x")
	}
}

// TestDirectoryTimesSettle checks that a directory whose metadata was uploaded keeps them when the same sync changes
// its entries. Otherwise each machine uploads the time of its own downloads to the others.
func TestDirectoryTimesSettle(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, dir string){
		"time": func(t *testing.T, dir string) { must(t, os.Chtimes(filepath.Join(dir, "d"), someTime, someTime)) },
		"mode": func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "d"), 0o700)) },
	} {
		for other, do := range map[string]func(t *testing.T, dir string){
			"new":     func(t *testing.T, dir string) { write(t, dir, "d/new", "x") },
			"edited":  func(t *testing.T, dir string) { write(t, dir, "d/f", "longer than before") },
			"chmod":   func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "d/f"), 0o600)) },
			"deleted": func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "d/g"))) },
		} {
			t.Run(name+"/"+other, func(t *testing.T) {
				all, _, _ := machines(t, 2)
				one, two := all[0], all[1]
				write(t, one.dir, "d/f", "x")
				write(t, one.dir, "d/g", "x")
				settle(t, one, two)
				do(t, two.dir)
				two.both(t)
				change(t, one.dir)
				one.both(t)
				if s := one.both(t); s.Files+s.Updated+s.Deleted+s.Conflicts > 0 {
					t.Errorf("the next sync is not quiet: %s %+v", s, s.Decided)
				}
				settle(t, one, two)
			})
		}
	}
}
