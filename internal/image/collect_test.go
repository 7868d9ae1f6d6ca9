package image_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
)

var _ image.Collector = (*image.Library)(nil)

// cached is a source that keeps something.
type cached struct {
	source
	bytes  int64
	before time.Time
	size   int64
	err    error
}

func (c *cached) Collect(_ context.Context, before time.Time, size int64, dry bool) (freed, left int64, err error) {
	c.before, c.size = before, size
	if c.err != nil {
		return 0, c.bytes, c.err
	}
	if size >= 0 && !dry {
		freed = max(0, c.bytes-size)
		c.bytes -= freed
	}
	return freed, c.bytes, nil
}

// aged is a library whose images were last used as many hours ago as their names say.
func aged(t testing.TB) (*image.Library, *cached, map[string]image.Image, string) {
	t.Helper()
	dir := t.TempDir()
	cache := &cached{source: source{content: "pulled"}, bytes: 1 << 20}
	l, err := image.OpenLibrary(dir, image.Sources{Named: map[string]image.Source{"base": &source{}}, Registry: cache,
		Dockerfile: &source{print: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	images := map[string]image.Image{}
	add := func(name string, hours int, spec image.Spec, names ...string) image.Image {
		img := must(t, l, spec, image.BuildOptions{Names: names})
		used := time.Now().Add(-time.Duration(hours) * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, img.Digest[7:], "image.json"), used, used); err != nil {
			t.Fatal(err)
		}
		images[name] = img
		return img
	}
	add("base", 1000, image.Spec{Base: "base"})
	add("named", 900, image.Spec{Commands: []string{"1"}}, "mine")
	add("pulled", 800, image.Spec{Base: "debian:12"})
	old := add("old", 100, image.Spec{Commands: []string{"2"}})
	add("older", 200, image.Spec{Commands: []string{"3"}})
	add("fresh", 1, image.Spec{Commands: []string{"4"}})
	shoot := func(name string, hours int, opts image.SnapshotOptions) {
		shot, err := l.Snapshot(t.Context(), old, opts,
			func(w io.Writer) error { _, err := w.Write(make([]byte, 1024)); return err })
		if err != nil {
			t.Fatal(err)
		}
		used := time.Now().Add(-time.Duration(hours) * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, shot.Digest[7:], "image.json"), used, used); err != nil {
			t.Fatal(err)
		}
		images[name] = shot
	}
	shoot("snapshot", 2000, image.SnapshotOptions{Sandbox: "sbx"})
	shoot("suspension", 150, image.SnapshotOptions{Sandbox: "sbx", Suspension: true})
	return l, cache, images, dir
}

// mission: B2
func TestCollect(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		what image.Collection
		want []string
	}{
		"by age":                 {image.Collection{Age: 50 * time.Hour}, []string{"older", "suspension", "old"}},
		"by a long age":          {image.Collection{Age: 170 * time.Hour}, []string{"older"}},
		"whatever is not in use": {image.Collection{}, []string{"older", "suspension", "old", "fresh"}},
		"all": {image.Collection{Age: 50 * time.Hour, All: true},
			[]string{"pulled", "older", "suspension", "old"}},
		"dry": {image.Collection{Age: 50 * time.Hour, Dry: true}, []string{"older", "suspension", "old"}},
		"by size": {image.Collection{Age: 5000 * time.Hour, Size: 1},
			[]string{"older", "suspension", "old", "fresh"}},
		"by a size that is enough": {image.Collection{Age: 5000 * time.Hour, Size: 1 << 40}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _, images, _ := aged(t)
			done, err := l.Collect(t.Context(), test.what)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, img := range done.Images {
				for name, other := range images {
					if other.ID == img.ID {
						got = append(got, name)
					}
				}
			}
			if len(got) != len(test.want) {
				t.Fatalf("collected %v, want %v", got, test.want)
			}
			for i := range got {
				if got[i] != test.want[i] {
					t.Errorf("collected %v, want %v", got, test.want)
				}
			}
			if len(got) > 0 && done.Freed <= 0 || done.Left <= 0 {
				t.Errorf("freed %d, left %d", done.Freed, done.Left)
			}
			for _, name := range test.want {
				_, err := l.Find(t.Context(), images[name].ID)
				if gone := errors.Is(err, errors.NotFound); gone == test.what.Dry {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

func TestCollectSparesWhatIsInUse(t *testing.T) {
	t.Parallel()
	l, _, images, dir := aged(t)
	if err := l.Delete(t.Context(), images["suspension"].ID); err != nil {
		t.Fatal(err)
	}
	release, err := l.Use(images["older"].ID, "a sandbox")
	if err != nil {
		t.Fatal(err)
	}
	second, err := image.OpenLibrary(dir, image.Sources{}) // as another process
	if err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		done, err := second.Collect(t.Context(), image.Collection{Age: 170 * time.Hour, Dry: dry})
		if err != nil || len(done.Images) != 0 {
			t.Errorf("collected %v, %v", done.Images, err)
		}
	}
	release() // which is a use too
	if done, err := l.Collect(t.Context(), image.Collection{Age: 170 * time.Hour}); err != nil ||
		len(done.Images) != 0 {
		t.Errorf("collected %v, %v", done.Images, err)
	}
	must(t, l, image.Spec{Commands: []string{"2"}}, image.BuildOptions{}) // so is a build that finds it
	if done, err := l.Collect(t.Context(), image.Collection{Age: 50 * time.Hour, Dry: true}); err != nil ||
		len(done.Images) != 0 {
		t.Errorf("collected %v, %v", done.Images, err)
	}
	if done, err := l.Collect(t.Context(), image.Collection{Size: 1, Age: 5000 * time.Hour}); err != nil ||
		len(done.Images) != 1 {
		t.Errorf("what was used just now was collected for its size: %v, %v", done.Images, err)
	}
}

func TestCollectCaches(t *testing.T) {
	t.Parallel()
	l, cache, _, _ := aged(t)
	if _, err := l.Collect(t.Context(), image.Collection{Age: 50 * time.Hour}); err != nil || cache.size != -1 ||
		time.Since(cache.before) < 49*time.Hour {
		t.Errorf("the cache was asked for %v, %d; %v", cache.before, cache.size, err)
	}
	done, err := l.Collect(t.Context(), image.Collection{Age: 5000 * time.Hour, Size: 1})
	if err != nil || cache.bytes != 0 || done.Freed < 1<<20 {
		t.Errorf("the cache has %d, freed %d, %v", cache.bytes, done.Freed, err)
	}
	cache.err = errors.Newf(errors.Internal, "broken")
	if _, err := l.Collect(t.Context(), image.Collection{}); !errors.Is(err, cache.err) {
		t.Errorf("got %v", err)
	}
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	l, _, _, _ = aged(t)
	_, err = l.Collect(dead, image.Collection{})
	expect(t, "cancelled", err, errors.Canceled)
}
