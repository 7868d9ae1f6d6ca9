package image_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
)

var _ image.Snapshotter = (*image.Library)(nil)

// writes is a fill that writes text.
func writes(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func snapshot(t testing.TB, l *image.Library, parent image.Image, text string, opts image.SnapshotOptions) image.Image {
	t.Helper()
	img, err := l.Snapshot(t.Context(), parent, opts, writes(text))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// snapshots counts the images that have a layer, and fails if anything but images is there.
func snapshots(t testing.TB, dir string) int {
	t.Helper()
	n := 0
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".new-") {
			t.Errorf("%s is left", e.Name())
		}
		if _, err := os.Stat(filepath.Join(dir, e.Name(), "layer.tar")); err == nil {
			n++
		}
	}
	locks, err := os.ReadDir(filepath.Join(dir, ".locks"))
	if err != nil || len(locks) > 1 { // the one of the build of base
		t.Errorf("the locks %v, %v", locks, err)
	}
	return n
}

// mission: A10
func TestSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, &source{content: "root"})
	parent := build(t, l, image.BuildOptions{})
	if l.Layer(parent) != "" {
		t.Errorf("a built image has the layer %s", l.Layer(parent))
	}
	one := snapshot(t, l, parent, "first", image.SnapshotOptions{Names: []string{"mine"}, Sandbox: "sbx_1",
		Path: "/work"})
	if one.Spec.Parent != parent.ID || one.Snapshot.Size != 5 || one.Snapshot.Path != "/work" ||
		one.Config.Env["A"] != "b" || one.Names[0] != "mine" {
		t.Errorf("the snapshot is %+v, %+v", one, one.Snapshot)
	}
	two := snapshot(t, l, one, "second", image.SnapshotOptions{Sandbox: "sbx_2"})
	if lineage := two.Snapshot.Lineage; len(lineage) != 2 || lineage[0].Sandbox != "sbx_1" ||
		lineage[0].Image != parent.ID || lineage[1].Sandbox != "sbx_2" || lineage[1].Image != one.ID {
		t.Errorf("the lineage is %+v", lineage)
	}
	// Parents may be deleted: shared data stays.
	for _, img := range []image.Image{parent, one} {
		if err := l.Delete(t.Context(), img.ID); err != nil {
			t.Fatal(err)
		}
	}
	again := open(t, dir, &source{})
	found, err := again.Find(t.Context(), two.ID)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := os.ReadFile(again.Layer(found))
	if err != nil || string(layer) != "second" || content(t, again, found) != "root 1" {
		t.Errorf("the layer is %q, %v, the root %q", layer, err, content(t, again, found))
	}
	if _, err := again.Find(t.Context(), "mine"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("the deleted snapshot is found by name: %v", err)
	}
	if n := snapshots(t, dir); n != 1 {
		t.Errorf("there are %d snapshots", n)
	}
}

func TestEqualSnapshotsAreOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, &source{})
	parent := build(t, l, image.BuildOptions{})
	one := snapshot(t, l, parent, "same", image.SnapshotOptions{Names: []string{"a"}})
	two := snapshot(t, l, parent, "same", image.SnapshotOptions{Names: []string{"b"}})
	other := snapshot(t, l, parent, "same", image.SnapshotOptions{Path: "/x"})
	if one.ID != two.ID || len(two.Names) != 2 || other.ID == one.ID || snapshots(t, dir) != 2 {
		t.Errorf("%+v, %+v, %+v", one, two, other)
	}
	// That of a suspended sandbox is its own: it is removed when the sandbox wakes.
	asleep := snapshot(t, l, parent, "same", image.SnapshotOptions{Sandbox: "sbx_1", Suspension: true})
	another := snapshot(t, l, parent, "same", image.SnapshotOptions{Sandbox: "sbx_2", Suspension: true})
	if asleep.ID == one.ID || another.ID == asleep.ID || !asleep.Snapshot.Suspension || one.Snapshot.Suspension {
		t.Errorf("%+v, %+v, %+v", one, asleep, another)
	}
	// A sandbox that ends while it is suspended leaves it to its user, like any snapshot.
	for range 2 {
		if err := l.Keep(t.Context(), asleep.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Keep(t.Context(), "img_none"); !errors.Is(err, errors.NotFound) {
		t.Errorf("an image that does not exist: %v", err)
	}
	done, err := open(t, dir, &source{}).Collect(t.Context(), image.Collection{})
	if err != nil || slices.ContainsFunc(done.Images, func(img image.Image) bool { return img.ID == asleep.ID }) ||
		!slices.ContainsFunc(done.Images, func(img image.Image) bool { return img.ID == another.ID }) {
		t.Errorf("collected %v, %v", done.Images, err)
	}
}

func TestFailedSnapshotsLeaveNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, &source{})
	parent := build(t, l, image.BuildOptions{})
	canceled, cancel := context.WithCancel(t.Context())
	for name, c := range map[string]struct {
		ctx  context.Context
		opts image.SnapshotOptions
		from image.Image
		fill func(io.Writer) error
		kind errors.Kind
	}{
		"the sandbox ends": {t.Context(), image.SnapshotOptions{}, parent, func(w io.Writer) error {
			_, _ = io.WriteString(w, "half")
			return errors.Newf(errors.Conflict, "it has ended")
		}, errors.Conflict},
		"canceled": {canceled, image.SnapshotOptions{}, parent, func(io.Writer) error { cancel(); return nil },
			errors.Canceled},
		"bad name": {t.Context(), image.SnapshotOptions{Names: []string{"no spaces"}}, parent, writes(""),
			errors.Invalid},
		"own name": {t.Context(), image.SnapshotOptions{Names: []string{"base"}}, parent, writes(""), errors.Invalid},
		"no parent": {t.Context(), image.SnapshotOptions{},
			image.Image{ID: "img_gone", Digest: "sha256:" + strings.Repeat("0", 64)}, writes(""), errors.NotFound},
	} {
		_, err := l.Snapshot(c.ctx, c.from, c.opts, c.fill)
		expect(t, name, err, c.kind)
	}
	if n := snapshots(t, dir); n != 0 {
		t.Errorf("there are %d snapshots", n)
	}
}

