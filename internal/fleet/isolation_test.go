package fleet_test

import (
	"context"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// several is a stub with several kinds of isolation.
type several struct {
	*stub
	kind    string
	missing string   // the kind that this machine cannot provide
	made    []string // kinds of the sandboxes that were created; of the first one only
	first   *several
}

func (s *several) Name() string { return s.kind }

func (s *several) Capabilities() engine.Capabilities {
	caps := s.stub.Capabilities()
	caps.Isolation, caps.Users = s.kind+" kind", s.kind == engine.GVisor
	return caps
}

func (s *several) Isolation(kind string) (engine.Engine, error) {
	if kind == s.missing {
		return nil, errors.Newf(errors.Unsupported, "no %s here", kind)
	}
	return &several{stub: s.stub, kind: kind, first: s}, nil
}

func (s *several) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	s.mu.Lock()
	s.first.made = append(s.first.made, s.kind)
	s.mu.Unlock()
	return s.stub.Create(ctx, spec)
}

// TestIsolation checks that a sandbox has the kind of isolation that its request names, or the server's default, that
// the rules are those of its kind, and that no other kind replaces one that is not allowed or not available.
func TestIsolation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	eng := &several{stub: w.stub, kind: engine.GVisor}
	opts := w.opts
	opts.Engine, opts.Store, opts.Isolations = eng, w.store, []string{engine.GVisor, engine.Container}
	f, err := fleet.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(t.Context())
	for asked, want := range map[string]string{"": engine.GVisor, engine.GVisor: engine.GVisor,
		engine.Container: engine.Container} {
		eng.made = nil
		sb, err := f.Create(t.Context(), "acme", spec.Request{Isolation: asked})
		if err != nil {
			t.Fatal(err)
		}
		if sb.Engine != want || sb.Isolation != want+" kind" || len(eng.made) != 1 || eng.made[0] != want {
			t.Errorf("%q: the record says %s and %s, created were %q; want %s", asked, sb.Engine, sb.Isolation,
				eng.made, want)
		}
		if again := sb.Again(f.Rules()); again.Isolation != want {
			t.Errorf("%q: another one like it asks for %q, want %s", asked, again.Isolation, want)
		}
	}
	_, err = f.Create(t.Context(), "acme", spec.Request{Isolation: engine.Container, User: "agent"})
	if !errors.Is(err, errors.Unsupported) || !strings.Contains(errors.Message(err), "container") {
		t.Errorf("what containers cannot do: %v", err)
	}
	_, err = f.Create(t.Context(), "acme", spec.Request{Isolation: "firecracker"})
	if !errors.Is(err, errors.Unsupported) || !strings.Contains(errors.Message(err), "container, gvisor") ||
		errors.RemedyOf(err) == "" {
		t.Errorf("an unknown kind: %v", err)
	}
	opts.Isolations = []string{engine.Container}
	only, err := fleet.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer only.Close(t.Context())
	if _, err := only.Create(t.Context(), "acme", spec.Request{Isolation: engine.GVisor}); !errors.Is(err,
		errors.Unsupported) {
		t.Errorf("a kind that is not allowed: %v", err)
	}
	eng.missing = engine.Container
	if _, err := fleet.Open(t.Context(), opts); !errors.Is(err, errors.Unsupported) {
		t.Errorf("a kind that is not available: %v", err)
	}
	opts.Engine = w.stub
	if _, err := fleet.Open(t.Context(), opts); !errors.Is(err, errors.Unsupported) || errors.RemedyOf(err) == "" {
		t.Errorf("an engine with one kind: %v", err)
	}
}

// TestOneIsolation checks requests to an engine with one kind of isolation.
func TestOneIsolation(t *testing.T) {
	t.Parallel()
	f := newWorld(t).open(t)
	_, err := f.Create(t.Context(), "acme", spec.Request{Isolation: engine.Container})
	if !errors.Is(err, errors.Unsupported) || errors.RemedyOf(err) != "omit isolation" {
		t.Errorf("got %v, %s", err, errors.RemedyOf(err))
	}
	if sb, err := f.Create(t.Context(), "acme", spec.Request{}); err != nil || sb.Engine != "stub" ||
		sb.Isolation != "stub" {
		t.Errorf("the record says %s and %s, %v", sb.Engine, sb.Isolation, err)
	}
}
