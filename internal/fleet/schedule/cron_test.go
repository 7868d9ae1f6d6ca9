package schedule_test

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the same zones on every machine

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// mission: F8
func TestTimes(t *testing.T) {
	t.Parallel()
	const newYork, saoPaulo, lordHowe = "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe"
	for name, c := range map[string]struct {
		cron, zone, after string
		want              []string
	}{
		"every half hour": {"*/30 * * * *", "", "2026-10-02T12:00:00Z",
			[]string{"2026-10-02T12:30:00Z", "2026-10-02T13:00:00Z"}},
		"in a zone": {"0 9 * * 1-5", "Asia/Tokyo", "2026-10-02T00:00:00Z",
			[]string{"2026-10-05T00:00:00Z", "2026-10-06T00:00:00Z"}},
		"daily": {"@daily", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"}},
		"hourly": {"@hourly", newYork, "2026-11-01T04:30:00Z",
			[]string{"2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"}},
		"either day": {"0 0 13 * 5", "", "2026-10-02T12:00:00Z",
			[]string{"2026-10-09T00:00:00Z", "2026-10-13T00:00:00Z"}},
		// As Debian's cron: findings/cron-steps-of-days.sh.
		"both days, for '*' with a step": {"0 0 */2 * 1", "", "2026-10-02T12:00:00Z",
			[]string{"2026-10-05T00:00:00Z", "2026-10-19T00:00:00Z"}},
		"both days, for weekdays with a step": {"0 0 1-7 * */2", "", "2026-10-02T12:00:00Z",
			[]string{"2026-10-03T00:00:00Z", "2026-10-04T00:00:00Z", "2026-10-06T00:00:00Z",
				"2026-11-01T00:00:00Z"}},
		"either day, for a range with a step": {"0 0 1-31/2 * 1", "", "2026-10-02T12:00:00Z",
			[]string{"2026-10-03T00:00:00Z", "2026-10-05T00:00:00Z", "2026-10-07T00:00:00Z",
				"2026-10-09T00:00:00Z", "2026-10-11T00:00:00Z", "2026-10-12T00:00:00Z"}},
		"weekend": {"0 0 * * 6-7", "", "2026-10-02T12:00:00Z",
			[]string{"2026-10-03T00:00:00Z", "2026-10-04T00:00:00Z", "2026-10-10T00:00:00Z"}},
		"names": {"0 0 * JAN Sun", "", "2026-10-02T12:00:00Z", []string{"2027-01-03T00:00:00Z"}},
		"every": {"@every 90m", newYork, "2026-10-02T12:00:01Z",
			[]string{"2026-10-02T13:30:01Z", "2026-10-02T15:00:01Z"}},
		"leap day": {"0 0 29 2 *", "", "2026-10-02T12:00:00Z", []string{"2028-02-29T00:00:00Z"}},

		"skipped: runs at once after": {"30 2 * * *", newYork, "2026-03-07T12:00:00Z",
			[]string{"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"}},
		"skipped: several are one": {"0,30 2 * * *", newYork, "2026-03-08T06:00:00Z",
			[]string{"2026-03-08T07:00:00Z", "2026-03-09T06:00:00Z"}},
		"skipped: the hour after is as ever": {"30 3 * * *", newYork, "2026-03-08T06:00:00Z",
			[]string{"2026-03-08T07:30:00Z", "2026-03-09T07:30:00Z"}},
		"skipped: midnight": {"0 0 * * *", saoPaulo, "2018-11-03T12:00:00Z",
			[]string{"2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"}},
		"skipped: half an hour": {"15 2 * * *", lordHowe, "2026-10-02T16:00:00Z",
			[]string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		"skipped: '*' follows the clock": {"*/30 * * * *", newYork, "2026-03-08T06:15:00Z",
			[]string{"2026-03-08T06:30:00Z", "2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z"}},

		"twice: the first time only": {"30 1 * * *", newYork, "2026-10-31T12:00:00Z",
			[]string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
		"twice: begun in between": {"30 1 * * *", newYork, "2026-11-01T06:10:00Z",
			[]string{"2026-11-02T06:30:00Z"}},
		"twice: several minutes": {"0,30 1 * * *", newYork, "2026-11-01T04:59:00Z",
			[]string{"2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:00:00Z"}},
		"twice: half an hour": {"45 1 * * *", lordHowe, "2026-04-03T15:00:00Z",
			[]string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		"twice: '*' follows the clock": {"*/30 * * * *", newYork, "2026-11-01T05:15:00Z",
			[]string{"2026-11-01T05:30:00Z", "2026-11-01T06:00:00Z", "2026-11-01T06:30:00Z", "2026-11-01T07:00:00Z"}},
		"twice: the hour after is as ever": {"0 2 * * *", newYork, "2026-11-01T05:15:00Z",
			[]string{"2026-11-01T07:00:00Z", "2026-11-02T07:00:00Z"}},
	} {
		times, err := schedule.ParseTimes(c.cron, c.zone)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		next := at(t, c.after)
		for _, want := range c.want {
			if next = times.Next(next); !next.Equal(at(t, want)) {
				t.Errorf("%s: %s, want %s", name, next.Format(time.RFC3339), want)
			}
		}
	}
}

func TestNextAfter(t *testing.T) {
	t.Parallel()
	every, err := schedule.ParseTimes("@every 10m", "")
	if err != nil {
		t.Fatal(err)
	}
	last := at(t, "2026-10-02T12:00:00Z")
	for now, want := range map[string]string{
		"2026-10-02T12:00:00Z": "2026-10-02T12:10:00Z", "2026-10-02T12:09:59Z": "2026-10-02T12:10:00Z",
		"2026-10-02T12:10:00Z": "2026-10-02T12:20:00Z", "2026-10-02T15:03:00Z": "2026-10-02T15:10:00Z",
		"2026-10-02T11:00:00Z": "2026-10-02T12:10:00Z",
	} {
		if got := every.NextAfter(last, at(t, now)); !got.Equal(at(t, want)) {
			t.Errorf("at %s: %s, want %s", now, got, want)
		}
	}
}

func TestBadTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cron, zone, want string }{
		{"", "", "is no schedule"},
		{"x", "", "expected exactly 5 fields"},
		{"* * * * * *", "", "expected exactly 5 fields"},
		{"60 * * * *", "", "above maximum"},
		{"0 0 31 2 *", "", "no such time ever comes"},
		{"@reboot", "", "@reboot"},
		{"@every x", "", "whole seconds"},
		{"@every 0s", "", "whole seconds"},
		{"@every -1h", "", "whole seconds"},
		{"@every 1.5s", "", "whole seconds"},
		{"TZ=UTC * * * * *", "", "does not belong"},
		{"* * * * *", "Nowhere/Land", "no time zone"},
		{"* * * * *", "Local", "no time zone"},
		{"* * * * *", "../etc/passwd", "no time zone"},
	} {
		_, err := schedule.ParseTimes(c.cron, c.zone)
		if !errors.Is(err, errors.Invalid) || !strings.Contains(errors.Message(err), c.want) ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%q in %q: %v, want %q", c.cron, c.zone, err, c.want)
		}
	}
}

// FuzzTimes checks that each accepted expression is due again and again, at increasing times.
func FuzzTimes(f *testing.F) {
	for _, seed := range []string{"*/30 * * * *", "30 2 * * *", "0 0 29 2 *", "@daily", "@every 90m",
		"1-5,7 */3 ? 1 MON-FRI", "H * * * *", "0 0 L * *", "@every 9999999h"} {
		for _, zone := range []string{"", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"} {
			f.Add(seed, zone, int64(1793000000))
		}
	}
	f.Fuzz(func(t *testing.T, cron, zone string, from int64) {
		times, err := schedule.ParseTimes(cron, zone)
		if err != nil || from < 0 || from > 4e9 {
			return
		}
		last := time.Unix(from, 0)
		for range 50 {
			next := times.Next(last)
			if next.IsZero() {
				return // such as 29 February, near the end of the searched range
			}
			if !next.After(last) {
				t.Fatalf("%q in %q: after %s comes %s", cron, zone, last, next)
			}
			last = next
		}
	})
}
