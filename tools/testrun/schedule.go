package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// schedule runs units and collects their results.
type schedule struct {
	o        options
	begun    time.Time
	w        io.Writer
	env      []string
	prepared chan struct{} // closed when the shared images exist or failed
	parts    []part
	expected map[string]time.Duration // by unit: its last duration
	disk     *disk                    // of temporary files

	mu      sync.Mutex
	results []*result         // guarded by mu
	left    []string          // guarded by mu: units without time left
	again   map[string]string // guarded by mu: outcomes of failed tests that ran again
	errs    []error           // guarded by mu: errors of units that could not run
	running []started         // guarded by mu: units that run, the longest first
}

// started is a unit that runs.
type started struct {
	unit string
	at   time.Time
}

// part is a stage of the run, when it ended, and the disk space that was free then.
type part struct {
	name string
	at   time.Duration
	free uint64
}

func newSchedule(o options, begun time.Time, w io.Writer) *schedule {
	s := &schedule{o: o, begun: begun, w: w, prepared: make(chan struct{}), expected: map[string]time.Duration{},
		again: map[string]string{}, disk: newDisk(os.TempDir())}
	// Without a record of earlier runs, the sizes of the test files decide the order.
	if text, err := os.ReadFile(s.record()); err == nil {
		_ = json.Unmarshal(text, &s.expected)
	}
	return s
}

// record is the file with the durations of earlier runs. They only decide the order.
func (s *schedule) record() string { return filepath.Join(s.o.out, "durations.json") }

func (s *schedule) part(name string) {
	s.parts = append(s.parts, part{name, time.Since(s.begun), s.disk.measure()})
}

// prepare runs the tests that build the shared images in the background while the compiler works.
func (s *schedule) prepare(ctx context.Context, first []*pkg) {
	go func() {
		defer close(s.prepared)
		for _, name := range s.o.first {
			dir, test, _ := strings.Cut(name, ":")
			for _, p := range first {
				if p.name == dir && !s.do(ctx, unit{pkg: p, tests: []string{test}, limit: longLimit}) {
					return
				}
			}
		}
	}()
}

// wait waits for the shared images.
func (s *schedule) wait() { <-s.prepared }

// quickUnits returns the packages, the slowest first.
func quickUnits(list []*pkg, s *schedule) (units []unit) {
	for _, p := range list {
		u := unit{pkg: p, limit: quickLimit, waits: s.o.wait != "" && strings.HasPrefix(p.name, s.o.wait)}
		for _, f := range s.o.first {
			if dir, test, _ := strings.Cut(f, ":"); dir == p.name {
				u.skip = append(u.skip, test) // it ran already
			}
		}
		units = append(units, u)
	}
	slices.SortStableFunc(units, func(a, b unit) int {
		return cmp.Or(cmp.Compare(s.expected[b.String()], s.expected[a.String()]), cmp.Compare(b.pkg.size, a.pkg.size))
	})
	return units
}

// longUnits returns the long tests. Each belongs to one of three thirds, and the turn selects the first third.
func longUnits(list []*pkg, s *schedule) (units []unit) {
	for _, p := range list {
		for _, test := range p.long {
			units = append(units, unit{pkg: p, tests: []string{test}, long: true, limit: longLimit,
				waits: s.o.wait != "" && strings.HasPrefix(p.name, s.o.wait)})
		}
	}
	slices.SortStableFunc(units, func(a, b unit) int {
		return cmp.Or(cmp.Compare(third(a, s.o.turn), third(b, s.o.turn)),
			cmp.Compare(s.expected[b.String()], s.expected[a.String()]))
	})
	return units
}

// third returns how many turns before turn the unit was in the first third: 0, 1 or 2.
func third(u unit, turn int) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, u.String())
	return ((int(h.Sum32()%3)-turn)%3 + 3) % 3
}

// run executes units, several at a time. Units that wait for the images start when the images exist.
func (s *schedule) run(ctx context.Context, units []unit) {
	var mu sync.Mutex
	next := func() (unit, bool) {
		mu.Lock()
		defer mu.Unlock()
		ready := false
		select {
		case <-s.prepared:
			ready = true
		default:
		}
		i := slices.IndexFunc(units, func(u unit) bool { return ready || !u.waits })
		if i < 0 && len(units) > 0 {
			s.say("waiting for the shared images")
			s.wait()
			i = 0
		}
		if i < 0 {
			s.sayRunning()
			return unit{}, false
		}
		u := units[i]
		units = slices.Delete(units, i, i+1)
		s.begin(u) // before another worker looks for the last ones
		return u, true
	}
	var workers sync.WaitGroup
	for range s.o.slots {
		workers.Go(func() {
			for u, ok := next(); ok && ctx.Err() == nil; u, ok = next() {
				if u.long && s.o.start > 0 && time.Since(s.begun)+s.expected[u.String()] > s.o.start {
					s.mu.Lock()
					s.left = append(s.left, u.String())
					s.mu.Unlock()
					s.end(u)
					continue
				}
				s.do(ctx, u)
			}
		})
	}
	workers.Wait()
}

// say prints a line about the run itself.
func (s *schedule) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.w, "== %s (after %d s)\n", fmt.Sprintf(format, args...), int(time.Since(s.begun).Seconds()))
}

// begin notes that a unit runs. It may be called twice.
func (s *schedule) begin(u unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.running, func(r started) bool { return r.unit == u.String() }) {
		s.running = append(s.running, started{u.String(), time.Now()})
	}
}

// end notes that a unit does not run.
func (s *schedule) end(u unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(r started) bool { return r.unit == u.String() })
}

// sayRunning prints the units that run when no other one can start, and for how long.
func (s *schedule) sayRunning() {
	s.mu.Lock()
	var names []string
	for _, r := range s.running {
		names = append(names, fmt.Sprintf("%s (%d s so far)", r.unit, int(time.Since(r.at).Seconds())))
	}
	s.mu.Unlock()
	if len(names) > 0 {
		s.say("waiting for %s", strings.Join(names, ", "))
	}
}

// do executes a unit, keeps its result and prints a line about it. It reports whether the unit passed.
func (s *schedule) do(ctx context.Context, u unit) bool {
	var end time.Time
	if u.long && s.o.end > 0 {
		end = s.begun.Add(s.o.end)
	}
	s.begin(u)
	defer s.end(u)
	r, err := u.execute(ctx, s.o, s.env, end)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.errs = append(s.errs, err)
		fmt.Fprintf(s.w, "FAIL\t%s\t%v\n", u, err)
		return false
	case r.cut:
		s.left = append(s.left, u.String()+" (stopped)")
		fmt.Fprintf(s.w, "cut \t%s\t%.1fs\n", u, r.elapsed.Seconds())
		return true
	}
	s.results = append(s.results, r)
	s.expected[u.String()] = r.elapsed
	if !r.ok() {
		fmt.Fprintf(s.w, "%s\nFAIL\t%s\t%.1fs\n", strings.TrimSpace(r.output), name(r.unit), r.elapsed.Seconds())
		return false
	}
	fmt.Fprintf(s.w, "ok  \t%s\t%.1fs\n", name(r.unit), r.elapsed.Seconds())
	return true
}

// name returns the package in the form of go test, and the test if there is only one.
func name(u unit) string {
	if len(u.tests) > 0 {
		return u.pkg.path + "\t" + strings.Join(u.tests, " ")
	}
	return u.pkg.path
}
