package dockerfile

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
)

// seeded is a Dockerfile whose last stage follows a stage with files for a cache mount.
func seeded(content, steps string) string {
	return "FROM tiny AS seed\nRUN mkdir -p /seed/d && echo " + content + " >/seed/s && echo D >/seed/d/f && " +
		"chown 1000:50 /seed /seed/s && chmod 750 /seed\nFROM tiny\n" + steps
}

// TestCacheMountsBeginWithFiles checks that a new cache mount has the files of a stage or an image, that it keeps its
// later files, and that other files begin another cache.
//
// mission: B2
func TestCacheMountsBeginWithFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	const steps = `RUN --mount=type=cache,id=c,target=/c,from=seed,source=/seed cat /c/s /c/d/f >/one; \
    stat -c '%a %u %g' /c /c/s >/own; echo new >/c/d/f; echo new >/c/new
RUN --mount=type=cache,id=c,target=/other,from=seed,source=seed ls /other >/two; cat /other/d/f >>/two
RUN --mount=type=cache,id=c,target=/plain ls /plain >/three
RUN --mount=type=cache,id=ro,target=/ro,from=seed,source=/seed,ro cat /ro/s >/four
RUN --mount=type=cache,id=i,target=/i,from=tiny,source=/etc ls /i >/five
RUN --mount=type=cache,id=m,target=/m,from=tiny,mode=0711,uid=3 stat -c '%a %u' /m >/six; ls /m >>/six
`
	for _, content := range []string{"S", "changed", "S"} {
		before := b.runner.starts()
		b.build(t, seeded(content, steps), image.BuildOptions{}).want(map[string]string{"/one": content + "\nD\n",
			"/own": "750 1000 50\n644 1000 50\n", "/two": "d\nnew\ns\nnew\n", "/three": "",
			"/four": content + "\n", "/five": "group\npasswd\n", "/six": "711 3\n", "/c": "", "/other": "", "/i": ""})
		if content == "S" && before > 0 && b.runner.starts() != before {
			t.Error("an equal build ran again")
		}
	}
	for _, s := range b.runner.started {
		if fills := len(s.Mounts) == 1 && s.Mounts[0].Path == bindDir; fills && s.Network != "none" {
			t.Errorf("a machine that fills a cache mount has the network %s", s.Network)
		}
	}
	later := seeded("S", "RUN --mount=type=cache,id=c,target=/c,from=seed,source=/seed cat /c/s /c/d/f >/later\n")
	b.build(t, later, image.BuildOptions{Force: true}).want(map[string]string{"/later": "S\nnew\n"})
	for name, c := range map[string]struct {
		mount, want string
		kind        errors.Kind
	}{
		"a file":   {"from=seed,source=/seed/s", "/seed/s is not a directory", errors.Invalid},
		"nothing":  {"from=seed,source=/none", `there is no "/none" to mount in the stage seed`, errors.NotFound},
		"no stage": {"source=/seed", "has the source /seed, but no files", errors.Invalid},
	} {
		_, err := b.try(t, image.Spec{Dockerfile: seeded("S", "RUN --mount=type=cache,target=/x,"+c.mount+" true\n")},
			image.BuildOptions{})
		if errors.KindOf(err) != c.kind || !strings.Contains(errors.Message(err), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// fills makes the runner call f, without its lock, after each copy of files into a machine.
func fills(b *bench, f func() error) {
	b.runner.refuse(func(op string) error {
		if op != "copied" {
			return nil
		}
		b.runner.mu.Unlock()
		defer b.runner.mu.Lock()
		return f()
	})
}

// TestFillThatWasCutShort checks that a cache mount whose fill was interrupted is not used as it is.
//
// mission: B2
func TestFillThatWasCutShort(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	text := seeded("S", "RUN --mount=type=cache,id=c,target=/c,from=seed,source=/seed cat /c/s /c/d/f >/all\n")
	fills(b, func() error { return errors.Newf(errors.Exhausted, "no space") })
	if _, err := b.try(t, image.Spec{Dockerfile: text}, image.BuildOptions{}); errors.KindOf(err) != errors.Exhausted ||
		!strings.Contains(errors.Message(err), "no space") {
		t.Fatalf("got %v", err)
	}
	b.runner.refuse(nil)
	half, err := filepath.Glob(filepath.Join(b.lib.dir, "volumes", "build-cache-*", "s"))
	if err != nil || len(half) != 1 {
		t.Fatalf("got %v, %v", half, err)
	}
	if err := os.Remove(half[0]); err != nil {
		t.Fatal(err)
	}
	b.build(t, text, image.BuildOptions{}).want(map[string]string{"/all": "S\nD\n"})
}

// TestFilledOnce checks that builds at once fill a common cache mount once, and wait for that.
//
// mission: B2
func TestFilledOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	b.build(t, seeded("S", ""), image.BuildOptions{}) // the stage is in the cache
	count, filling, second := 0, newGate(), make(chan struct{})
	begun := sync.OnceFunc(func() { close(second) })
	fills(b, func() error {
		if count++; count == 1 {
			filling.pass()
		}
		return nil
	})
	done := make(chan error, 2)
	build := func(file string, log func(string)) {
		root, err := os.CreateTemp(b.dir, "root-")
		if err == nil {
			defer root.Close()
			_, err = b.source.Build(t.Context(), image.Spec{Dockerfile: seeded("S", "RUN --mount=type=cache,id=c,"+
				"target=/c,from=seed,source=/seed cat /c/s >/"+file+"\n")},
				image.BuildOptions{Log: log, Progress: quiet.Progress},
				image.Output{Root: root, Temp: t.TempDir()})
		}
		done <- err
	}
	go build("one", func(string) {})
	<-filling.reached
	go build("two", func(line string) {
		if strings.Contains(line, ">/two") {
			begun()
		}
	})
	<-second
	close(filling.open)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if count != 1 {
		t.Errorf("the cache mount was filled %d times", count)
	}
}

// TestRemovedCacheMountsAreFilledAgain checks that no record calls a removed cache mount filled, and that a failed
// removal changes nothing.
//
// mission: B2
func TestRemovedCacheMountsAreFilledAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	step := func(n string) *built {
		t.Helper()
		return b.build(t, seeded("S", "RUN --mount=type=cache,id=c,target=/c,from=seed,source=/seed cat /c/s >/all; "+
			"echo used >/c/s; echo "+n+"\n"), image.BuildOptions{})
	}
	step("1").want(map[string]string{"/all": "S\n"})
	id := b.kept(t, "")[image.KeptMount][0].ID
	b.runner.refuse(func(op string) error {
		if op != "volume" {
			return nil
		}
		if records, err := filepath.Glob(filepath.Join(b.cache.dir, "*."+mountExt)); err != nil || len(records) > 0 {
			t.Errorf("the volume is removed before its record: %v, %v", records, err)
		}
		return errors.Newf(errors.Conflict, "in use")
	})
	if _, err := b.source.Forget(t.Context(), "", id); errors.KindOf(err) != errors.Conflict {
		t.Errorf("in use: got %v", err)
	}
	b.runner.refuse(nil)
	step("2").want(map[string]string{"/all": "used\n"})
	if _, err := b.source.Forget(t.Context(), "", id); err != nil {
		t.Fatal(err)
	}
	step("3").want(map[string]string{"/all": "S\n"})
}
