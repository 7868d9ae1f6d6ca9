package checkpoint_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/checkpoint"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// clock is the time of a store.
type clock struct{ now time.Time }

func open(t *testing.T, dir string, c *clock) *checkpoint.Store {
	t.Helper()
	s, err := checkpoint.Open(t.Context(), dir, nil, func() time.Time { return c.now })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// source is a sandbox whose state is a file of size bytes.
func source(account string, size int) checkpoint.Source {
	return checkpoint.Source{ID: "sbx_1",
		Describe: func(c *checkpoint.Checkpoint) {
			c.Sandbox = record.Sandbox{ID: "sbx_1", Account: account}
			c.CommandLimits = map[string]time.Duration{"p1": time.Minute}
		},
		Save: func(dir string) error {
			if err := os.Mkdir(dir, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "pages"), make([]byte, size), 0o600)
		}}
}

// TestHeldCheckpointsOutliveTheirTime checks that a checkpoint that is being restored is removed only after that, and
// that no other operation finds it meanwhile.
func TestHeldCheckpointsOutliveTheirTime(t *testing.T) {
	t.Parallel()
	dir, c := t.TempDir(), &clock{time.Now()}
	s := open(t, dir, c)
	made, err := s.Make(t.Context(), source("acme", 10), time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	there := func() bool {
		_, err := os.Stat(s.State(made.ID))
		return err == nil
	}
	release, again := s.Hold(made.ID), s.Hold(made.ID)
	c.now = c.now.Add(time.Hour - 1)
	s.Sweep(t.Context())
	if _, err := s.Find("acme", made.ID); err != nil {
		t.Errorf("a moment before its time is over: %v", err)
	}
	c.now = c.now.Add(1)
	if _, err := s.Find("acme", made.ID); !errors.Is(err, errors.NotFound) || len(s.List("acme")) != 0 {
		t.Errorf("after its time: %v", err)
	}
	for _, done := range []func(){release, again} {
		s.Sweep(t.Context())
		if !there() {
			t.Fatal("it was removed while it was in use")
		}
		done()
	}
	s.Sweep(t.Context())
	if there() || len(s.IDs()) != 0 {
		t.Error("it is left")
	}
}

// TestFailuresLeaveNothing checks that a checkpoint that could not be completed leaves no files, and is in no list.
func TestFailuresLeaveNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*checkpoint.Source){
		"the state cannot be saved": func(s *checkpoint.Source) {
			save := s.Save
			s.Save = func(dir string) error {
				return errors.Join(save(dir), errors.Newf(errors.Unavailable, "broken"))
			}
		},
		"the record cannot be encoded": func(s *checkpoint.Source) {
			s.Describe = func(c *checkpoint.Checkpoint) { c.Sandbox.Cost = -1 / zero }
		},
		"no room for its memory": func(s *checkpoint.Source) { s.Memory = 1 << 60 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, &clock{time.Now()})
			from := source("acme", 10)
			change(&from)
			if _, err := s.Make(t.Context(), from, time.Hour, nil); err == nil {
				t.Error("it was made")
			}
			left, err := os.ReadDir(dir)
			if err != nil || len(left) > 0 || len(s.IDs()) > 0 {
				t.Errorf("left: %v, %v, %v", left, s.IDs(), err)
			}
		})
	}
}

var zero float64 // a division by it has no number in JSON

// TestSizeWithoutSharedFiles checks that files that an image has, too, do not count.
func TestSizeWithoutSharedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shared := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(shared, make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	from := source("acme", 700)
	save := from.Save
	from.Save = func(dir string) error {
		return errors.Join(save(dir), os.Link(shared, filepath.Join(dir, "layer")))
	}
	made, err := open(t, dir, &clock{time.Now()}).Make(t.Context(), from, time.Hour, nil)
	if err != nil && strings.Contains(err.Error(), "invalid cross-device link") {
		t.Fatalf("the temporary directories are on different file systems: %v", err)
	}
	if err != nil || made.Size != 700 {
		t.Errorf("%d bytes, %v", made.Size, err)
	}
}

// TestCallersCannotChangeCheckpoints checks that results share nothing with the store.
func TestCallersCannotChangeCheckpoints(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), &clock{time.Now()})
	note := []byte("note")
	made, err := s.Make(t.Context(), source("acme", 1), time.Hour, note)
	if err != nil {
		t.Fatal(err)
	}
	note[0] = 'X'
	for range 2 {
		if string(made.Note) != "note" || made.CommandLimits["p1"] != time.Minute {
			t.Errorf("%s, %v", made.Note, made.CommandLimits)
		}
		made.Note[0], made.CommandLimits["p1"] = 'X', 0
		if made, err = s.Find("acme", made.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPlan checks which properties a restored sandbox has from its checkpoint, and which from the request.
func TestPlan(t *testing.T) {
	t.Parallel()
	rules := spec.Rules{Engine: "gvisor", Can: engine.Capabilities{Network: true},
		Defaults: engine.Limits{CPU: 1, Memory: 2 << 30}, Timeouts: spec.Timeouts{MaxLife: 10 * time.Hour}}
	c := checkpoint.Checkpoint{ID: "chk_1", Life: time.Hour, Withheld: []string{"TOKEN"}, Sandbox: record.Sandbox{
		Engine: "gvisor", Image: "base", Name: "old", Tags: map[string]string{"team": "a", "harvest.session": "ses_1"},
		Network: spec.Network{Mode: "none"}, Limits: engine.Limits{Disk: 5}, IdleTimeoutSeconds: 90, Ports: []int{80},
		Secrets: []string{"s"}, Workdir: "/w", User: "u", SnapshotOnEnd: true}}
	p, err := c.Plan(rules, "new", nil)
	want := spec.Plan{Request: spec.Request{Image: "base", Name: "new", Tags: map[string]string{"team": "a"},
		Secrets: []string{"s"}, Withhold: []string{"TOKEN"}, Workdir: "/w", User: "u", Ports: []int{80},
		SnapshotOnEnd: true, Cold: true, Network: spec.Network{Mode: "none"}},
		Limits: engine.Limits{Disk: 5}, ReservedCPU: 1, ReservedMemory: 2 << 30, Life: time.Hour,
		Idle: 90 * time.Second}
	if diff := cmp.Diff(want, p, cmp.AllowUnexported(spec.Plan{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	p, err = c.Plan(rules, "", map[string]string{"b": "c", "harvest.mine": "x"})
	if err != nil || !cmp.Equal(p.Tags, map[string]string{"b": "c"}) {
		t.Errorf("tags of the request: %v, %v", p.Tags, err)
	}
	if p, err = c.Plan(rules, "", map[string]string{}); err != nil || len(p.Tags) != 0 {
		t.Errorf("a request for no tags: %v, %v", p.Tags, err)
	}
	c.Life, c.Sandbox.IdleTimeoutSeconds = 20*time.Hour, 1e6
	if p, err = c.Plan(rules, "", nil); err != nil || p.Life != 10*time.Hour || p.Idle != 10*time.Hour {
		t.Errorf("beyond the maximum: %v, %v, %v", p.Life, p.Idle, err)
	}
	c.Sandbox.Engine = "modal"
	if _, err = c.Plan(rules, "a b", nil); !errors.Is(err, errors.Invalid) ||
		!strings.Contains(errors.Message(err), "2 things") {
		t.Errorf("another engine and a bad name: %v", err)
	}
}
