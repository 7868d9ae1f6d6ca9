package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// recorder collects the results of a row.
type recorder struct {
	row    *Row
	lab    *lab
	stderr io.Writer
}

// sample is the result of one run, by measure.
type sample map[string]float64

// side is one of the competitors that run in turn.
type side struct {
	name string
	run  func(ctx context.Context) (sample, error)
}

// settle is the pause before each run, so that a run does not pay for work that the previous one left behind.
const settle = 100 * time.Millisecond

// measure returns the row's measure of that name. It creates a missing one with that unit.
func (r *recorder) measure(name, unit string) *Measure {
	for _, m := range r.row.Measures {
		if m.Name == name {
			return m
		}
	}
	m := &Measure{Name: name, Unit: unit}
	r.row.Measures = append(r.row.Measures, m)
	return m
}

func (m *Measure) series(side string) *Series {
	s := m.side(side)
	if s == nil {
		s = &Series{Side: side, Values: []float64{}}
		m.Series = append(m.Series, s)
	}
	return s
}

// keptErrors is how many errors of a series are kept.
const keptErrors = 3

// add records a successful run.
func (m *Measure) add(side string, v float64) {
	s := m.series(side)
	s.Values = append(s.Values, v)
}

// fail records a failed run.
func (r *recorder) fail(m *Measure, side string, err error) {
	s := m.series(side)
	s.Failed++
	if len(s.Errors) < keptErrors {
		s.Errors = append(s.Errors, r.lab.anonymous(err.Error()))
	}
}

// turns runs every side n times, in turn, after a first run that only counts if it fails. Values of a run that
// are not among measures are recorded as their parts, in milliseconds.
func (r *recorder) turns(ctx context.Context, n int, measures []*Measure, sides ...side) error {
	for turn := range n + 1 {
		for _, s := range sides {
			if err := pause(ctx, settle); err != nil {
				return err
			}
			values, err := s.run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			switch {
			case err != nil:
				for _, m := range measures {
					r.fail(m, s.name, err)
				}
			case turn > 0:
				r.addAll(s.name, values, measures)
			}
		}
		fmt.Fprintf(r.stderr, "\r%d/%d ", turn, n)
	}
	fmt.Fprintf(r.stderr, "\r%s\r", strings.Repeat(" ", 20))
	return nil
}

func (r *recorder) addAll(side string, values sample, measures []*Measure) {
	for _, m := range measures {
		if v, ok := values[m.Name]; ok {
			m.add(side, v)
			delete(values, m.Name)
		}
	}
	for _, name := range sortedKeys(values) {
		part := r.measure(name, "ms")
		part.Part = true
		part.add(side, values[name])
	}
}

func (r *recorder) check(name string, ok bool, detail string) {
	r.row.Checks = append(r.row.Checks, Check{Name: name, OK: ok, Detail: r.lab.anonymous(detail)})
}

func (r *recorder) missing(peer string, why error) {
	r.row.Missing = append(r.row.Missing, Missing{Peer: peer, Why: r.lab.anonymous(why.Error())})
}

func (r *recorder) note(format string, args ...any) {
	r.row.Notes = append(r.row.Notes, fmt.Sprintf(format, args...))
}

// count is the number of runs of a row's sides: the requested number, or else short or full.
func (r *recorder) count(short, full int) int {
	switch {
	case r.lab.opts.turns > 0:
		return r.lab.opts.turns
	case r.lab.opts.short:
		return short
	}
	return full
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ms is a time in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
