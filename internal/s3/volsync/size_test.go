package volsync

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// peak is the memory that a sync takes in a separate process.
func peak(t *testing.T, c childSpec) int64 {
	t.Helper()
	c.Peak = filepath.Join(t.TempDir(), "peak")
	spec, err := json.Marshal(c)
	must(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "S3SYNC_TEST_CHILD="+string(spec))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Run())
	text, err := os.ReadFile(c.Peak)
	must(t, err)
	var n int64
	_, err = fmt.Sscan(string(text), &n)
	must(t, err)
	return n
}

// races reports whether this is a binary that looks for races, which takes several times the memory.
func races() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "-race" &&
			s.Value == "true"
	})
}

// A large file takes no more memory than a few of its parts, up and down.
// mission: 2.4, D1
func TestLargeFileInLittleMemory(t *testing.T) {
	testenv.Long(t)
	const size = 320 << 20
	limit := int64(160 << 20)
	if races() {
		limit = size
	}
	dir, back, loc := t.TempDir(), t.TempDir(), location(t)
	f, err := os.Create(filepath.Join(dir, "large"))
	must(t, err)
	block := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for i := range size / len(block) {
		copy(block, fmt.Sprintf("block %06d", i))
		_, err := f.Write(block)
		must(t, err)
	}
	must(t, f.Close())
	age(t, dir)
	if got := peak(t, childSpec{Dir: dir, State: t.TempDir(), Direction: plan.Up, Location: loc}); got > limit {
		t.Errorf("up took %d MiB", got>>20)
	}
	if got := peak(t, childSpec{Dir: back, State: t.TempDir(), Direction: plan.Down, Location: loc}); got > limit {
		t.Errorf("down took %d MiB", got>>20)
	}
	sameTrees(t, dir, back)
}

// manyFiles names the variable with the number of files of TestManyFilesInLittleMemory, such as 1000000.
const manyFiles = "HARVEST_TEST_FILES"

// Many small files take no more memory than few: up, when nothing changed, and down.
// mission: 2.4, D1
func TestManyFilesInLittleMemory(t *testing.T) {
	testenv.Long(t)
	n, limit := 3000, int64(160<<20)
	if text := os.Getenv(manyFiles); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		must(t, err)
	}
	if races() {
		limit *= 2
	}
	dir, back, up, loc := t.TempDir(), t.TempDir(), t.TempDir(), location(t)
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprintf("%04d", i/1000))
		if i%1000 == 0 {
			must(t, os.Mkdir(sub, 0o755))
		}
		must(t, os.WriteFile(filepath.Join(sub, fmt.Sprintf("file-%07d.txt", i)),
			fmt.Appendf(nil, "content of file %d\n", i), 0o644))
	}
	for _, c := range []struct {
		what string
		spec childSpec
	}{
		{"up", childSpec{Dir: dir, State: up, Direction: plan.Up, Location: loc}},
		{"nothing changed", childSpec{Dir: dir, State: up, Direction: plan.Up, Location: loc}},
		{"down", childSpec{Dir: back, State: t.TempDir(), Direction: plan.Down, Location: loc}},
	} {
		got := peak(t, c.spec)
		t.Logf("%d files, %s: %d MiB", n, c.what, got>>20)
		if got > limit {
			t.Errorf("%d files, %s: %d MiB", n, c.what, got>>20)
		}
	}
	if got := len(regularFiles(t, back)); got != n {
		t.Errorf("%d of %d files came back", got, n)
	}
}

// TestManifestThatCannotBeRead checks that a damaged manifest counts as missing, and that one of a newer version is
// refused and stays unchanged.
// mission: 3.2, 3.4
func TestManifestThatCannotBeRead(t *testing.T) {
	good := entriesOf(t, true, &tree.Entry{Path: "a", Kind: tree.File, Mode: 0o644, Size: 7, ETag: "e", Inode: 9},
		&tree.Entry{Path: "a-b", Kind: tree.Symlink, Mode: 0o777, Target: "../x"},
		&tree.Entry{Path: "d", Kind: tree.Dir, Mode: 0o700})
	newer := entriesFile(t, 2)
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 0x55
	for name, raw := range map[string][]byte{"empty": {}, "no manifest": []byte("something else"),
		"half": good[:len(good)/2], "another byte": flipped, "newer": newer} {
		t.Run(name, func(t *testing.T) {
			b := openBucket(t, location(t))
			for key, body := range map[string]string{"good": "good", manifest.Key: string(raw)} {
				_, err := b.Put(t.Context(), key, []byte(body), crc64nvme.Checksum([]byte(body)), nil)
				must(t, err)
			}
			back, dir := t.TempDir(), t.TempDir()
			write(t, dir, "mine", "mine")
			if name == "newer" {
				for _, c := range []struct {
					dir       string
					direction plan.Direction
				}{{back, plan.Down}, {dir, plan.Up}, {dir, plan.Both}} {
					_, err := Sync(t.Context(), openTree(t, c.dir), b, Options{Direction: c.direction})
					if errors.KindOf(err) != errors.Unsupported || !strings.Contains(errors.RemedyOf(err), "newer") {
						t.Errorf("%s: %v; remedy %q", c.direction, err, errors.RemedyOf(err))
					}
				}
				if got := snapshot(t, back); len(got) != 0 {
					t.Errorf("restored %v", got)
				}
				return
			}
			mustSync(t, back, b, Options{Direction: plan.Down})
			if text, err := os.ReadFile(filepath.Join(back, "good")); string(text) != "good" ||
				len(snapshot(t, back)) != 1 {
				t.Errorf("restored %q, %v, of %v", text, err, snapshot(t, back))
			}
			mustSync(t, dir, b, Options{Direction: plan.Up})
			again := t.TempDir()
			mustSync(t, again, b, Options{Direction: plan.Down})
			if got := snapshot(t, again); len(got) != 2 {
				t.Errorf("afterwards there is %v", got)
			}
		})
	}
}
