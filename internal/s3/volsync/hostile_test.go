package volsync

import (
	"encoding/json"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestHostileKeys checks that a bucket with any key is safe: no key leads outside the volume, and keys that are not
// valid paths are reported and stay in the bucket.
// mission: 3.2
func TestHostileKeys(t *testing.T) {
	store := s3mem.New()
	must(t, store.CreateBucket("keys"))
	s := httptest.NewServer(gofakes3.New(store).Server())
	t.Cleanup(s.Close)
	long := strings.Repeat("n/", 508) + "ends" // with the prefix 1,025 bytes
	full := long[:len(long)-1]
	bad := []string{"../up", "..", "x//y", "/abs", "dot/./f", "b/../../c", "out/..", ".", strings.Repeat("w", 256),
		"%~41", "new\tline"}
	good := []string{"a", "fine", "k/m", "%41", full}
	for _, key := range slices.Concat(bad, good, []string{"a/b", "void/"}) {
		_, err := store.PutObject("keys", "work/"+key, map[string]string{}, strings.NewReader("body"), 4, nil)
		must(t, err)
	}
	loc := s3.Location{Bucket: "keys", Prefix: "work", Endpoint: s.URL, PathStyle: true,
		Credentials: s3.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}}
	b := openBucket(t, loc)
	above := t.TempDir()
	back := filepath.Join(above, "volume")
	must(t, os.Mkdir(back, 0o755))
	stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down})
	must(t, err)
	failed, reasons := map[string]bool{}, map[string]string{}
	for _, f := range stats.Failures {
		failed[f.Path], reasons[f.Path] = true, f.Reason+"; "+f.Remedy
	}
	for _, key := range bad {
		if !failed[key] {
			t.Errorf("nothing was said of %q: %v", key, slices.Sorted(maps.Keys(failed)))
		}
	}
	if got := reasons["new\tline"]; !strings.Contains(got, "U+0009") || !strings.Contains(got, `"new%~09line"`) {
		t.Errorf("the reason of a tab is %q", got)
	}
	if !failed["a"] && !failed["a/b"] {
		t.Error("a file and a directory have one name, and nothing was said")
	}
	for _, path := range []string{"fine", "k/m", full} {
		if raw, err := os.ReadFile(filepath.Join(back, path)); err != nil || string(raw) != "body" {
			t.Errorf("%.50q came as %q, %v", path, raw, err)
		}
	}
	entries, err := os.ReadDir(above)
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the volume there is %v, %v", entries, err)
	}
	// A mirror deletes objects that the volume does not have, and none that the volume could not have had.
	empty := t.TempDir()
	_, err = Sync(t.Context(), openTree(t, empty), b, Options{Direction: plan.Up, Mirror: true, DeleteMany: true})
	must(t, err)
	for _, key := range bad {
		if o, err := store.HeadObject("keys", "work/"+key); err != nil || o == nil {
			t.Errorf("%q was deleted: %v", key, err)
		}
	}
	if _, err := store.HeadObject("keys", "work/fine"); err == nil {
		t.Error("a mirror deleted nothing")
	}
}

