package image_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
)

var _ image.Builder = (*image.Library)(nil)

// source is a Source for tests. Its fields are set before it is used.
type source struct {
	print   string
	tags    map[string]string // Resolve's result for a base
	content string
	hold    chan struct{} // if set, a build waits until it is closed
	err     error
	begun   chan struct{} // if set, gets a value when a build begins
	builds  atomic.Int64
}

func (s *source) Resolve(_ context.Context, spec image.Spec, _ image.BuildOptions) (image.Spec, []byte, error) {
	if s.print == "fail" {
		return image.Spec{}, nil, errors.Newf(errors.Denied, "no fingerprint")
	}
	if s.tags != nil {
		spec.Base = s.tags[spec.Base]
	}
	return spec, []byte(s.print), nil
}

func (s *source) Build(ctx context.Context, _ image.Spec, opts image.BuildOptions,
	out image.Output) (image.Contents, error) {
	n := s.builds.Add(1)
	opts.Log("a line")
	opts.Progress(image.Progress{Step: "download", Done: 0.5, Message: "half"})
	if err := os.WriteFile(filepath.Join(out.Temp, "scratch"), []byte("x"), 0o600); err != nil {
		return image.Contents{}, err
	}
	if _, err := fmt.Fprintf(out.Root, "%s %d", s.content, n); err != nil {
		return image.Contents{}, err
	}
	if s.begun != nil {
		s.begun <- struct{}{}
	}
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return image.Contents{}, context.Cause(ctx)
		}
	}
	if s.err != nil {
		return image.Contents{}, s.err
	}
	return image.Contents{
		Config:  image.Config{Env: map[string]string{"A": "b"}},
		Parts:   []image.Part{{Name: "python3", Version: "3.11"}},
		Missing: []image.Part{{Name: "uv", Reason: "no network"}},
	}, nil
}

