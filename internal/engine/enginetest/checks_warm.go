package enginetest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

var warmChecks = []check{
	{"warm/claim", "a warm sandbox becomes the one that a spec describes", warmth, checkClaim},
	{"warm/discard", "a warm sandbox that is discarded leaves nothing", warmth, checkDiscard},
	{"warm/refused", "a claim that fails destroys the warm sandbox and leaves nothing", warmth, checkClaimRefused},
	{"warm/prepared", "a claim takes the prepared sandbox, with an unchanged image", warmth, checkPrepared},
	{"warm/prepared-otherwise", "a claim of another kind gets a sandbox of that kind, and nothing of the prepared one",
		warmth, checkPreparedOtherwise},
	{"warm/prepare-refused",
		"a warm-up that leaves something behind is refused, and so are images and times that cannot be", warmth,
		checkPrepareRefused},
	{"warm/prepare-destroyed", "a warm sandbox can be destroyed while it is prepared", warmth, checkPrepareDestroyed},
	{"warm/restart", "an unclaimed warm sandbox is found after a restart", warmth, checkWarmRestart},
}

var someLimits = engine.Limits{Memory: 512 << 20}

func newWarm(t *testing.T, s *suite) engine.Warm {
	t.Helper()
	w, err := s.engine.(engine.Warmer).Warm(probe.Patient(t), someLimits)
	if err != nil {
		t.Fatalf("Warm: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), probe.Patience)
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
	if list, err := s.engine.List(probe.Patient(t)); err != nil || len(list) != 1 || list[0] != w.Handle() {
		t.Errorf("List: %+v, %v; want %+v", list, err, w.Handle())
	}
	spec := s.spec(engine.Spec{ID: "claimed", Hostname: "claimed-host", Env: map[string]string{"CLAIMED": "yes"},
		Dir: "/claimed", Limits: someLimits})
	if s.engine.Capabilities().Volumes {
		spec.Mounts = mounted(newVolume(t, s), "/mnt/data").Mounts
	}
	sb, err := w.Claim(probe.Patient(t), spec)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	t.Cleanup(func() { s.destroy(t, sb.Handle(), sb) })
	if err := w.Destroy(probe.Patient(t)); err != nil {
		t.Errorf("Destroy of the claimed sandbox: %v", err)
	}
	probe.Put(t, sb, "/claimed", probe.File("file", "here", 0o644))
	if got := probe.Output(t, sb, probe.Sh(`cat file; echo " $CLAIMED"`)); got != "here yes\n" {
		t.Errorf("the claimed sandbox says %q", got)
	}
	if s.engine.Capabilities().Isolated {
		if got := probe.Output(t, sb, probe.Sh("hostname")); got != "claimed-host\n" {
			t.Errorf("its host name is %q", got)
		}
	}
	if len(spec.Mounts) > 0 {
		probe.Script(t, sb, "/mnt/data", "echo x >file")
	}
	if list, err := s.engine.List(probe.Patient(t)); err != nil || len(list) != 1 || list[0] != sb.Handle() ||
		list[0].ID != "claimed" {
		t.Errorf("List: %+v, %v; want %+v", list, err, sb.Handle())
	}
	_, err = s.engine.Create(probe.Patient(t), s.spec(engine.Spec{ID: "claimed"}))
	probe.WantKind(t, "a second sandbox with the id", err, errors.Conflict)
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	wantNone(t, s, "after Destroy")
}

func checkDiscard(t *testing.T, s *suite) {
	s = s.separate(t)
	w := newWarm(t, s)
	for range 2 {
		if err := w.Destroy(probe.Patient(t)); err != nil {
			t.Fatalf("Destroy: %v", err)
		}
	}
	wantNone(t, s, "after Destroy")
	if _, err := w.Claim(probe.Patient(t), s.spec(engine.Spec{Limits: someLimits})); err == nil {
		t.Error("a destroyed warm sandbox was claimed")
	}
	wantNone(t, s, "after a claim of nothing")
}

func checkClaimRefused(t *testing.T, s *suite) {
	s = s.separate(t)
	spec := s.spec(engine.Spec{ID: "refused", Limits: someLimits})
	spec.Image = "no-such-image"
	_, err := newWarm(t, s).Claim(probe.Patient(t), spec)
	probe.WantKind(t, "an unknown image", err, errors.NotFound)
	wantNone(t, s, "after a refused claim")
	s.create(t, engine.Spec{ID: "refused"})
	_, err = newWarm(t, s).Claim(probe.Patient(t), s.spec(engine.Spec{ID: "refused", Limits: someLimits}))
	probe.WantKind(t, "an id that is taken", err, errors.Conflict)
	if list, err := s.engine.List(probe.Patient(t)); err != nil || len(list) != 1 || list[0].ID != "refused" {
		t.Errorf("List: %+v, %v", list, err)
	}
}

func checkWarmRestart(t *testing.T, s *suite) {
	s = s.separate(t)
	w, err := s.engine.(engine.Warmer).Warm(probe.Patient(t), someLimits)
	if err != nil {
		t.Fatalf("Warm: %v", err)
	}
	s.restart(t)
	// An engine may end warm sandboxes at a restart. If it lists them, it must be able to open and destroy
	// them.
	list, err := s.engine.List(probe.Patient(t))
	if err != nil || len(list) > 1 || len(list) == 1 && list[0] != w.Handle() {
		t.Fatalf("List: %+v, %v; want at most %+v", list, err, w.Handle())
	}
	for _, h := range list {
		sb, err := s.engine.Open(probe.Patient(t), h)
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		if err := sb.Destroy(probe.Patient(t)); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	}
	wantNone(t, s, "after Destroy")
}

// newPreparer is newWarm for engines that can prepare.
func newPreparer(t *testing.T, s *suite) (engine.Warm, engine.Preparer) {
	t.Helper()
	w := newWarm(t, s)
	p, ok := w.(engine.Preparer)
	if !ok {
		t.Skip("does not apply: the engine's warm sandboxes do not implement engine.Preparer: give them Prepare to " +
			"have this checked")
	}
	return w, p
}

// claimed claims w.
func claimed(t *testing.T, s *suite, w engine.Warm, spec engine.Spec) engine.Sandbox {
	t.Helper()
	sb, err := w.Claim(probe.Patient(t), s.spec(spec))
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	h := sb.Handle()
	t.Cleanup(func() { s.destroy(t, h, sb) })
	return sb
}

// warming is a warm-up for any image of the suite.
var warming = []string{"sh", "-c", "cat /etc/passwd; ls -R /etc; python3 -c pass"}

// traces returns the evidence of earlier commands that a user could find in a sandbox: its processes and the
// recently changed files.
func traces(t *testing.T, sb engine.Sandbox) string {
	t.Helper()
	running := strings.Fields(probe.Output(t, sb, probe.Sh("cat /proc/[0-9]*/comm; true")))
	slices.Sort(running)
	return strings.Join(running, " ") + "\n" + probe.Output(t, sb, probe.Sh("find / -xdev -mmin -5 2>/dev/null | sort"))
}

// prepared returns a prepared warm sandbox, and the limits for which it is warm. It skips the test for engines without
// engine.Preparer.
func prepared(t *testing.T, s *suite) (engine.Warm, engine.Limits) {
	t.Helper()
	limits := someLimits
	limits.Processes = 20
	w, err := s.engine.(engine.Warmer).Warm(probe.Patient(t), limits)
	if err != nil {
		t.Fatalf("Warm: %v", err)
	}
	p, ok := w.(engine.Preparer)
	if !ok {
		_ = w.Destroy(probe.Patient(t))
		t.Skip("does not apply: the engine's warm sandboxes do not implement engine.Preparer: give them Prepare to " +
			"have this checked")
	}
	if err := p.Prepare(probe.Patient(t), s.image, warming); err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	return w, limits
}

func checkPrepared(t *testing.T, s *suite) {
	s = s.separate(t)
	w, limits := prepared(t, s)
	p := w.(engine.Preparer)
	probe.WantKind(t, "a second Prepare", p.Prepare(probe.Patient(t), s.image, nil), errors.Conflict)
	spec := engine.Spec{Hostname: "claimed-host", Env: map[string]string{"CLAIMED": "yes"}, Dir: "/tmp", User: "nobody",
		Limits: limits}
	sb := claimed(t, s, w, spec)
	probe.WantKind(t, "Prepare of a claimed sandbox", p.Prepare(probe.Patient(t), s.image, nil), errors.Conflict)
	cmd := probe.Sh(`hostname; pwd; id -un; echo $CLAIMED`)
	if got := probe.Output(t, sb, cmd); got != "claimed-host\n/tmp\nnobody\nyes\n" {
		t.Errorf("the claimed sandbox says %q", got)
	}
	cold := s.create(t, spec)
	if got, want := traces(t, sb), traces(t, cold); got != want {
		t.Errorf("the claimed sandbox shows\n%s\nand one that was never warm\n%s", got, want)
	}
	cmd = probe.Sh(`i=0; while [ $i -lt 40 ]; do sleep 10 & i=$((i+1)); done 2>&1 | grep -c -i "fork\|resource"; true`)
	if got := probe.Output(t, sb, cmd); got == "0\n" {
		t.Error("a prepared sandbox has no limit of processes")
	}
}

func checkPreparedOtherwise(t *testing.T, s *suite) {
	s = s.separate(t)
	w, limits := prepared(t, s)
	spec := mounted(newVolume(t, s), "/mnt/data")
	spec.Limits = limits
	sb := claimed(t, s, w, spec)
	probe.Script(t, sb, "/mnt/data", "echo x > file")
	count := probe.Sh(`set -- /proc/[0-9]*; echo $#`) // without another process
	if got, want := probe.Output(t, sb, count), probe.Output(t, s.create(t, engine.Spec{}), count); got != want {
		t.Errorf("there are %s processes, want %s", got, want)
	}
	cmd := probe.Sh(`i=0; while [ $i -lt 40 ]; do sleep 10 & i=$((i+1)); done 2>&1 | grep -c -i "fork\|resource"; true`)
	if got := probe.Output(t, sb, cmd); got == "0\n" {
		t.Error("a sandbox that was claimed otherwise has no process limit")
	}
}

func checkPrepareRefused(t *testing.T, s *suite) {
	s = s.separate(t)
	w, p := newPreparer(t, s)
	probe.WantKind(t, "an unknown image", p.Prepare(probe.Patient(t), "no-such-image", nil), errors.NotFound)
	if err := p.Prepare(probe.Patient(t), s.image, []string{"no-such-program-anywhere"}); err != nil {
		t.Errorf("a program that the image lacks: %v", err)
	}
	for what, warmUp := range map[string]string{"a file": "echo x > /tmp/trace",
		"a process": "sleep 4321 >/dev/null 2>&1 &"} {
		w, p := newPreparer(t, s)
		probe.WantKind(t, "a warm-up that leaves "+what, p.Prepare(probe.Patient(t), s.image, []string{"sh", "-c",
			warmUp}),
			errors.Invalid)
		sb := claimed(t, s, w, engine.Spec{Limits: someLimits})
		cmd := probe.Sh("ls -A /tmp | grep trace; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 432[1]'; true")
		if got := probe.Output(t, sb, cmd); got != "" {
			t.Errorf("after a warm-up that left %s, there is %q", what, got)
		}
	}
	if err := w.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	probe.WantKind(t, "Prepare of a destroyed sandbox", p.Prepare(probe.Patient(t), s.image, nil), errors.Conflict)
}

func checkPrepareDestroyed(t *testing.T, s *suite) {
	s = s.separate(t)
	w, p := newPreparer(t, s)
	done := make(chan error, 1)
	go func() { done <- p.Prepare(probe.Patient(t), s.image, []string{"sleep", "300"}) }()
	select {
	case err := <-done:
		t.Fatalf("Prepare is over: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := w.Destroy(probe.Patient(t)); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	if err := <-done; err == nil {
		t.Error("Prepare has succeeded")
	}
	wantNone(t, s, "after Destroy")
}
