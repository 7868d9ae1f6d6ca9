package dockerfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/image"
)

// gate is a point at which a build waits.
type gate struct{ reached, open chan struct{} }

func newGate() gate { return gate{make(chan struct{}), make(chan struct{})} }

func (g gate) pass() {
	close(g.reached)
	<-g.open
}

// beside builds without force and with it, each while the other is in progress, followed by an ordinary build. Each
// image has the files of one build, and the last has those of the forced one.
func beside(t *testing.T, b *bench, build func(value string, force bool) *built,
	order func(forced, ordinary func() (wait func() *built)) (*built, *built)) {
	t.Helper()
	build("first", false).want(map[string]string{"/one": "first\n", "/two": "first\n"})
	roots, err := b.cache.made("*", rootExt)
	if err != nil || len(roots) == 0 {
		t.Fatalf("%v, %v", roots, err)
	}
	for _, name := range roots { // as the collection may
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	start := func(value string, force bool) func() func() *built {
		return func() func() *built {
			done := make(chan *built, 1)
			go func() {
				defer close(done)
				done <- build(value, force)
			}()
			return func() *built { return <-done }
		}
	}
	forced, ordinary := order(start("third", true), start("second", false))
	if forced == nil || ordinary == nil {
		t.Fatal("a build has failed")
	}
	forced.want(map[string]string{"/one": "third\n", "/two": "third\n"})
	ordinary.want(map[string]string{"/one": "first\n", "/two": "first\n"})
	build("fourth", false).want(map[string]string{"/one": "third\n", "/two": "third\n"})
	if left, err := filepath.Glob(filepath.Join(b.cache.dir, "*.new")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if layers, err := b.cache.made("*", layerExt); err != nil || len(layers) != len(keys(t, b.cache)) {
		t.Errorf("replaced layers are still there: %v, %v", layers, err)
	}
	if len(b.cache.stale) > 0 {
		t.Errorf("not removed: %v", b.cache.stale)
	}
}

// secretly is a build of two steps whose files contain its secret.
func secretly(t *testing.T, b *bench, end string) func(value string, force bool) *built {
	const text = "FROM tiny\nRUN --mount=type=secret,id=k,env=K echo \"$K\" >/one\nRUN cat /one >/two\n"
	return func(value string, force bool) *built {
		log := func(string) {}
		img, err := b.try(t, image.Spec{Dockerfile: text + end}, image.BuildOptions{Force: force, Log: log,
			Secrets: map[string][]byte{"k": []byte(value)}})
		if err != nil {
			t.Error(err)
			return nil
		}
		return img
	}
}

// TestAnOrdinaryBuildBesideAForcedOne checks that an ordinary build that is about to write its image, while a forced
// build makes its layers anew, writes the layers with which it began, and does not keep its root file system for builds
// with the other layers.
func TestAnOrdinaryBuildBesideAForcedOne(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	build := secretly(t, b, "")
	beside(t, b, build, func(forced, ordinary func() func() *built) (*built, *built) {
		packs, runs := newGate(), newGate()
		pass := packs.pass
		b.lib.onRoot.Store(&pass)
		two := ordinary()
		<-packs.reached
		count := 0
		b.runner.refuse(func(op string) error { // a step of the forced one, its second
			if op == "run" {
				if count++; count == 2 {
					b.runner.mu.Unlock() // others run meanwhile
					runs.pass()
					b.runner.mu.Lock()
				}
			}
			return nil
		})
		one := forced()
		<-runs.reached
		close(packs.open)
		ordinaryImage := two()
		close(runs.open)
		return one(), ordinaryImage
	})
}

// TestAForcedBuildBesideAMachineThatStarts checks that a forced build does not remove the root file system with which a
// machine of another build is about to start.
func TestAForcedBuildBesideAMachineThatStarts(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Merged: 1})
	plain, longer := secretly(t, b, ""), secretly(t, b, "RUN true\n")
	build := func(value string, force bool) *built {
		if value == "second" { // has one step more, for which it starts a machine
			return longer(value, force)
		}
		return plain(value, force)
	}
	beside(t, b, build, func(forced, ordinary func() func() *built) (*built, *built) {
		starts := newGate()
		first := true
		b.runner.refuse(func(op string) error {
			if op == "start" && first {
				first = false
				b.runner.mu.Unlock()
				starts.pass()
				b.runner.mu.Lock()
			}
			return nil
		})
		two := ordinary()
		<-starts.reached
		done := forced()()
		close(starts.open)
		return done, two()
	})
}