// TestHostileManifestLinks checks that a manifest cannot lead outside the volume through a link in it: not with a file,
// a directory, a hard link or metadata.
// mission: 3.2
func TestHostileManifestLinks(t *testing.T) {
	b := openBucket(t, location(t))
	outside, back := t.TempDir(), t.TempDir()
	write(t, outside, "secret", "of the host")
	body := []byte("bad")
	crc := crc64nvme.Checksum(body)
	file := func(path, link string) *tree.Entry {
		etag, err := b.Put(t.Context(), tree.EncodePath(path), body, crc, nil)
		must(t, err)
		return &tree.Entry{Path: path, Kind: tree.File, Mode: 0o777, UID: 1234, ModTime: tree.Nano(1e18),
			Size: int64(len(body)), Link: link, ETag: etag, CRC: crc, HasCRC: true}
	}
	// A link and a directory of one name, in the order of a manifest.
	raw := entriesOf(t, false,
		&tree.Entry{Path: "d", Kind: tree.Symlink, Mode: 0o777, Target: outside},
		&tree.Entry{Path: "d", Kind: tree.Dir, Mode: 0o711, UID: 1234, ModTime: tree.Nano(1e18)},
		&tree.Entry{Path: "d/new", Kind: tree.Dir, Mode: 0o711},
		file("d/new/x", ""), file("d/secret", ""), file("d/x", ""),
		file("hard", "d/secret"),
		&tree.Entry{Path: "r", Kind: tree.Symlink, Mode: 0o777, Target: ".."},
		file("r/x", ""))
	_, err := b.Put(t.Context(), manifest.Key, raw, crc64nvme.Checksum(raw), nil)
	must(t, err)
	before := snapshot(t, outside)
	root, err := os.Stat(outside)
	must(t, err)
	for i, o := range []Options{{}, {}, {Mirror: true},
		{Direction: plan.Both, State: t.TempDir()}} { // at first the links are made, and then they are there
		if o.Direction == "" {
			o.Direction = plan.Down
		}
		o.Owners = true
		stats, err := Sync(t.Context(), openTree(t, back), b, o)
		if err != nil || stats.Failed == 0 {
			t.Errorf("%d: %s %+v, %v", i, stats, stats.Failures, err)
		}
		if target, err := os.Readlink(filepath.Join(back, "d")); err == nil && target != outside {
			t.Errorf("%d: the link leads to %q", i, target)
		}
		if now, err := os.Stat(outside); err != nil || now.Mode() != root.Mode() ||
			!now.ModTime().Equal(root.ModTime()) || !maps.Equal(snapshot(t, outside), before) {
			t.Errorf("%d: outside there is %v, %v, want %v", i, snapshot(t, outside), err, before)
		}
		for path := range snapshot(t, back) {
			if raw, _ := os.ReadFile(filepath.Join(back, path)); string(raw) == "of the host" {
				t.Errorf("%d: %s is a file of the host", i, path)
			}
		}
		if _, err := os.Lstat(filepath.Join(filepath.Dir(back), "x")); err == nil {
			t.Errorf("%d: a file is above the volume", i)
		}
	}
}

// asNobody runs a sync as an unprivileged user.
func asNobody(t *testing.T, c childSpec) (stats Stats) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can run a sync as somebody else")
	}
	spec, err := json.Marshal(c)
	must(t, err)
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), "S3SYNC_TEST_CHILD="+string(spec), "GOCOVERDIR="+nobodys(t))
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
		Pdeathsig: syscall.SIGKILL}
	out, err := cmd.Output()
	must(t, err)
	must(t, json.Unmarshal(out, &stats))
	return stats
}

// nobodys is a directory that the user nobody can reach and owns.
func nobodys(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s3sync-nobody-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	_ = os.Chown(dir, 65534, 65534)
	return dir
}

// TestUnreadable checks that unreadable files are reported, and that their objects stay in the bucket, since they may
// still exist.
// mission: 2.5
func TestUnreadable(t *testing.T) {
	for _, direction := range []plan.Direction{plan.Up, plan.Both} {
		t.Run(string(direction), func(t *testing.T) {
			dir, state, loc := nobodys(t), nobodys(t), location(t)
			for _, name := range []string{"closed/f", "closed/g/h", "closed-more", "blind/f", "shut", "open"} {
				write(t, dir, name, name)
			}
			must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
				return errors.Join(err, os.Lchown(path, 65534, 65534))
			}))
			c := childSpec{dir, state, direction, loc, ""}
			if stats := asNobody(t, c); stats.Failed != 0 || stats.Files != 6 {
				t.Fatalf("at first: %s %+v", stats, stats.Failures)
			}
			modes := map[string]os.FileMode{"closed": 0, "blind": 0o444, "shut": 0}
			for name, mode := range modes {
				must(t, os.Chmod(filepath.Join(dir, name), mode))
			}
			var failed []string
			stats := asNobody(t, c)
			for _, f := range stats.Failures {
				failed = append(failed, f.Path)
			}
			slices.Sort(failed)
			if want := []string{"blind/f", "closed", "shut"}; !slices.Equal(failed, want) || stats.Deleted != 0 {
				t.Errorf("closed: %s, failed %q, want %q", stats, failed, want)
			}
			back := t.TempDir()
			mustSync(t, back, openBucket(t, loc), Options{Direction: plan.Down, List: true})
			for _, name := range []string{"closed/f", "closed/g/h", "closed-more", "blind/f", "shut", "open"} {
				if raw, err := os.ReadFile(filepath.Join(back, name)); err != nil || string(raw) != name {
					t.Errorf("%s: %q, %v", name, raw, err)
				}
			}
			for name := range modes {
				must(t, os.Chmod(filepath.Join(dir, name), 0o755))
			}
			if stats := asNobody(t, c); stats.Failed+stats.Deleted+stats.Conflicts+stats.Files != 0 {
				t.Errorf("open again: %s %+v", stats, stats.Decided)
			}
		})
	}
}

