package schedule

import (
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"

	"github.com/RelevanceAI/harvest/errors"
)

// Times says when a job is due.
//
// It is five fields as in crontab(5), minute, hour, day of the month, month and day of the week, or @yearly, @monthly, @weekly,
// @daily, @hourly, or "@every 90m". The fields are read in a time zone. Where clocks change, it is as Debian's cron(8) has it: a
// job at a fixed time that is skipped runs at once when the skipped time is over, one whose time comes twice runs the first time
// only; a job with '*' among its minutes or hours follows the clock as it goes.
type Times struct {
	zone  *time.Location
	fixed bool          // in hour and minute
	every time.Duration // of @every; otherwise 0
	spec  cron.Schedule // of the fields in UTC if fixed, else in zone
}

const fieldsRemedy = `write five fields such as "*/30 * * * *", or @hourly, @daily, @weekly, @monthly, @yearly, or "@every 90m"`

// ParseTimes reads an expression and the name of a time zone, such as "Europe/Berlin"; "" is UTC. Invalid if one is wrong, or if
// no such time ever comes.
func ParseTimes(expression, zone string) (Times, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return Times{}, errors.Remedy(errors.Newf(errors.Invalid, "there is no time zone %.80q", zone), "name one as \"Europe/Berlin\", or leave it out for UTC")
	}
	expression = strings.TrimSpace(expression)
	wrong := func(reason string) error {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.120q is no schedule: %.200s", expression, reason), "%s", fieldsRemedy)
	}
	if text, ok := strings.CutPrefix(expression, "@every "); ok {
		d, err := time.ParseDuration(strings.TrimSpace(text))
		if err != nil || d < time.Second || d%time.Second != 0 {
			return Times{}, wrong("after @every comes a time of whole seconds, such as 90m")
		}
		return Times{zone: loc, every: d}, nil
	}
	fields := strings.Fields(expression)
	if strings.Contains(expression, "=") {
		return Times{}, wrong("the time zone does not belong in it")
	}
	t := Times{zone: loc, fixed: expression != "@hourly"}
	if len(fields) > 2 && (strings.Contains(fields[0], "*") || strings.Contains(fields[1], "*")) {
		t.fixed = false
	}
	parser, err := cron.TryNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom)
	if err != nil {
		return Times{}, errors.Wrapf(err, "the parser of schedules")
	}
	in := loc.String()
	if t.fixed {
		in = "UTC"
	}
	if t.spec, err = parser.Parse("CRON_TZ=" + in + " " + expression); err != nil {
		return Times{}, wrong(err.Error())
	}
	if t.spec.Next(time.Now()).IsZero() {
		return Times{}, wrong("no such time ever comes")
	}
	return t, nil
}

// Next returns the first time after a time that the schedule is due. For @every, after is when it was due last.
func (t Times) Next(after time.Time) time.Time {
	switch {
	case t.every > 0:
		return after.Add(t.every).UTC()
	case !t.fixed:
		return t.spec.Next(after.In(t.zone)).UTC()
	}
	// The fields are looked up on a clock that never changes, and what it shows is then found in the zone.
	wall := clockOf(after.In(t.zone))
	for {
		if wall = t.spec.Next(wall); wall.IsZero() {
			return wall
		}
		if due := t.find(wall); due.After(after) {
			return due.UTC()
		}
	}
}

// NextAfter returns the first due time after now of a job that was due at last.
func (t Times) NextAfter(last, now time.Time) time.Time {
	if t.every == 0 {
		return t.Next(now)
	}
	if missed := now.Sub(last) / t.every; missed > 0 {
		last = last.Add(missed * t.every)
	}
	return t.Next(last)
}

// clockOf returns what the clock shows at t, as if it were in UTC.
func clockOf(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// find returns the first time at which the zone's clock shows wall, or, where it never does, when it is past that.
func (t Times) find(wall time.Time) time.Time {
	_, before := wall.Add(-24 * time.Hour).In(t.zone).Zone()
	_, after := wall.Add(24 * time.Hour).In(t.zone).Zone()
	earlier := wall.Add(-time.Duration(max(before, after)) * time.Second)
	later := wall.Add(-time.Duration(min(before, after)) * time.Second)
	for _, candidate := range []time.Time{earlier, later} {
		if clockOf(candidate.In(t.zone)).Equal(wall) {
			return candidate
		}
	}
	change, _ := later.In(t.zone).ZoneBounds()
	return change
}
