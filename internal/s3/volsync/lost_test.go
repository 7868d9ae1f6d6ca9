package volsync

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// hiddenTree has entries that no list of objects shows, and metadata that only a manifest has.
func hiddenTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "plain", "plain")
	write(t, dir, "d/private", "private")
	must(t, os.Chmod(filepath.Join(dir, "d/private"), 0o600))
	must(t, unix.Setxattr(filepath.Join(dir, "d/private"), "user.colour", []byte("blue"), 0))
	must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	write(t, dir, strings.Repeat(strings.Repeat("n", 200)+"/", 6)+"long", "of a long path")
	write(t, dir, "only/sparse", "")
	f, err := os.OpenFile(filepath.Join(dir, "only/sparse"), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("far"), 16<<20)
	must(t, err)
	must(t, f.Close())
	return dir
}

// TestLostManifest checks that this machine's state replaces a lost manifest, and that without such a state nothing is
// deleted because a list does not show it.
// mission: 3.4, D2
func TestLostManifest(t *testing.T) {
	lose := map[string]func(t *testing.T, b *object.Bucket){
		"damaged": func(t *testing.T, b *object.Bucket) {
			_, err := b.Put(t.Context(), manifest.Key, []byte("none"), crc64nvme.Checksum([]byte("none")),
				object.MetaHeader(&tree.Entry{Kind: tree.File}))
			must(t, err)
		},
		"missing": func(t *testing.T, b *object.Bucket) {
			must(t, b.Delete(t.Context(), []string{manifest.Key}, func(_ string, err error) { t.Error(err) }))
		},
	}
	for name, lose := range lose {
		t.Run(name, func(t *testing.T) {
			dir, back, b := hiddenTree(t), t.TempDir(), openBucket(t, location(t))
			up, down := Options{Direction: plan.Up, State: t.TempDir()},
				Options{Direction: plan.Down, State: t.TempDir(), Owners: true}
			mustSync(t, dir, b, up)
			mustSync(t, back, b, down)
			sameTrees(t, dir, back)
			lose(t, b)
			down.Mirror = true
			for _, o := range []Options{down, {Direction: plan.Both, State: down.State, Owners: true, DryRun: true}} {
				if stats := mustSync(t, back, b, o); stats.Files+stats.Deleted+stats.Conflicts > 0 {
					t.Errorf("%s did %s", o.Direction, stats)
				}
				sameTrees(t, dir, back)
			}
			if name == "damaged" {
				// A machine without state keeps files that may exist, and the result says so.
				o := Options{Direction: plan.Down, Mirror: true, Owners: true, State: t.TempDir()}
				for range 2 {
					stats, err := Sync(t.Context(), openTree(t, back), b, o)
					must(t, err)
					if _, err := os.Stat(filepath.Join(back, "only/sparse")); err != nil || stats.Deleted > 0 ||
						stats.Failed == 0 || stats.Failures[0].Remedy == "" {
						t.Errorf("without a memory: %s %+v, %v", stats, stats.Failures, err)
					}
				}
			}
			// The machine that sent it restores the manifest.
			up.Mirror = true
			if stats := mustSync(t, dir, b, up); stats.Files+stats.Deleted > 0 {
				t.Errorf("up did %s", stats)
			}
			third := t.TempDir()
			mustSync(t, third, b, Options{Direction: plan.Down, Owners: true})
			sameTrees(t, dir, third)
		})
	}
}

// TestEmptiedBucket checks that the recorded state of an emptied bucket does not count as its content.
func TestEmptiedBucket(t *testing.T) {
	dir, b, o := hiddenTree(t), openBucket(t, location(t)), Options{Direction: plan.Up, State: t.TempDir()}
	mustSync(t, dir, b, o)
	var keys []string
	for object, err := range b.All(t.Context(), object.AnyOrder) {
		must(t, err)
		keys = append(keys, object.Key)
	}
	must(t, b.Delete(t.Context(), keys, func(key string, err error) { t.Error(key, err) }))
	if stats := mustSync(t, dir, b, o); stats.Files != 4 {
		t.Errorf("into the empty bucket went %s", stats)
	}
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
}
