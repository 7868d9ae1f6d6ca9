package kubernetes

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
	"github.com/RelevanceAI/harvest/internal/s3/share"
	"github.com/RelevanceAI/harvest/internal/s3/volsync"
)

// openVolumes opens the volumes of an engine without pods.
func openVolumes(t *testing.T, dir string) *volumes {
	t.Helper()
	local, err := volume.OpenDir(filepath.Join(dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	opts := embedded.Options{Dir: filepath.Join(dir, "s3"), Executable: testenv.EmbeddedS3(t)}
	v := newVolumes(&Engine{known: map[string]*holding{}}, local,
		func(ctx context.Context) (*embedded.Server, error) { return embedded.Start(ctx, opts) })
	t.Cleanup(func() {
		v.finish(context.WithoutCancel(t.Context()))
		v.hub.Close()
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// elsewhere is a copy of a volume, as a pod has one.
type elsewhere struct {
	v *volumes
	share.Directory
}

func newElsewhere(t *testing.T, v *volumes) elsewhere {
	t.Helper()
	return elsewhere{v, share.Directory{Path: t.TempDir(), State: filepath.Join(t.TempDir(), "state")}}
}

// sync does what volumes.sync does with a pod.
func (o elsewhere) sync(t *testing.T, name string) {
	t.Helper()
	id, b, err := o.v.bucket(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	stats, err := o.v.hub.Sync(t.Context(), id, o.Directory)
	if err != nil || stats.Failed > 0 {
		t.Fatalf("%v, %+v", err, stats)
	}
	b.mu.Lock()
	b.changes++
	b.mu.Unlock()
}

func (o elsewhere) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(o.Path, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, vol volume.Volume) (all []string) {
	t.Helper()
	list, err := vol.ReadDir(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		all = append(all, e.Name)
	}
	return all
}

// TestCopiesOfVolumes changes a volume here and in a copy.
func TestCopiesOfVolumes(t *testing.T) {
	t.Parallel()
	v := openVolumes(t, testenv.DataDir(t))
	vol, err := v.Create(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if d, ok := vol.(volume.Directory); ok {
		t.Errorf("a volume with copies offers its directory %s, which may lack changes", d.Dir())
	}
	archive := probe.Archive(t, probe.File("from here", "1", 0o644))
	if err := vol.CopyIn(t.Context(), "", archive); err != nil {
		t.Fatal(err)
	}
	there := newElsewhere(t, v)
	there.sync(t, "one")
	there.write(t, "from there", "22")
	there.sync(t, "one")
	if got := names(t, vol); !slices.Equal(got, []string{"from here", "from there"}) {
		t.Errorf("here are %q", got)
	}
	if err := vol.Remove(t.Context(), "from here"); err != nil {
		t.Fatal(err)
	}
	there.sync(t, "one")
	if _, err := os.Stat(filepath.Join(there.Path, "from here")); !errors.IsNotExist(err) {
		t.Errorf("a file that was removed here is there: %v", err)
	}
	there.write(t, "late", "333")
	there.sync(t, "one")
	list, err := v.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Files != 2 || list[0].Size != 5 {
		t.Errorf("List: %+v, %v", list, err)
	}
	if err := errors.Join(vol.Commit(t.Context()), vol.Reload(t.Context())); err != nil {
		t.Error(err)
	}
	out, err := vol.CopyOut(t.Context(), "late")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if got := probe.Untar(t, out); got["late"].Content != "333" && got["."].Content != "333" {
		t.Errorf("CopyOut has %v", got)
	}
}

// TestBucketsFollowVolumes renames and deletes volumes.
func TestBucketsFollowVolumes(t *testing.T) {
	t.Parallel()
	dir := testenv.DataDir(t)
	v := openVolumes(t, dir)
	if _, err := v.Create(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	there := newElsewhere(t, v)
	there.write(t, "file", "content")
	there.sync(t, "old")
	before, _, err := v.bucket(t.Context(), "old")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Rename(t.Context(), "old", "new"); err != nil {
		t.Fatal(err)
	}
	vol, err := v.Open(t.Context(), "new")
	if err != nil {
		t.Fatal(err)
	}
	if after, _, err := v.bucket(t.Context(), "new"); err != nil || after != before {
		t.Errorf("the bucket %s of a renamed volume, %v; before %s", after, err, before)
	}
	if got := names(t, vol); !slices.Equal(got, []string{"file"}) {
		t.Errorf("the renamed volume has %q", got)
	}

	release, err := v.use([]view{{Volume: "new"}}, "sandbox box")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Delete(t.Context(), "new"); !errors.Is(err, errors.Conflict) {
		t.Errorf("Delete of a volume in use: %v", err)
	}
	release()
	if err := v.Delete(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "s3", "buckets", before)); !errors.IsNotExist(err) {
		t.Errorf("the bucket of a deleted volume: %v", err)
	}
	for _, err := range []error{v.Delete(t.Context(), "new"), v.sync(t.Context(), "pod", "box", view{Volume: "new"}),
		v.refresh(t.Context(), "new", nil)} {
		if !errors.Is(err, errors.NotFound) {
			t.Errorf("a deleted volume: %v", err)
		}
	}
	if _, err := v.use([]view{{Volume: "new"}}, "sandbox box"); !errors.Is(err, errors.NotFound) {
		t.Errorf("a deleted volume: %v", err)
	}
	vol, err = v.Create(t.Context(), "new")
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, vol); len(got) > 0 {
		t.Errorf("a new volume has files of the old one: %q", got)
	}
}

// TestNewProcess has files that changed while no process with this engine ran, and then buckets that are gone, as after
// a restore of a backup without them.
func TestNewProcess(t *testing.T) {
	t.Parallel()
	dir := testenv.DataDir(t)
	run := func(do func(*volumes)) {
		t.Run("", func(t *testing.T) { do(openVolumes(t, dir)) })
	}
	there := share.Directory{Path: t.TempDir(), State: filepath.Join(t.TempDir(), "state")}
	run(func(v *volumes) {
		if _, err := v.Create(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
		if err := v.refresh(t.Context(), "one", nil); err != nil {
			t.Fatal(err)
		}
		elsewhere{v, there}.write(t, "file", "content")
		elsewhere{v, there}.sync(t, "one") // close brings it here
	})
	here := filepath.Join(dir, "volumes", "one", "data")
	if _, err := os.Stat(filepath.Join(here, "file")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(here, "meanwhile"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run(func(v *volumes) {
		if err := v.refresh(t.Context(), "one", nil); err != nil {
			t.Fatal(err)
		}
		elsewhere{v, there}.sync(t, "one")
		if _, err := os.Stat(filepath.Join(there.Path, "meanwhile")); err != nil {
			t.Error(err)
		}
	})
	if err := os.RemoveAll(filepath.Join(dir, "s3")); err != nil {
		t.Fatal(err)
	}
	run(func(v *volumes) {
		vol, err := v.Open(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		if got := names(t, vol); !slices.Equal(got, []string{"file", "meanwhile"}) {
			t.Errorf("without its bucket, the volume has %q", got)
		}
	})
}

func TestViews(t *testing.T) {
	t.Parallel()
	views := viewsOf(engine.Spec{Mounts: []engine.Mount{{Volume: "b", Path: "/1", ReadOnly: true},
		{Volume: "a", Path: "/2"}, {Volume: "a", Path: "/3"}}})
	if !slices.Equal(views, []view{{"a", false}, {"b", true}}) {
		t.Errorf("the views are %+v", views)
	}
	for _, want := range [][]view{nil, views} {
		text, err := note(want)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := viewsNoted(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	if _, err := viewsNoted("{"); err == nil {
		t.Error("a damaged annotation is read")
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	if err := failures(t.Context(), "one", volsync.Stats{Decided: []volsync.Failure{{Path: "x"}}}); err != nil {
		t.Error(err)
	}
	err := failures(t.Context(), "one", volsync.Stats{Failed: 3, Failures: []volsync.Failure{{Path: "a/b",
		Reason: "no space", Remedy: "make room"}}})
	if !errors.Is(err, errors.Unavailable) || !strings.Contains(err.Error(), `3 files`) ||
		!strings.Contains(err.Error(), "a/b") || errors.RemedyOf(err) != "make room" {
		t.Errorf("%v", err)
	}
}