func open(t testing.TB, dir string, s image.Source) *image.Library {
	t.Helper()
	l, err := image.OpenLibrary(dir, image.Sources{Named: map[string]image.Source{"base": s,
		"other": &source{print: "other"}}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var base = image.Spec{Base: "base"}

func build(t testing.TB, l *image.Library, opts image.BuildOptions) image.Image {
	t.Helper()
	img, err := l.Build(t.Context(), base, opts)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func content(t testing.TB, l *image.Library, img image.Image) string {
	t.Helper()
	data, err := os.ReadFile(l.Root(img))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// clean fails if the library's directory has anything but images.
func clean(t testing.TB, dir string, images int) {
	t.Helper()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		switch {
		case n.Name() == ".locks" || n.Name() == ".names":
			continue
		case n.Name() == ".trash":
			if left, err := os.ReadDir(filepath.Join(dir, ".trash")); err != nil || len(left) > 0 {
				t.Errorf("left in the trash: %v, %v", left, err)
			}
			continue
		case strings.HasPrefix(n.Name(), "."):
			t.Errorf("%s is left", n.Name())
			continue
		}
		images--
		files, err := os.ReadDir(filepath.Join(dir, n.Name()))
		if err != nil || len(files) != 2 {
			t.Errorf("image %s has the files %v, %v", n.Name(), files, err)
		}
	}
	if images != 0 {
		t.Errorf("there are %d images too few", images)
	}
}

func expect(t testing.TB, what string, err error, want errors.Kind) {
	t.Helper()
	if errors.KindOf(err) != want {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}

// mission: B1
func TestBuildOnceAndFindAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &source{content: "root"}
	l := open(t, dir, s)
	var told []image.Progress
	img := build(t, l, image.BuildOptions{Progress: func(p image.Progress) { told = append(told, p) }})
	if diff := cmp.Diff([]image.Progress{{Step: "download", Done: 0.5, Message: "half"}}, told); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(img.Digest, "sha256:") || len(img.Digest) != 7+64 || img.ID != "img_"+img.Digest[7:7+16] {
		t.Errorf("got the id %q and the digest %q", img.ID, img.Digest)
	}
	if img.Size != int64(len("root 1")) || img.BuildTime <= 0 || img.Built.IsZero() || img.Config.Env["A"] != "b" ||
		img.Missing[0].Reason == "" || img.Parts[0].Version == "" {
		t.Errorf("got %+v", img)
	}
	if got := content(t, l, img); got != "root 1" {
		t.Errorf("got %q", got)
	}
	again := build(t, open(t, dir, s), image.BuildOptions{})
	if diff := cmp.Diff(img, again); diff != "" || s.builds.Load() != 1 {
		t.Errorf("the image was built %d times: %s", s.builds.Load(), diff)
	}
	clean(t, dir, 1)
}

func TestDigestDependsOnSpecAndFingerprint(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range []image.Spec{base, {Base: "other"}} {
		for _, p := range []string{"", "a", "b"} {
			one, err := s.Digest([]byte(p))
			if err != nil {
				t.Fatal(err)
			}
			if two, err := s.Digest([]byte(p)); err != nil || one != two {
				t.Errorf("equal specs have the digests %s and %s, %v", one, two, err)
			}
			if seen[one] {
				t.Errorf("%+v with %q has another's digest", s, p)
			}
			seen[one] = true
		}
	}
}

// mission: B1
func TestEqualBuildsAreOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &source{hold: make(chan struct{}), begun: make(chan struct{}, 100)}
	l, second := open(t, dir, s), open(t, dir, s) // the second stands for another process
	var wg sync.WaitGroup
	var told atomic.Int64
	start := func(l *image.Library) {
		wg.Go(func() {
			if _, err := l.Build(t.Context(), base,
				image.BuildOptions{Progress: func(image.Progress) { told.Add(1) }}); err != nil {
				t.Error(err)
			}
		})
	}
	start(l)
	<-s.begun
	for range 9 {
		start(l)
		start(second)
	}
	wait(t, func() bool { return told.Load() >= 10+1 }) // all of l's, late ones included, and one of second's
	close(s.hold)
	wg.Wait()
	if n := s.builds.Load(); n != 1 {
		t.Errorf("there were %d builds", n)
	}
	clean(t, dir, 1)
}

// wait waits until something is true that is about to become so.
func wait(t testing.TB, done func() bool) {
	t.Helper()
	for !done() {
		select {
		case <-t.Context().Done():
			t.Fatal("it did not happen")
		default:
			syscall.Nanosleep(&syscall.Timespec{Nsec: 1e6}, nil)
		}
	}
}

func TestCancellation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &source{hold: make(chan struct{}), begun: make(chan struct{}, 100)}
	l := open(t, dir, s)
	one, cancelOne := context.WithCancel(t.Context())
	two, cancelTwo := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	joined := make(chan struct{}, 2)
	for _, ctx := range []context.Context{one, two} {
		go func() {
			_, err := l.Build(ctx, base, image.BuildOptions{Progress: func(image.Progress) { joined <- struct{}{} }})
			errs <- err
		}()
	}
	<-s.begun
	<-joined
	<-joined
	cancelOne()
	expect(t, "the first to give up", <-errs, errors.Canceled)
	if s.builds.Load() != 1 {
		t.Error("the build did not go on for the other caller")
	}
	cancelTwo()
	expect(t, "the last to give up", <-errs, errors.Canceled)
	clean(t, dir, 0)

	close(s.hold)
	build(t, l, image.BuildOptions{})
	if n := s.builds.Load(); n != 2 {
		t.Errorf("there were %d builds, want a second one after the first was given up", n)
	}
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Build(dead, base, image.BuildOptions{Force: true})
	expect(t, "cancelled before", err, errors.Canceled)
	clean(t, dir, 1)
}

func TestOneGivesUpTheOtherGetsTheImage(t *testing.T) {
	t.Parallel()
	s := &source{hold: make(chan struct{}), begun: make(chan struct{}, 1)}
	l := open(t, t.TempDir(), s)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := l.Build(ctx, base, image.BuildOptions{})
		first <- err
	}()
	<-s.begun
	joined, second := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := l.Build(t.Context(), base, image.BuildOptions{Progress: func(image.Progress) { close(joined) }})
		second <- err
	}()
	<-joined
	cancel()
	expect(t, "first", <-first, errors.Canceled)
	close(s.hold)
	expect(t, "second", <-second, "")
}

