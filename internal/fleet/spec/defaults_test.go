package spec

import (
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// TestDefaultsFitTheMachine checks that defaults do not exceed a small machine, and that given values stay.
// mission: F5
func TestDefaultsFitTheMachine(t *testing.T) {
	t.Parallel()
	small := Machine{CPU: 0.5, Memory: 1 << 30}
	want := engine.Limits{CPU: 0.5, Memory: 1 << 30, Disk: 10 << 30, Processes: 1024, Files: 65536,
		VolumeFiles: 655360}
	if diff := cmp.Diff(want, small.Limits(engine.Limits{})); diff != "" {
		t.Errorf("a small machine (-want +got):\n%s", diff)
	}
	large := Machine{CPU: 64, Memory: 1 << 40}
	given := engine.Limits{CPU: 8, Memory: 1 << 35, Disk: 1 << 30, Processes: 1, Files: 2}
	want = given
	want.VolumeFiles = 200_000 // the least, also for a small disk
	if diff := cmp.Diff(want, large.Limits(given)); diff != "" {
		t.Errorf("given values (-want +got):\n%s", diff)
	}
	if l := large.Limits(engine.Limits{}); l.CPU != 1 || l.Memory != 2<<30 {
		t.Errorf("a large machine: %+v", l)
	}
	m, err := Machine{}.WithDefaults()
	if err != nil || m.CPU != float64(runtime.NumCPU()) || m.Memory < 1<<26 {
		t.Errorf("this machine: %+v, %v", m, err)
	}
	if again, err := small.WithDefaults(); err != nil || again != small {
		t.Errorf("a given machine: %+v, %v", again, err)
	}
}

// TestConfigurationIsChecked checks the bounds of defaults: each bad value is a problem of its own.
// mission: F5
func TestConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	machine := Machine{CPU: 2, Memory: 1 << 30}
	good := machine.Limits(engine.Limits{})
	for name, c := range map[string]struct {
		change func(*engine.Limits, *Timeouts)
		want   string // in the error; "" for none
	}{
		"defaults":         {func(*engine.Limits, *Timeouts) {}, ""},
		"the whole":        {func(l *engine.Limits, _ *Timeouts) { l.CPU, l.Memory = 2, 1<<30 }, ""},
		"too many cores":   {func(l *engine.Limits, _ *Timeouts) { l.CPU = 2.1 }, "number of cores"},
		"no number":        {func(l *engine.Limits, _ *Timeouts) { l.CPU = math.NaN() }, "number of cores"},
		"too few cores":    {func(l *engine.Limits, _ *Timeouts) { l.CPU = MinCPU / 2 }, "number of cores"},
		"too much memory":  {func(l *engine.Limits, _ *Timeouts) { l.Memory++ }, "default memory"},
		"too little":       {func(l *engine.Limits, _ *Timeouts) { l.Memory = MinMemory - 1 }, "default memory"},
		"no disk":          {func(l *engine.Limits, _ *Timeouts) { l.Disk = MinDisk - 1 }, "limits of disk"},
		"no processes":     {func(l *engine.Limits, _ *Timeouts) { l.Processes = -1 }, "limits of disk"},
		"a long life":      {func(_ *engine.Limits, t *Timeouts) { t.Life = t.MaxLife + 1 }, "default lifetime"},
		"a negative life":  {func(_ *engine.Limits, t *Timeouts) { t.Life = -1 }, "default lifetime"},
		"a long idle time": {func(_ *engine.Limits, t *Timeouts) { t.Idle = t.MaxLife + 1 }, "idle limit"},
		"a long command":   {func(_ *engine.Limits, t *Timeouts) { t.Exec = t.MaxLife + 1 }, "limit of commands"},
	} {
		l, times := good, Timeouts{}.WithDefaults()
		c.change(&l, &times)
		var p Problems
		machine.CheckLimits(&p, l)
		times.Check(&p)
		err := p.Err()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want == "":
		case !errors.Is(err, errors.Invalid), !strings.Contains(errors.Message(err), c.want),
			strings.Contains(errors.Message(err), "things are wrong"):
			t.Errorf("%s: %v, want one problem with %q", name, err, c.want)
		}
	}
}

// TestShortLivesBoundDefaults checks that a maximum lifetime below the defaults bounds them.
func TestShortLivesBoundDefaults(t *testing.T) {
	t.Parallel()
	want := Timeouts{MaxLife: time.Minute, Life: time.Minute, Exec: time.Minute, Grace: 2 * time.Second}
	if got := (Timeouts{MaxLife: time.Minute}).WithDefaults(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestCommand checks that a command is refused for all its problems at once, and which time limit it gets.
func TestCommand(t *testing.T) {
	t.Parallel()
	rules := Rules{Engine: "stub", Timeouts: Timeouts{Exec: time.Minute, MaxLife: time.Hour}}
	limit, err := rules.Command(engine.Command{Args: []string{"x"}}, 0)
	if err != nil || limit != time.Minute {
		t.Errorf("%v, %v, want the default", limit, err)
	}
	if limit, err = rules.Command(engine.Command{Args: []string{"x"}}, time.Hour); err != nil || limit != time.Hour {
		t.Errorf("%v, %v, want the request's", limit, err)
	}
	_, err = rules.Command(engine.Command{Args: []string{"x"}, User: "u", Terminal: &engine.Size{Rows: 1, Cols: 1}},
		time.Hour+1)
	wantError(t, err, errors.Invalid, "3 things", "does not support users", "does not support terminals",
		"timeout_seconds")
	_, err = rules.Command(engine.Command{Args: []string{"x"}, User: "u"}, 0)
	wantError(t, err, errors.Unsupported, "the engine stub does not support users", "omit user")
}

func TestUserTags(t *testing.T) {
	t.Parallel()
	all := map[string]string{"harvest.session": "s", "harvest": "mine", "harvests.x": "mine"}
	want := map[string]string{"harvest": "mine", "harvests.x": "mine"}
	if diff := cmp.Diff(want, UserTags(all)); diff != "" || len(all) != 3 {
		t.Errorf("%v, (-want +got):\n%s", all, diff)
	}
	if UserTags(nil) != nil {
		t.Error("no tags became an empty map")
	}
}

func TestVolumesOfPlaces(t *testing.T) {
	t.Parallel()
	name := s3VolumeName("bucket", "a/b")
	for _, equal := range []string{"/a/b", "a/b/", "//a/b//"} {
		if got := s3VolumeName("bucket", equal); got != name {
			t.Errorf("%q is %s, want %s", equal, got, name)
		}
	}
	for _, other := range [][2]string{{"bucket", "a"}, {"bucket", ""}, {"bucket/a", "b"}, {"other", "a/b"}} {
		if got := s3VolumeName(other[0], other[1]); got == name {
			t.Errorf("%v is the same volume %s", other, got)
		}
	}
	if long := s3VolumeName(strings.Repeat("b", 63), ""); len(long) != len("s3-")+40+1+12 {
		t.Errorf("%s has %d bytes", long, len(long))
	}
}
