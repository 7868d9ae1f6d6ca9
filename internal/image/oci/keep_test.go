package oci_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/oci"
)

var _ image.Cache = (*oci.Source)(nil)

func TestCollectBlobs(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	dir := t.TempDir()
	s := open(t, oci.Options{Dir: dir})
	if _, err := pull(t, s, h.push(t, "app", imageOf(t, v1.Config{}, tarOf(t, "a", "1"),
		tarOf(t, "b", strings.Repeat("x", 100_000)))), image.BuildOptions{}); err != nil {
		t.Fatal(err)
	}
	names := func() []string {
		all, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if len(names()) != 4 {
		t.Fatalf("there are %v", names())
	}
	busy, err := os.Create(filepath.Join(dir, strings.Repeat("0", 64)+".part"))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if err := unix.Flock(int(busy.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, strings.Repeat("1", 64)+".part"), []byte("left"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, name := range names() {
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	if freed, left, err := s.Collect(ctx, old.Add(-time.Minute), -1, false); freed != 0 || left == 0 || err != nil ||
		len(names()) != 6 {
		t.Errorf("of what is too young it freed %d, left %d, %v", freed, left, err)
	}
	freed, _, err := s.Collect(ctx, old.Add(time.Minute), -1, true)
	if freed == 0 || err != nil || len(names()) != 6 {
		t.Errorf("dry, it freed %d, %v; there are %v", freed, err, names())
	}
	again, left, err := s.Collect(ctx, old.Add(-time.Minute), 0, false)
	if again != freed || left != 0 || err != nil || len(names()) != 1 || names()[0] != busy.Name() {
		t.Errorf("it freed %d, left %d, %v; there are %v", again, left, err, names())
	}
	dead, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := s.Collect(dead, time.Now(), -1, false); errors.KindOf(err) != errors.Canceled {
		t.Errorf("got %v", err)
	}
}

// TestDamagedBlobs checks that a damaged blob on the disk is not used for the image.
func TestDamagedBlobs(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	dir := t.TempDir()
	s := open(t, oci.Options{Dir: dir})
	img := imageOf(t, v1.Config{}, tarOf(t, "a", "1"))
	ref := h.push(t, "app", img)
	if _, err := pull(t, s, ref, image.BuildOptions{}); err != nil {
		t.Fatal(err)
	}
	manifest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, manifest.Hex), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t, s, h.host+"/app@"+manifest.String(), image.BuildOptions{}); err != nil {
		t.Errorf("a damaged manifest is not fetched again: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, layer.Hex), tarOf(t, "a", "2"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = pull(t, s, ref, image.BuildOptions{})
	expect(t, "a damaged layer", err, errors.Unavailable)
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, config.Hex), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t, s, ref, image.BuildOptions{}); err != nil {
		t.Errorf("after it was found damaged, the layer is not fetched again: %v", err)
	}
}

func TestExportFails(t *testing.T) {
	t.Parallel()
	empty, err := os.Create(filepath.Join(t.TempDir(), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if err := oci.Export(t.Context(), &bytes.Buffer{}, image.Image{}, empty,
		nil); errors.KindOf(err) != errors.Invalid {
		t.Errorf("got %v", err)
	}
	h := newHub(t)
	got, err := pull(t, open(t, oci.Options{}),
		h.push(t, "app", imageOf(t, v1.Config{}, tarOf(t, "a", strings.Repeat("x", 1<<20)))), image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	if err := oci.Export(dead, &bytes.Buffer{}, image.Image{}, got.root, nil); errors.KindOf(err) != errors.Canceled {
		t.Errorf("got %v", err)
	}
	for limit := range 20 {
		if err := oci.Export(t.Context(), &limited{left: limit << 16}, image.Image{}, got.root,
			nil); (err == nil) != (limit > 16) {
			t.Errorf("after %d bytes: %v", limit<<16, err)
		}
	}
}

// limited is a writer that breaks.
type limited struct{ left int }

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errors.Newf(errors.Canceled, "gone")
	}
	return len(p), nil
}

func TestOpenFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := oci.Open(oci.Options{Dir: file}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("got %v", err)
	}
}

// TestAccountsShareNoBlobs checks that an account's layers never reach another account that the registry did not admit,
// whatever digests that account knows, and whatever names its own registry gives them.
//
// mission: B2
func TestAccountsShareNoBlobs(t *testing.T) {
	t.Parallel()
	h, foreign := newHub(t), newHub(t)
	dir := t.TempDir()
	s := open(t, oci.Options{Dir: dir})
	img := imageOf(t, v1.Config{}, tarOf(t, "secret", "1"))
	h.push(t, "app", img)
	foreign.push(t, "app", img)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	private, lure := h.host+"/app@"+digest.String(), foreign.host+"/app@"+digest.String()
	as := func(owner, ref string) error {
		_, err := pullContext(t, t.Context(), s, image.Spec{Base: ref, Owner: owner}, image.BuildOptions{})
		return err
	}
	for _, owner := range []string{"alice", ""} {
		if err := as(owner, private); err != nil {
			t.Fatal(err)
		}
	}
	refuse := func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusUnauthorized); return true }
	h.change(refuse)
	foreign.change(blobsOnly(func(w http.ResponseWriter,
		_ *http.Request) bool {
		w.WriteHeader(http.StatusNotFound)
		return true
	}))
	expect(t, "by digest", as("bob", private), errors.Unauthenticated)
	expect(t, "through a registry of one's own", as("bob", lure), errors.NotFound)
	for _, owner := range []string{"alice", ""} {
		if err := as(owner, private); err != nil {
			t.Errorf("what %q has fetched itself: %v", owner, err)
		}
	}
	freed, left, err := s.Collect(t.Context(), time.Now().Add(time.Minute), -1, false)
	if freed == 0 || left != 0 || err != nil {
		t.Errorf("it freed %d, left %d, %v", freed, left, err)
	}
	expect(t, "after the collection", as("alice", private), errors.Unauthenticated)
}
