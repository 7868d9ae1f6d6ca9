package record

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// TestAgain checks that the request for a copy has the sandbox's properties, but not its name nor Harvest's own tags,
// and stays within today's rules.
func TestAgain(t *testing.T) {
	t.Parallel()
	started := time.Unix(1e9, 0)
	sb := Sandbox{ID: "sbx_1", Name: "first", Image: "base", ImageID: "img_1", Workdir: "/w", User: "u", GPU: "T4",
		Tags: map[string]string{"a": "b", "harvest.session": "ses_1"}, Volumes: []spec.Mount{{Name: "v", Path: "/v"}},
		Secrets: []string{"s"}, Withheld: []string{"TOKEN"}, Network: spec.Network{Mode: "none"}, Ports: []int{80},
		Limits:  engine.Limits{CPU: 1, Memory: 2, Disk: 3, Processes: 4, Files: 5, VolumeFiles: 600},
		Started: started, Expires: started.Add(time.Hour), IdleTimeoutSeconds: 7, SnapshotOnEnd: true,
		S3: &S3Volume{S3: spec.S3{Place: places.Place{Bucket: "b"}, Init: true, SyncOnTerminate: true}, Volume: "v"}}
	rules := spec.Rules{Defaults: engine.Limits{VolumeFiles: 500}, Timeouts: spec.Timeouts{MaxLife: time.Minute}}
	want := spec.Request{Image: "img_1", Workdir: "/w", User: "u", GPU: "T4", Tags: map[string]string{"a": "b"},
		Volumes: sb.Volumes, Secrets: sb.Secrets, Withhold: []string{"TOKEN"}, Network: sb.Network, Ports: []int{80},
		CPU: 1, Memory: 2, Disk: 3, Processes: 4, Files: 5, VolumeFiles: 500, TimeoutSeconds: 60, IdleTimeoutSeconds: 7,
		SnapshotOnEnd: true, S3: &spec.S3{Place: places.Place{Bucket: "b"}, SyncOnTerminate: true}}
	if diff := cmp.Diff(want, sb.Again(rules)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !sb.S3.Init || len(sb.Tags) != 2 {
		t.Error("the record was changed")
	}
}

func TestEndReason(t *testing.T) {
	t.Parallel()
	limited := Sandbox{Limits: engine.Limits{Memory: 1 << 30}}
	for _, c := range []struct {
		sb   Sandbox
		end  engine.End
		want string
	}{
		{limited, engine.End{OutOfMemory: true, Detail: "killed"}, "it exceeded its memory limit of 1GiB"},
		{Sandbox{}, engine.End{OutOfMemory: true, Destroyed: true}, "it exceeded the memory of the machine"},
		{limited, engine.End{Destroyed: true, Detail: "killed"},
			"it was destroyed by another program than Harvest's server"},
		{limited, engine.End{Detail: "its host was shut down"}, "its host was shut down"},
		{limited, engine.End{}, "it ended by itself"},
	} {
		if got := c.sb.EndReason(c.end); got != c.want {
			t.Errorf("%+v: %q, want %q", c.end, got, c.want)
		}
	}
}

func TestFilterCheck(t *testing.T) {
	t.Parallel()
	for _, good := range []Filter{{}, {Statuses: Statuses, Limit: 1}} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []Filter{{Limit: -1}, {Statuses: []Status{Running, "Running"}}, {Statuses: []Status{""}}} {
		if err := bad.Check(); !errors.Is(err, errors.Invalid) || errors.RemedyOf(err) == "" {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestRan checks that neither the time that a sandbox has run nor its lifetime has the time of its suspensions.
func TestRan(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	s := Sandbox{}
	if s.Ran(at(5)) != 0 {
		t.Error("a sandbox ran that never started")
	}
	s = Sandbox{Started: start, Expires: at(60)}
	if got := s.Ran(at(10)); got != 10*time.Minute {
		t.Errorf("it ran %v", got)
	}
	s.Suspended = at(10)
	if got := s.Ran(at(30)); got != 10*time.Minute || s.Life() != time.Hour {
		t.Errorf("asleep: it ran %v of %v", got, s.Life())
	}
	s.Woken(at(40))
	s.Woken(at(45)) // it is awake
	if got := s.Ran(at(50)); got != 20*time.Minute || s.Life() != time.Hour || !s.Expires.Equal(at(90)) {
		t.Errorf("awake: it ran %v of %v, until %v", got, s.Life(), s.Expires)
	}
}