func TestBuildAfterAllGaveUp(t *testing.T) {
	t.Parallel()
	s := &stubborn{begun: make(chan struct{}, 2), hold: make(chan struct{})}
	l := open(t, t.TempDir(), s)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := l.Build(ctx, base, image.BuildOptions{})
		first <- err
	}()
	<-s.begun
	cancel()
	<-s.canceled(t)
	impatient, cancelImpatient := context.WithCancel(t.Context())
	cancelImpatient()
	_, err := l.Build(impatient, base, image.BuildOptions{})
	expect(t, "impatient", err, errors.Canceled)
	go func() {
		_, err := l.Build(t.Context(), base, image.BuildOptions{})
		second <- err
	}()
	close(s.hold)
	expect(t, "first", <-first, errors.Canceled)
	expect(t, "second", <-second, "")
}

// stubborn ends slowly when it is cancelled.
type stubborn struct {
	source
	begun, hold chan struct{}
	mu          sync.Mutex
	ctx         context.Context
}

func (s *stubborn) Build(ctx context.Context, spec image.Spec, opts image.BuildOptions,
	out image.Output) (image.Contents, error) {
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	s.begun <- struct{}{}
	<-s.hold
	return s.source.Build(ctx, spec, opts, out)
}

func (s *stubborn) canceled(testing.TB) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctx.Done()
}

func TestForce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &source{content: "root"}
	l := open(t, dir, s)
	img := build(t, l, image.BuildOptions{})
	release, err := l.Use(img.ID, "a sandbox")
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(l.Root(img))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	fresh := build(t, l, image.BuildOptions{Force: true})
	if fresh.ID != img.ID || !fresh.Built.After(img.Built) || content(t, l, fresh) != "root 2" {
		t.Errorf("got %+v with %q", fresh, content(t, l, fresh))
	}
	if data, err := io.ReadAll(old); err != nil || string(data) != "root 1" {
		t.Errorf("who uses the image now reads %q, %v", data, err)
	}
	expect(t, "Delete while a sandbox uses the older build", l.Delete(t.Context(), img.ID), errors.Conflict)
	release()
	clean(t, dir, 1)
}

func TestFailedBuildsLeaveNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &source{err: errors.Stage(errors.Newf(errors.Exhausted, "the disk is full"), "image: install")}
	l := open(t, dir, s)
	_, err := l.Build(t.Context(), base, image.BuildOptions{})
	expect(t, "Build", err, errors.Exhausted)
	if errors.StageOf(err) != "image: install" {
		t.Errorf("got the stage %q", errors.StageOf(err))
	}
	clean(t, dir, 0)

	l = open(t, dir, &source{print: "fail"})
	_, err = l.Build(t.Context(), base, image.BuildOptions{})
	expect(t, "Fingerprint", err, errors.Denied)

	_, err = l.Build(t.Context(), image.Spec{Base: "nonsense"}, image.BuildOptions{})
	expect(t, "unknown base", err, errors.NotFound)
	if !strings.Contains(errors.RemedyOf(err), "base, other") {
		t.Errorf("the remedy does not list what exists: %q", errors.RemedyOf(err))
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	older := build(t, open(t, dir, &source{print: "old"}), image.BuildOptions{})
	l := open(t, dir, &source{print: "new"})
	newer := build(t, l, image.BuildOptions{})
	other, err := l.Build(t.Context(), image.Spec{Base: "other"}, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		older.ID: older.ID, newer.ID: newer.ID, newer.Digest: newer.ID, "base": newer.ID, "other": other.ID,
		older.ID[:12]: older.ID, other.ID[:19]: other.ID,
	} {
		img, err := l.Find(t.Context(), ref)
		if err != nil || img.ID != want {
			t.Errorf("%s: got %s, %v, want %s", ref, img.ID, err, want)
		}
	}
	for _, ref := range []string{"", "img_", "nonsense", older.Digest[:20], older.ID + "0", "../" + older.Digest[7:]} {
		_, err := l.Find(t.Context(), ref)
		expect(t, ref, err, errors.NotFound)
		if !strings.Contains(errors.RemedyOf(err), "base, other") {
			t.Errorf("%q: the remedy is %q", ref, errors.RemedyOf(err))
		}
	}
	list, err := l.List(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("got %v, %v", list, err)
	}
	if list[0].ID != other.ID || list[1].ID != newer.ID || list[2].ID != older.ID || len(list[1].Names) != 1 ||
		len(list[2].Names) != 0 {
		t.Errorf("got %+v", list)
	}
}

