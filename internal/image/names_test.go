package image_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
)

// choices is a library with all sorts of sources.
func choices(t testing.TB, dir string) (l *image.Library, registry, dockerfile *source) {
	t.Helper()
	registry = &source{print: "registry", content: "pulled", tags: map[string]string{"debian:12": "debian@1",
		"debian:bookworm": "debian@1"}}
	dockerfile = &source{print: "dockerfile", content: "built"}
	l, err := image.OpenLibrary(dir, image.Sources{Named: map[string]image.Source{"base": &source{content: "base"}},
		Registry: registry, Dockerfile: dockerfile})
	if err != nil {
		t.Fatal(err)
	}
	return l, registry, dockerfile
}

func must(t testing.TB, l *image.Library, spec image.Spec, opts image.BuildOptions) image.Image {
	t.Helper()
	img, err := l.Build(t.Context(), spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// mission: B2
func TestSourcesByName(t *testing.T) {
	t.Parallel()
	l, registry, dockerfile := choices(t, t.TempDir())
	tag := image.Spec{Base: "debian:12"}
	pulled := must(t, l, tag, image.BuildOptions{})
	if pulled.Spec.Base != "debian@1" || len(pulled.Names) != 1 || pulled.Names[0] != "debian:12" {
		t.Errorf("got %+v", pulled)
	}
	same := must(t, l, image.Spec{Base: "debian:bookworm"}, image.BuildOptions{})
	if same.ID != pulled.ID || registry.builds.Load() != 1 || len(same.Names) != 2 {
		t.Errorf("two tags of one manifest are %+v and %+v", pulled, same)
	}

	registry.tags["debian:12"] = "debian@2" // the tag moves
	if img := must(t, l, tag, image.BuildOptions{}); img.ID != pulled.ID {
		t.Errorf("the registry was asked although the name is there: %+v", img)
	}
	if img := must(t, l, image.Spec{Base: pulled.ID}, image.BuildOptions{Pull: image.PullAlways}); img.ID != pulled.ID {
		t.Errorf("an id is %+v", img)
	}
	newer := must(t, l, tag, image.BuildOptions{Pull: image.PullAlways})
	if newer.ID == pulled.ID || newer.Names[0] != "debian:12" {
		t.Errorf("got %+v", newer)
	}
	older, err := l.Find(t.Context(), pulled.ID)
	if err != nil || len(older.Names) != 1 || older.Names[0] != "debian:bookworm" {
		t.Errorf("the older image has the names %v, %v", older.Names, err)
	}

	spec := image.Spec{Base: "debian:12", Commands: []string{"RUN true"}}
	built := must(t, l, spec, image.BuildOptions{Names: []string{"team/app:1"}})
	if dockerfile.builds.Load() != 1 || len(built.Names) != 1 || built.Names[0] != "team/app:1" {
		t.Errorf("got %+v", built)
	}
	if img := must(t, l, image.Spec{Base: "team/app:1"}, image.BuildOptions{Pull: image.PullAlways,
		Names: []string{"two"}}); img.ID != built.ID || len(img.Names) != 2 {
		t.Errorf("a name of ours is %+v", img)
	}
	if img := must(t, l, image.Spec{Base: "base"}, image.BuildOptions{}); len(img.Names) != 1 ||
		img.Names[0] != "base" {
		t.Errorf("got %+v", img)
	}
}

func TestNamesThatCannotBe(t *testing.T) {
	t.Parallel()
	l, _, _ := choices(t, t.TempDir())
	for _, name := range []string{"", "base", "-x", ".x", "a b", "img_1234", "sha256:12", "../x",
		strings.Repeat("a/", 100), "a\x00"} {
		_, err := l.Build(t.Context(), image.Spec{Base: "debian:12"}, image.BuildOptions{Names: []string{name}})
		expect(t, name, err, errors.Invalid)
		if errors.RemedyOf(err) == "" {
			t.Errorf("%q: no remedy", name)
		}
	}
	for _, base := range []string{"img_1234", "sha256:1234"} {
		_, err := l.Build(t.Context(), image.Spec{Base: base}, image.BuildOptions{})
		expect(t, base, err, errors.NotFound)
	}
	_, err := l.Build(t.Context(), image.Spec{}, image.BuildOptions{})
	expect(t, "no base", err, errors.Invalid)
	_, err = open(t, t.TempDir(), &source{}).Build(t.Context(), image.Spec{Commands: []string{"RUN true"}},
		image.BuildOptions{})
	expect(t, "no Dockerfiles", err, errors.NotFound)
}

func TestNamesOfDeletedImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _ := choices(t, dir)
	img := must(t, l, image.Spec{Base: "debian:12"}, image.BuildOptions{Names: []string{"mine", "ghcr.io/a/b:c"}})
	if err := os.WriteFile(filepath.Join(dir, ".names", "%zz"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := l.Find(t.Context(), "ghcr.io/a/b:c"); err != nil || found.ID != img.ID {
		t.Errorf("got %+v, %v", found, err)
	}
	if err := l.Delete(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".names", "[a-z]*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Images of the first releases have their names in their description.
func TestNamesInDescriptions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _ := choices(t, dir)
	img := must(t, l, image.Spec{Base: "debian:12"}, image.BuildOptions{})
	manifest := filepath.Join(dir, img.Digest[7:], "image.json")
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), `"names": []`, `"names": ["old", "debian:12"]`, 1))
	if err := os.WriteFile(manifest, text, 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := l.Find(t.Context(), "old")
	if err != nil || cmp.Diff([]string{"debian:12", "old"}, found.Names) != "" {
		t.Errorf("got %+v, %v", found, err)
	}
	must(t, l, image.Spec{Base: "debian:bookworm"}, image.BuildOptions{Names: []string{"old"}})
	if list, err := l.List(t.Context()); err != nil || len(list) != 1 || len(list[0].Names) != 3 {
		t.Errorf("got %+v, %v", list, err)
	}
}

// TestNamesOfOwners checks that names of one owner do not affect other owners.
func TestNamesOfOwners(t *testing.T) {
	t.Parallel()
	l, registry, _ := choices(t, t.TempDir())
	ann, bob := image.Of(l, "ann"), image.Of(l, "bob")
	spec := image.Spec{Base: "debian:12"}
	of := func(b image.Builder, opts image.BuildOptions) image.Image {
		t.Helper()
		img, err := b.Build(t.Context(), spec, opts)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	hers, his := of(ann, image.BuildOptions{Names: []string{"app"}}),
		of(bob, image.BuildOptions{Names: []string{"app"}})
	if hers.ID == his.ID || registry.builds.Load() != 2 {
		t.Errorf("both have %s", hers.ID)
	}
	for owner, want := range map[string]string{"ann": hers.ID, "bob": his.ID} {
		img, err := image.Of(l, owner).Find(t.Context(), "app")
		if err != nil || img.ID != want || len(img.Names) != 2 {
			t.Errorf("%s's is %+v, %v", owner, img, err)
		}
	}
	_, err := bob.Build(t.Context(), image.Spec{Base: hers.ID}, image.BuildOptions{})
	expect(t, "another's image by id", err, errors.NotFound)
}

func TestLog(t *testing.T) {
	t.Parallel()
	s := &source{hold: make(chan struct{}), begun: make(chan struct{}, 1)}
	l := open(t, t.TempDir(), s)
	lines := make(chan string, 2)
	done := make(chan error, 2)
	start := func() {
		_, err := l.Build(t.Context(), base, image.BuildOptions{Log: func(line string) { lines <- line }})
		done <- err
	}
	go start()
	<-s.begun
	go start() // a late caller gets all progress
	for range 2 {
		if line := <-lines; line != "a line" {
			t.Errorf("got %q", line)
		}
	}
	close(s.hold)
	for range 2 {
		expect(t, "Build", <-done, "")
	}
}

// TestDeleteOneName checks that deleting by one of several names keeps the image and its other names.
//
// mission: B2
func TestDeleteOneName(t *testing.T) {
	t.Parallel()
	l, _, _ := choices(t, t.TempDir())
	for _, owner := range []string{"", "acme"} {
		own := image.Of(l, owner)
		img, err := own.Build(t.Context(), image.Spec{Base: "debian:12"},
			image.BuildOptions{Names: []string{"team/app:1"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := own.Delete(t.Context(), "team/app:1"); err != nil {
			t.Fatal(err)
		}
		left, err := own.Find(t.Context(), img.ID)
		if err != nil || !cmp.Equal(left.Names, []string{"debian:12"}) {
			t.Errorf("account %q: got %v, %v", owner, left.Names, err)
		}
		if _, err := own.Find(t.Context(), "team/app:1"); errors.KindOf(err) != errors.NotFound {
			t.Errorf("account %q: the name is still there: %v", owner, err)
		}
		if err := own.Delete(t.Context(), "debian:12"); err != nil {
			t.Fatal(err)
		}
		if _, err := own.Find(t.Context(), img.ID); errors.KindOf(err) != errors.NotFound {
			t.Errorf("account %q: the image is still there without its last name: %v", owner, err)
		}
		if img, err = own.Build(t.Context(), image.Spec{Base: "debian:12"},
			image.BuildOptions{Names: []string{"team/app:1"}}); err != nil {
			t.Fatal(err)
		}
		if err := own.Delete(t.Context(), img.ID); err != nil {
			t.Fatal(err)
		}
		for _, ref := range append(img.Names, img.ID) {
			if _, err := own.Find(t.Context(), ref); errors.KindOf(err) != errors.NotFound {
				t.Errorf("account %q: %s of a deleted image: %v", owner, ref, err)
			}
		}
	}
}

// TestForeignImagesHaveNoName checks that an image for another platform does not stand for the local one, and the
// reverse.
func TestForeignImagesHaveNoName(t *testing.T) {
	t.Parallel()
	l, registry, _ := choices(t, t.TempDir())
	local := must(t, l, image.Spec{Base: "debian:12"}, image.BuildOptions{})
	foreign := must(t, l, image.Spec{Base: "debian:12", Platform: "linux/s390x"}, image.BuildOptions{Foreign: true})
	if foreign.ID == local.ID || len(foreign.Names) > 0 || registry.builds.Load() != 2 {
		t.Errorf("got %+v and %+v", local, foreign)
	}
	if again := must(t, l, image.Spec{Base: "debian:12"}, image.BuildOptions{}); again.ID != local.ID {
		t.Errorf("the name is now %+v", again)
	}
	for _, base := range []string{local.ID, "base"} {
		_, err := l.Build(t.Context(), image.Spec{Base: base, Platform: "linux/s390x"},
			image.BuildOptions{Foreign: true})
		if errors.KindOf(err) != errors.Unsupported {
			t.Errorf("%s for another platform: %v", base, err)
		}
	}
}
