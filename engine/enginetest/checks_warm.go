package enginetest

import (
	"context"
	"testing"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
)

var warmChecks = []check{
	{"warm/claim", "a warm sandbox becomes the one that a spec describes", warmth, checkClaim},
	{"warm/discard", "a warm sandbox that is discarded leaves nothing", warmth, checkDiscard},
	{"warm/refused", "a claim that fails destroys the warm sandbox and leaves nothing", warmth, checkClaimRefused},
	{"warm/restart", "a warm sandbox that nobody claimed is found after a restart", warmth, checkWarmRestart},
}

var someLimits = engine.Limits{Memory: 512 << 20}

func newWarm(t *testing.T, s *suite) engine.Warm {
	t.Helper()
	w, err := s.engine.(engine.Warmer).Warm(patient(t), someLimits)
	if err != nil {
		t.Fatalf("Warm: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.Destroy(ctx); err != nil {
			t.Errorf("Destroy of a warm sandbox: %v", err)
		}
	})
	return w
}

func checkClaim(t *testing.T, s *suite) {
	s = s.separate(t)
	w := newWarm(t, s)
	if h := w.Handle(); h.ID != "" || h.Ref == "" {
		t.Errorf("a warm sandbox has the handle %+v", h)
	}
	if list, err := s.engine.List(patient(t)); err != nil || len(list) != 1 || list[0] != w.Handle() {
		t.Errorf("List: %+v, %v; want %+v", list, err, w.Handle())
	}
	spec := s.spec(engine.Spec{ID: "claimed", Hostname: "claimed-host", Env: map[string]string{"CLAIMED": "yes"}, Dir: "/claimed", Limits: someLimits})
	if s.engine.Capabilities().Volumes {
		spec.Mounts = mounted(newVolume(t, s), "/mnt/data").Mounts
	}
	sb, err := w.Claim(patient(t), spec)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	t.Cleanup(func() { s.destroy(t, sb.Handle(), sb) })
	if err := w.Destroy(patient(t)); err != nil {
		t.Errorf("Destroy of what was claimed: %v", err)
	}
	put(t, sb, "/claimed", file("file", "here", 0o644))
	if got := output(t, sb, sh(`cat file; echo " $CLAIMED"`)); got != "here yes\n" {
		t.Errorf("the claimed sandbox says %q", got)
	}
	if s.engine.Capabilities().Isolated {
		if got := output(t, sb, sh("hostname")); got != "claimed-host\n" {
			t.Errorf("its host name is %q", got)
		}
	}
	if len(spec.Mounts) > 0 {
		script(t, sb, "/mnt/data", "echo x >file")
	}
	if list, err := s.engine.List(patient(t)); err != nil || len(list) != 1 || list[0] != sb.Handle() || list[0].ID != "claimed" {
		t.Errorf("List: %+v, %v; want %+v", list, err, sb.Handle())
	}
	_, err = s.engine.Create(patient(t), s.spec(engine.Spec{ID: "claimed"}))
	wantKind(t, "a second sandbox with the id", err, errors.Conflict)
	if err := sb.Destroy(patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	wantNone(t, s, "after Destroy")
}

func checkDiscard(t *testing.T, s *suite) {
	s = s.separate(t)
	w := newWarm(t, s)
	for range 2 {
		if err := w.Destroy(patient(t)); err != nil {
			t.Fatalf("Destroy: %v", err)
		}
	}
	wantNone(t, s, "after Destroy")
	if _, err := w.Claim(patient(t), s.spec(engine.Spec{Limits: someLimits})); err == nil {
		t.Error("a destroyed warm sandbox was claimed")
	}
	wantNone(t, s, "after a claim of nothing")
}

func checkClaimRefused(t *testing.T, s *suite) {
	s = s.separate(t)
	spec := s.spec(engine.Spec{ID: "refused", Limits: someLimits})
	spec.Image = "no-such-image"
	_, err := newWarm(t, s).Claim(patient(t), spec)
	wantKind(t, "an unknown image", err, errors.NotFound)
	wantNone(t, s, "after a refused claim")
	s.create(t, engine.Spec{ID: "refused"})
	_, err = newWarm(t, s).Claim(patient(t), s.spec(engine.Spec{ID: "refused", Limits: someLimits}))
	wantKind(t, "an id that is taken", err, errors.Conflict)
	if list, err := s.engine.List(patient(t)); err != nil || len(list) != 1 || list[0].ID != "refused" {
		t.Errorf("List: %+v, %v", list, err)
	}
}

func checkWarmRestart(t *testing.T, s *suite) {
	s = s.separate(t)
	w, err := s.engine.(engine.Warmer).Warm(patient(t), someLimits)
	if err != nil {
		t.Fatalf("Warm: %v", err)
	}
	s.restart(t)
	// An engine may end them itself at a restart; what it lists, it must be able to open and destroy.
	list, err := s.engine.List(patient(t))
	if err != nil || len(list) > 1 || len(list) == 1 && list[0] != w.Handle() {
		t.Fatalf("List: %+v, %v; want at most %+v", list, err, w.Handle())
	}
	for _, h := range list {
		sb, err := s.engine.Open(patient(t), h)
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		if err := sb.Destroy(patient(t)); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	}
	wantNone(t, s, "after Destroy")
}