func TestFindByAmbiguousBeginning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := map[byte]string{}
	for i := range 17 { // of 17 ids two begin with the same digit
		l := open(t, dir, &source{print: fmt.Sprint(i)})
		img := build(t, l, image.BuildOptions{})
		first := img.ID[4]
		if seen[first] == "" {
			seen[first] = img.ID
			continue
		}
		_, err := l.Find(t.Context(), img.ID[:5])
		expect(t, "ambiguous", err, errors.Invalid)
		if text := errors.Message(err); !strings.Contains(text, img.ID) || !strings.Contains(text, seen[first]) {
			t.Errorf("the candidates are missing: %s", text)
		}
		return
	}
	t.Error("no two ids begin with the same digit")
}

func TestUseAndDelete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &source{}
	l, second := open(t, dir, s), open(t, dir, s)
	img := build(t, l, image.BuildOptions{})
	release, err := l.Use(img.ID, "sandbox one")
	if err != nil {
		t.Fatal(err)
	}
	two, err := l.Use(img.ID, "sandbox two")
	if err != nil {
		t.Fatal(err)
	}
	err = l.Delete(t.Context(), img.ID)
	expect(t, "in use", err, errors.Conflict)
	if text := errors.Message(err); !strings.Contains(text, "sandbox one, sandbox two") {
		t.Errorf("the error does not say who uses it: %s", text)
	}
	err = second.Delete(t.Context(), img.ID)
	expect(t, "in use by another process", err, errors.Conflict)
	if text := errors.Message(err); !strings.Contains(text, "another process") {
		t.Errorf("got %s", text)
	}
	release()
	release()
	expect(t, "still in use", l.Delete(t.Context(), img.ID), errors.Conflict)
	two()
	expect(t, "a name is not an id", l.Delete(t.Context(), "base"), errors.NotFound)
	expect(t, "Delete", second.Delete(t.Context(), img.ID), "")
	expect(t, "Delete again", l.Delete(t.Context(), img.ID), errors.NotFound)
	_, err = l.Use(img.ID, "x")
	expect(t, "Use of nothing", err, errors.NotFound)
	clean(t, dir, 0)
}

func TestDamagedImagesAreBuiltAgain(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(dir string) error{
		"no manifest": func(dir string) error { return os.Remove(filepath.Join(dir, "image.json")) },
		"half manifest": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "image.json"),
				[]byte(`{"id`), 0o600)
		},
		"wrong manifest": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "image.json"),
				[]byte(`{}`), 0o600)
		},
		"no root":    func(dir string) error { return os.Remove(filepath.Join(dir, "root.erofs")) },
		"short root": func(dir string) error { return os.Truncate(filepath.Join(dir, "root.erofs"), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := &source{content: "root"}
			img := build(t, open(t, dir, s), image.BuildOptions{})
			if err := damage(filepath.Join(dir, img.Digest[7:])); err != nil {
				t.Fatal(err)
			}
			l := open(t, dir, s)
			if list, err := l.List(t.Context()); err != nil || len(list) != 0 {
				t.Errorf("got %v, %v", list, err)
			}
			if again := build(t, l, image.BuildOptions{}); content(t, l, again) != "root 2" {
				t.Errorf("got %q", content(t, l, again))
			}
			clean(t, dir, 1)
		})
	}
}

func TestDescriptionsThatOthersChangeAreReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, &source{content: "root"})
	img := build(t, l, image.BuildOptions{})
	path := filepath.Join(dir, img.Digest[7:], "image.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := l.Find(t.Context(), img.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, bytes.Replace(text, []byte(img.Digest[7:]),
		[]byte(strings.Repeat("0", len(img.Digest[7:]))), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = l.Find(t.Context(), img.ID)
	expect(t, "Find of an image whose description was changed", err, errors.NotFound)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if again, err := l.Find(t.Context(), img.ID); err != nil || !cmp.Equal(again, img) {
		t.Errorf("put back: %+v, %v; want %+v", again, err, img)
	}
}

