// Package enginetest is the conformance suite of sandbox engines: it checks the contract of package engine.
//
// An engine calls Run in one of its tests. Checks of features that the engine's Capabilities do not announce
// are skipped, and listed with the reason at the end of the run.
package enginetest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// Harness gives the checks access to an engine. Only Open is required.
type Harness struct {
	// Open opens the engine on a data directory. Opening the same one again after Close simulates a restart of
	// the server.
	Open func(t *testing.T, dataDir string) engine.Engine
	// DataDir returns a new data directory, and removes it when t ends. nil means t.TempDir.
	DataDir func(t *testing.T) string
	// Image is the image of the sandboxes, for Images().Find. "" means "base". It has sh, coreutils, util-linux
	// and python3.
	Image string
	// LeakCheck fails t if destroyed sandboxes of dataDir have left anything: processes, mounts, cgroups or
	// files. nil means that only List and the checks themselves detect leaks.
	LeakCheck func(t *testing.T, dataDir string)
	// Creates is the number of sandboxes that are created at the same time. 0 means 10.
	Creates int
	// Left names the checks that are skipped, with the reason.
	Left map[string]string
	// CopySize is the size of the large copy in bytes. 0 means 1 GiB, and 16 MiB with -short.
	CopySize int64
}

// check is a promise of the contract, with the test for it.
type check struct {
	name    string
	promise string
	needs   need // nil for every engine
	run     func(t *testing.T, s *suite)
}

// need returns the reason why a check does not apply to an engine, or "".
type need func(c engine.Capabilities) string

func needs(have func(c engine.Capabilities) bool, why string) need {
	return func(c engine.Capabilities) string {
		if have(c) {
			return ""
		}
		return why
	}
}

var (
	terminals = needs(func(c engine.Capabilities) bool { return c.Terminal }, "the engine announces no terminals")
	reopen    = needs(func(c engine.Capabilities) bool { return c.Reopen }, "the engine announces no ProcessOpener")
	warmth    = needs(func(c engine.Capabilities) bool { return c.Warm }, "the engine announces no Warmer")
	mounts    = needs(func(c engine.Capabilities) bool { return c.Volumes }, "the engine announces no volumes")
	users     = needs(func(c engine.Capabilities) bool { return c.Users }, "the engine announces no users")
	isolated  = needs(func(c engine.Capabilities) bool { return c.Isolated }, "the engine announces no isolation")
)

func limit(name string) need {
	return needs(func(c engine.Capabilities) bool { return slices.Contains(c.Limits, name) },
		"the engine announces no limit of "+name)
}

func both(a, b need) need {
	return func(c engine.Capabilities) string { return cmp.Or(a(c), b(c)) }
}

// Run runs all checks against an engine.
func Run(t *testing.T, h Harness) {
	s := newSuite(t, h)
	caps := s.engine.Capabilities()
	t.Logf("%s: %+v", s.engine.Name(), caps)
	var passed []string
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			if c.needs != nil {
				if why := c.needs(caps); why != "" {
					passed = append(passed, fmt.Sprintf("does not apply: %s: %s", c.name, why))
					t.Skipf("does not apply: %s", why)
				}
			}
			if why := h.Left[c.name]; why != "" {
				passed = append(passed, fmt.Sprintf("left out: %s: %s", c.name, why))
				t.Skipf("left out: %s", why)
			}
			if slices.Contains(long, c.name) {
				testenv.Long(t)
			}
			t.Logf("promise: %s", c.promise)
			c.run(t, s)
		})
	}
	for _, line := range passed {
		fmt.Fprintf(os.Stderr, "enginetest: engine %s: %s\n", s.engine.Name(), line)
	}
}

// checks returns all checks, cheapest subjects first.
func checks() []check {
	return slices.Concat(contractChecks, outputChecks, inputChecks, exitChecks, killChecks, environmentChecks,
		terminalChecks,
		reopenChecks, lifecycleChecks, copyChecks, fileChecks, escapeChecks, volumeChecks, snapshotChecks, memoryChecks,
		warmChecks, limitChecks, usageChecks, isolationChecks, networkChecks, interceptChecks, privateChecks,
		dialChecks, loadChecks)
}

