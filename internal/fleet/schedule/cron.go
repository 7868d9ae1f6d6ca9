package schedule

import (
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Times is the schedule of a job.
//
// It consists of five fields as in crontab(5), minute, hour, day of the month, month and day of the week, or it is
// @yearly, @monthly, @weekly, @daily, @hourly, or "@every 90m". The fields are interpreted in a time zone. Daylight
// saving changes are handled as in Debian's cron(8): a job at a fixed time that is skipped runs immediately after the
// skipped time, and one whose time occurs twice runs the first time only. A job with '*' in its minutes or hours
// follows the clock.
type Times struct {
	zone  *time.Location
	fixed bool          // hour and minute are fixed
	every time.Duration // of @every; otherwise 0
	spec  cron.Schedule // for the fields: in UTC if fixed, else in zone
}

const fieldsRemedy = `write five fields such as "*/30 * * * *", or @hourly, @daily, @weekly, @monthly, @yearly, or ` +
	`"@every 90m"`

// ParseTimes parses an expression and the name of a time zone, such as "Europe/Berlin"; "" is UTC. It returns Invalid
// if one is malformed, or if the schedule never comes due.
func ParseTimes(expression, zone string) (Times, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return Times{}, errors.Remedy(errors.Newf(errors.Invalid, "there is no time zone %.80q", zone),
			"name one as \"Europe/Berlin\", or leave it out for UTC")
	}
	expression = strings.TrimSpace(expression)
	wrong := func(reason string) error {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.120q is no schedule: %.200s", expression, reason),
			"%s", fieldsRemedy)
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
	parts := cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor
	if !starredDays(fields) {
		parts |= cron.DowOrDom
	}
	parser, err := cron.TryNewParser(parts)
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

// starredDays reports whether one of the two fields of days begins with '*', as in "*/2". Then a day must match both
// fields. Cron does it so, although crontab(5) speaks of '*' alone; the package cron does not.
func starredDays(fields []string) bool {
	return len(fields) > 4 && (strings.HasPrefix(fields[2], "*") || strings.HasPrefix(fields[4], "*"))
}

// Next returns the first time after a time at which the schedule is due. For @every, after is the previous due time.
func (t Times) Next(after time.Time) time.Time {
	switch {
	case t.every > 0:
		return after.Add(t.every).UTC()
	case !t.fixed:
		return t.spec.Next(after.In(t.zone)).UTC()
	}
	// Evaluate the fields on a clock without time changes, and then find the result in the zone.
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

// NextAfter returns the first due time after now for a job whose previous due time was last.
func (t Times) NextAfter(last, now time.Time) time.Time {
	if t.every == 0 {
		return t.Next(now)
	}
	if missed := now.Sub(last) / t.every; missed > 0 {
		last = last.Add(missed * t.every)
	}
	return t.Next(last)
}

// clockOf returns the clock reading at t, as if it were in UTC.
func clockOf(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// find returns the first time at which the zone's clock shows wall. If the clock skips wall, find returns the time of
// the change.
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
