package localfiles_test

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/blobs"
	"github.com/RelevanceAI/harvest/internal/modal/localfiles"
)

type files = []localfiles.File

func stores(t *testing.T) (*blobs.Store, *localfiles.Store) {
	t.Helper()
	dir := t.TempDir()
	b, err := blobs.Open(dir+"/blobs", blobs.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := localfiles.Open(dir+"/mounts", b)
	if err != nil {
		t.Fatal(err)
	}
	return b, s
}

func uploaded(t *testing.T, b *blobs.Store, text string) string {
	t.Helper()
	h := sha256.Sum256([]byte(text))
	sum := hex.EncodeToString(h[:])
	if err := b.Put(t.Context(), "a", sum, 1<<20, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	return sum
}

func TestMountsAreEqualByContent(t *testing.T) {
	t.Parallel()
	b, s := stores(t)
	one, two := uploaded(t, b, "one"), uploaded(t, b, "two")
	m, err := s.Create("a", files{{Path: "/root/b", Sum: two, Mode: 0o4755}, {Path: "/root/a", Sum: one}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Create("a", files{{Path: "/root/a", Sum: one}, {Path: "/root/b", Sum: two, Mode: 0o755}})
	if err != nil || again.ID != m.ID {
		t.Errorf("the same files are %s and %s, %v", m.ID, again.ID, err)
	}
	other, err := s.Create("a", files{{Path: "/root/a", Sum: one}, {Path: "/root/b", Sum: two, Mode: 0o700}})
	if err != nil || other.ID == m.ID {
		t.Errorf("other modes are the same mount, %v", err)
	}
	got, err := s.Get("a", m.ID)
	if err != nil || len(got.Files) != 2 || got.Files[0].Size != 3 || got.Sum != m.Sum {
		t.Errorf("the mount is %+v, %v", got, err)
	}
	for _, id := range []string{m.ID[1:], "../x", "", strings.Repeat("0", 40)} {
		if _, err := s.Get("a", id); errors.KindOf(err) != errors.NotFound {
			t.Errorf("the id %q: %v", id, err)
		}
	}
	if _, err := s.Get("b", m.ID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("of another account: %v", err)
	}
	stream := s.Tar(t.Context(), "a", m)
	defer stream.Close()
	tr, packed := tar.NewReader(stream), ""
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		packed += hdr.Name + " " + hdr.FileInfo().Mode().String() + " " + string(data) + "\n"
	}
	if want := "root/a -rw-r--r-- one\nroot/b -rwxr-xr-x two\n"; packed != want {
		t.Errorf("the files are\n%swant\n%s", packed, want)
	}
}

func TestMountsRefuseBadFiles(t *testing.T) {
	t.Parallel()
	b, s := stores(t)
	one := uploaded(t, b, "one")
	for _, name := range []string{"", "/", "a", "../a", "/a/../b", "/a/./b", "/a//b", "/a/", "/a\x00b",
		"/" + strings.Repeat("a", 5000)} {
		if _, err := s.Create("a", files{{Path: name, Sum: one}}); errors.KindOf(err) != errors.Invalid {
			t.Errorf("the path %.20q: %v", name, err)
		}
	}
	if _, err := s.Create("a", files{{Path: "/a", Sum: one}, {Path: "/a",
		Sum: one}}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a path twice: %v", err)
	}
	if _, err := s.Create("a", files{{Path: "/a", Sum: one}, {Path: "/a/b/c",
		Sum: one}}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a file as directory: %v", err)
	}
	if _, err := s.Create("a", files{{Path: "/a", Sum: strings.Repeat("0",
		64)}}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("content that was not uploaded: %v", err)
	}
	if _, err := s.Create("b", files{{Path: "/a", Sum: one}}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("content of another account: %v", err)
	}
	if _, err := s.Create("../a", nil); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a bad account: %v", err)
	}
	if _, err := s.Create("a", make(files, 300_000)); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("too many files: %v", err)
	}
}

func TestMountsByName(t *testing.T) {
	t.Parallel()
	b, s := stores(t)
	one, two := uploaded(t, b, "one"), uploaded(t, b, "two")
	first, err := s.Create("a", files{{Path: "/a", Sum: one}})
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Create("a", files{{Path: "/a", Sum: two}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Named("a", "python"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("before it has the name: %v", err)
	}
	if err := s.SetName("a", "python", first.ID, true); err != nil {
		t.Fatal(err)
	}
	if err := s.SetName("a", "python", second.ID, true); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a name that is taken: %v", err)
	}
	if err := s.SetName("a", "python", second.ID, false); err != nil {
		t.Fatal(err)
	}
	if m, err := s.Named("a", "python"); err != nil || m.ID != second.ID {
		t.Errorf("the name is %s's, %v", m.ID, err)
	}
	if _, err := s.Named("b", "python"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("the name of another account: %v", err)
	}
	needs := s.Sweep(time.Now())
	if !needs("a", one) || !needs("a", two) || needs("b", one) {
		t.Error("a blob of a mount is not needed")
	}
	needs = s.Sweep(time.Now().Add(8 * 24 * time.Hour))
	if needs("a", one) || !needs("a", two) {
		t.Error("not only the mount with a name remains")
	}
	if _, err := s.Get("a", first.ID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("the unused mount: %v", err)
	}
}