// long names the checks that -short skips, because each takes more than a few seconds.
var long = []string{
	"load/nothing grows", "load/mixed", "load/50 commands", "load/many sandboxes", "warm/prepared-otherwise",
	"MemoryOutlives",
	"limit/neighbour", "reopen/bounded", "SnapshotKeepsAll",
}

// suite is an engine under test, with a sandbox that checks may share.
type suite struct {
	Harness
	engine  engine.Engine
	dataDir string
	image   string
	shared  engine.Sandbox
}

func newSuite(t *testing.T, h Harness) *suite {
	if h.DataDir == nil {
		h.DataDir = func(t *testing.T) string { return t.TempDir() }
	}
	if h.LeakCheck == nil {
		h.LeakCheck = func(*testing.T, string) {}
	}
	if h.Creates == 0 {
		h.Creates = 10
	}
	if h.CopySize == 0 {
		h.CopySize = 1 << 30
		if testing.Short() {
			h.CopySize = 16 << 20
		}
	}
	if h.Image == "" {
		h.Image = "base"
	}
	s := open(t, h, h.DataDir(t))
	s.shared = s.create(t, engine.Spec{})
	return s
}

// open opens a new engine on dataDir.
func open(t *testing.T, h Harness, dataDir string) *suite {
	t.Helper()
	s := &suite{Harness: h, engine: h.Open(t, dataDir), dataDir: dataDir}
	t.Cleanup(func() {
		if err := s.engine.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	img, err := s.engine.Images().Find(t.Context(), h.Image)
	if err != nil {
		t.Fatalf("the image of the harness: %v", err)
	}
	s.image = img.ID
	return s
}

// separate opens another engine on a new data directory.
func (s *suite) separate(t *testing.T) *suite {
	t.Helper()
	dir := s.DataDir(t)
	t.Cleanup(func() { s.LeakCheck(t, dir) }) // runs after everything below is destroyed
	return open(t, s.Harness, dir)
}

// restart closes the engine and opens it again, like a restart of the server.
func (s *suite) restart(t *testing.T) {
	t.Helper()
	if err := s.engine.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	s.engine = s.Open(t, s.dataDir)
}

// reopened returns the sandbox that a restarted engine opens for an old handle.
func (s *suite) reopened(t *testing.T, h engine.Handle) (engine.Sandbox, engine.ProcessOpener) {
	t.Helper()
	sb, err := s.engine.Open(probe.Patient(t), h)
	if err != nil {
		t.Fatalf("Open after a restart: %v", err)
	}
	opener, ok := sb.(engine.ProcessOpener)
	if !ok && s.engine.Capabilities().Reopen {
		t.Fatalf("%T is no ProcessOpener, although Capabilities.Reopen says so", sb)
	}
	return sb, opener
}

// create creates a sandbox that t destroys. It fills in ID and Image.
func (s *suite) create(t *testing.T, spec engine.Spec) engine.Sandbox {
	t.Helper()
	sb, err := s.engine.Create(probe.Patient(t), s.spec(spec))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	h := sb.Handle()
	t.Cleanup(func() { s.destroy(t, h, sb) })
	return sb
}

// destroy destroys a sandbox, even if the engine has been restarted since its creation.
func (s *suite) destroy(t *testing.T, h engine.Handle, sb engine.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), probe.Patience)
	defer cancel()
	if again, err := s.engine.Open(ctx, h); err == nil {
		sb = again
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("Destroy: %v", err)
	}
}

// spec fills in the fields that a check leaves empty.
func (s *suite) spec(spec engine.Spec) engine.Spec {
	if spec.ID == "" {
		spec.ID = probe.NewID()
	}
	if spec.Image == "" {
		spec.Image = s.image
	}
	if spec.Network.Mode == "" {
		spec.Network.Mode = "none"
	}
	return spec
}