// TestMain lets this program act as another process that builds an image and never ends.
func TestMain(m *testing.M) {
	if dir := os.Getenv("IMAGE_TEST_BUILD"); dir != "" {
		s := &source{hold: make(chan struct{}), begun: make(chan struct{}, 1)}
		l, err := image.OpenLibrary(dir, image.Sources{Named: map[string]image.Source{"base": s}})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go func() {
			<-s.begun
			fmt.Println("building")
		}()
		_, err = l.Build(context.Background(), base, image.BuildOptions{})
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// mission: B1
func TestKilledBuildLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), "IMAGE_TEST_BUILD="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "building\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	s := &source{}
	l := open(t, dir, s) // while the other process builds, its files are not leftovers
	ctx, cancel := context.WithCancel(t.Context())
	_, err = l.Build(ctx, base, image.BuildOptions{Progress: func(p image.Progress) {
		if p.Step != "wait" || p.Done >= 0 {
			t.Errorf("got %+v", p)
		}
		cancel()
	}})
	expect(t, "waiting for another process", err, errors.Canceled)
	if names, _ := filepath.Glob(filepath.Join(dir, ".new-*")); len(names) != 1 {
		t.Errorf("the other's build has %v", names)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	l = open(t, dir, s)
	clean(t, dir, 0)
	build(t, l, image.BuildOptions{})
	clean(t, dir, 1)
}

func TestOpenLibraryFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := image.OpenLibrary(file, image.Sources{})
	expect(t, "a file", err, errors.Invalid)
}

func TestManifestIsReadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	img := build(t, open(t, dir, &source{}), image.BuildOptions{})
	text, err := os.ReadFile(filepath.Join(dir, img.Digest[7:], "image.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"id", "digest", "names", "spec", "config", "size_bytes", "built_at", "build_ns",
		"parts", "missing"} {
		if got[key] == nil {
			t.Errorf("%s is missing in %s", key, text)
		}
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "nr_inodes=6")
	l := open(t, dir, &source{})
	_, err := l.Build(t.Context(), base, image.BuildOptions{})
	expect(t, "Build", err, errors.Exhausted)
	clean(t, dir, 0)
}

func TestLookChangesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "none")
	if _, err := image.Look(t.Context(), dir, "x"); errors.KindOf(err) != errors.NotFound ||
		errors.RemedyOf(err) == "" {
		t.Errorf("without a library: %v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("it made a directory: %v", err)
	}
	want := build(t, open(t, dir, &source{content: "content"}), image.BuildOptions{})
	if err := os.Mkdir(filepath.Join(dir, ".new-"+strings.Repeat("0", 64)), 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := image.Look(t.Context(), dir, "base")
	if err != nil || got.ID != want.ID || len(got.Names) != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := image.Look(t.Context(), dir, "y"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("what is not there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".new-"+strings.Repeat("0", 64))); err != nil {
		t.Errorf("it removed something: %v", err)
	}
}

// sharing is a Source whose images share a file.
type sharing struct {
	source
	root string
}

func (s *sharing) Build(_ context.Context, _ image.Spec, _ image.BuildOptions,
	out image.Output) (image.Contents, error) {
	link := filepath.Join(out.Temp, "link")
	return image.Contents{Root: link}, os.Link(s.root, link)
}

// TestSharedRoot checks that an image may share the file of another root file system, which survives its deletion.
//
// mission: B2
func TestSharedRoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &sharing{root: filepath.Join(dir, "shared")}
	if err := os.WriteFile(s.root, []byte("shared"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(t, filepath.Join(dir, "library"), s)
	img, err := l.Build(t.Context(), base, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one, err := os.Stat(s.root)
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.Stat(l.Root(img))
	if err != nil || !os.SameFile(one, two) || img.Size != int64(len("shared")) {
		t.Errorf("the image has %d bytes of its own, %v", img.Size, err)
	}
	if err := l.Delete(t.Context(), img.ID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.root); err != nil {
		t.Error(err)
	}
}

// TestReleasedImageCanBeDeleted shares the open files of the process while it releases an image, as a child does
// that is being started.
func TestReleasedImageCanBeDeleted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, &source{})
	img := build(t, l, image.BuildOptions{})
	release, err := l.Use(img.ID, "a sandbox")
	if err != nil {
		t.Fatal(err)
	}
	if shareFiles(t, dir) == 0 {
		t.Fatal("a used image has no open file")
	}
	release()
	if err := l.Delete(t.Context(), img.ID); err != nil {
		t.Errorf("delete a released image: %v", err)
	}
}

// shareFiles duplicates the open files below dir until the test ends, and returns their number.
func shareFiles(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	shared := 0
	for _, e := range list {
		fd, _ := strconv.Atoi(e.Name())
		if name, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || !strings.HasPrefix(name, dir+"/") {
			continue
		}
		child, err := unix.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(child) })
		shared++
	}
	return shared
}