// TestRestoreAsNobody checks that a user who cannot change owners can restore files, and that files which cannot be
// written are reported.
func TestRestoreAsNobody(t *testing.T) {
	dir, back, loc := t.TempDir(), nobodys(t), location(t)
	write(t, dir, "a", "a")
	write(t, dir, "locked/b", "b")
	write(t, dir, "open/c", "c")
	must(t, os.Symlink("a", filepath.Join(dir, "link")))
	mustSync(t, dir, openBucket(t, loc), Options{Direction: plan.Up})
	must(t, os.Mkdir(filepath.Join(back, "locked"), 0o755)) // root's
	down := childSpec{back, "", plan.Down, loc, ""}
	stats := asNobody(t, down)
	if stats.Files != 3 || stats.Failed < 1 {
		t.Errorf("%s %+v", stats, stats.Failures)
	}
	// Ownership that cannot be set is not a change. The time of root's directory cannot be set, and is tried again.
	if again := asNobody(t, down); again.Files != 0 || again.Updated > 1 || again.Skipped != 4 {
		t.Errorf("again: %s", again)
	}
	for _, f := range stats.Failures {
		if !strings.HasPrefix(f.Path, "locked") || f.Reason == "" {
			t.Errorf("%s: %s", f.Path, f.Reason)
		}
	}
}

// TestClosedTree checks that a tree that cannot be read at all does not count as empty.
func TestClosedTree(t *testing.T) {
	dir, b := t.TempDir(), openBucket(t, location(t))
	write(t, dir, "f", "x")
	mustSync(t, dir, b, Options{Direction: plan.Up})
	closed, err := tree.Open(dir)
	must(t, err)
	must(t, closed.Close())
	if _, err := Sync(t.Context(), closed, b, Options{Direction: plan.Up, Mirror: true}); err == nil {
		t.Error("a closed tree was synchronised")
	}
	if _, err := b.Stat(t.Context(), "f"); err != nil {
		t.Errorf("the object is gone: %v", err)
	}
	e := &tree.Entry{Path: "a/b", Kind: tree.File}
	_, mkdir := closed.Mkdir("a/b")
	_, lstat := closed.Lstat("a/b")
	_, create := closed.Create("a/b")
	_, link := closed.Link("f", "a/b")
	_, symlink := closed.Symlink(&tree.Entry{Path: "a/b", Kind: tree.Symlink, Target: "x"}, tree.Restoring{}, false)
	_, meta := closed.SetMeta(e, tree.Restoring{})
	_, _, open := closed.Open("f")
	for what, err := range map[string]error{"mkdir": mkdir, "lstat": lstat, "create": create, "link": link,
		"symlink": symlink, "setMeta": meta, "open": open,
		"remove": closed.Remove("a/b", tree.File), "commit": closed.Commit()} {
		if err == nil {
			t.Errorf("%s in a closed tree", what)
		}
	}
}

// TestDeep checks that directories that are nested too deeply are reported, and that their neighbours are synchronised.
func TestDeep(t *testing.T) {
	dir, b := t.TempDir(), openBucket(t, location(t))
	must(t, os.MkdirAll(dir+strings.Repeat("/d", tree.MaxDepth+5), 0o755))
	write(t, dir, "z", "z")
	stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up})
	if err != nil || stats.Failed != 1 || !strings.Contains(stats.Failures[0].Reason, "deep") || stats.Files != 1 {
		t.Errorf("%s %+v, %v", stats, stats.Failures, err)
	}
}