func TestDamagedSnapshots(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir(), &source{})
	parent := build(t, l, image.BuildOptions{})
	img := snapshot(t, l, parent, "layer", image.SnapshotOptions{})
	if err := os.Truncate(l.Layer(img), 2); err != nil {
		t.Fatal(err)
	}
	_, err := l.Find(t.Context(), img.ID)
	expect(t, "a snapshot with half a layer", err, errors.NotFound)
	if snapshot(t, l, parent, "layer", image.SnapshotOptions{}).ID != img.ID { // it is made anew
		t.Error("the same layer makes another image")
	}
	if _, err := l.Find(t.Context(), img.ID); err != nil {
		t.Errorf("after it was made anew: %v", err)
	}
}

func TestSnapshotNotWhatWasWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, &source{})
	parent := build(t, l, image.BuildOptions{})
	_, err := l.Snapshot(t.Context(), parent, image.SnapshotOptions{}, func(w io.Writer) error {
		if _, err := io.WriteString(w, "what was written"); err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(dir, ".new-*", "layer.tar"))
		if err != nil || len(files) != 1 {
			return errors.Errorf("%v, %v", files, err)
		}
		return os.WriteFile(files[0], []byte("what the disk has"), 0o600)
	})
	expect(t, "a disk that changes what is written", err, errors.Internal)
	if n := snapshots(t, dir); n != 0 {
		t.Errorf("there are %d snapshots", n)
	}
}

// mission: A10
func TestSnapshotOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=1m")
	l := open(t, dir, &source{})
	parent := build(t, l, image.BuildOptions{})
	_, err := l.Snapshot(t.Context(), parent, image.SnapshotOptions{Names: []string{"large"}},
		writes(strings.Repeat("x", 2<<20)))
	expect(t, "a snapshot that is larger than the disk", err, errors.Exhausted)
	if n := snapshots(t, dir); n != 0 {
		t.Errorf("there are %d snapshots", n)
	}
	if _, err := l.Find(t.Context(), "large"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("it is found: %v", err)
	}
	snapshot(t, l, parent, "small", image.SnapshotOptions{}) // the room is there again
}

// TestKilledSnapshotLeavesNothing checks that a snapshot whose process was killed leaves nothing once the library is
// reopened.
func TestKilledSnapshotLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, &source{})
	parent := build(t, l, image.BuildOptions{})
	_, err := l.Snapshot(t.Context(), parent, image.SnapshotOptions{}, func(io.Writer) error {
		// The state that another process finds meanwhile, and that remains if this one is killed.
		open(t, dir, &source{})
		left, err := filepath.Glob(filepath.Join(dir, ".new-*"))
		if err != nil || len(left) != 1 {
			t.Errorf("while it is made: %v, %v", left, err)
			return err
		}
		dead := filepath.Join(dir, ".new-snapshot-DEAD")
		return errors.Join(os.Mkdir(dead, 0o700), os.WriteFile(filepath.Join(dead, "layer.tar"), []byte("half"), 0o600),
			os.WriteFile(filepath.Join(dir, ".locks", "snapshot-DEAD"), nil, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
	open(t, dir, &source{})
	if n := snapshots(t, dir); n != 1 {
		t.Errorf("there are %d snapshots", n)
	}
}

func TestSnapshotManifest(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir(), &source{})
	img := snapshot(t, l, build(t, l, image.BuildOptions{}), "x", image.SnapshotOptions{Sandbox: "sbx_1"})
	text, err := os.ReadFile(filepath.Join(filepath.Dir(l.Layer(img)), "image.json"))
	var m struct {
		Spec     map[string]string `json:"spec"`
		Snapshot map[string]any    `json:"snapshot"`
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil || m.Spec["parent"] == "" || !strings.HasPrefix(m.Spec["layer"], "sha256:") ||
		m.Snapshot["size_bytes"] != 1.0 {
		t.Errorf("%s, %v", text, err)
	}
}
