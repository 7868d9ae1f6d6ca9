package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/RelevanceAI/harvest/client/errors"
)

// calm is how long failed tests wait for an idle machine before they run again.
var calm = 90 * time.Second

// grace is the extra time of failed tests after the end of the long ones.
const grace = 3 * time.Minute

// retry runs failed tests again, each alone. A test that passes then is flaky, which is also a defect but does
// not fail the run. Nothing runs again after a data race, and no quick test after a panic or a time limit.
func (s *schedule) retry(ctx context.Context) {
	var units []unit
	for _, r := range s.results {
		if s.o.retries == 0 || r.ok() || r.race || r.broken && !r.long {
			continue
		}
		for _, test := range r.failed() {
			units = append(units, unit{pkg: r.pkg, tests: []string{test}, long: r.long, limit: longLimit})
		}
	}
	if len(units) == 0 {
		return
	}
	s.say("waiting until the machine is idle, to run %d failed tests again", len(units))
	quiet(ctx)
	for _, u := range units {
		for n := 1; n <= s.o.retries && ctx.Err() == nil; n++ {
			if s.o.end > 0 { // failed tests get some extra time
				if u.limit = min(u.limit, s.o.end+grace-time.Since(s.begun)); u.limit < grace/6 {
					fmt.Fprintf(s.w, "== no time to run it again: %s\n", u)
					break
				}
			}
			fmt.Fprintf(s.w, "== again, alone: %s\n", u)
			before := len(s.results)
			passed := s.do(ctx, u)
			if len(s.results) == before { // stopped, or it did not start
				break
			}
			s.results = s.results[:before]
			if passed {
				s.again[u.String()] = "flaky"
				break
			}
		}
	}
	s.part("failed tests again")
}

// quiet waits, up to a limit, until there are fewer runnable processes than processors.
func quiet(ctx context.Context) {
	for deadline := time.Now().Add(calm); time.Now().Before(deadline); {
		text, err := os.ReadFile("/proc/loadavg")
		load := 0.0
		if _, scanned := fmt.Sscan(string(text), &load); err != nil || scanned != nil ||
			load < float64(runtime.NumCPU()) {
			return
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// report prints the times and the failed, flaky and remaining tests, and writes the artefacts. It returns an
// error if a test failed.
func (s *schedule) report() error {
	s.times()
	if len(s.left) > 0 {
		fmt.Fprintf(s.w, "\n== left for next time: %d\n%s\n", len(s.left), strings.Join(s.left, "\n"))
	}
	left := strings.Join(append(s.left, ""), "\n") // for the coverage gate
	if err := os.WriteFile(filepath.Join(s.o.out, "left.txt"), []byte(left), 0o644); err != nil {
		return errors.Wrapf(err, "record the tests without time")
	}
	failed, flaky, err := s.verdicts()
	if err != nil {
		return err
	}
	if len(flaky) > 0 {
		fmt.Fprintf(s.w, "\n== FLAKY, failed and then passed alone: each is a defect\n%s\n", strings.Join(flaky, "\n"))
	}
	counts := map[string]int{}
	for _, r := range s.results {
		for _, o := range r.outcomes {
			if o.test != "" {
				counts[o.action]++
			}
		}
	}
	text, err := json.Marshal(s.expected)
	if err == nil {
		err = os.WriteFile(s.record(), text, 0o644)
	}
	if err != nil {
		return errors.Wrapf(err, "record the durations")
	}
	for _, e := range s.errs {
		failed = append(failed, e.Error())
	}
	if len(failed) > 0 {
		fmt.Fprintf(s.w, "\n== FAILED\n%s\n", strings.Join(failed, "\n"))
	}
	fmt.Fprintf(s.w, "\n%d passed, %d failed, %d skipped\n", counts["pass"], counts["fail"], counts["skip"])
	switch {
	case len(failed) > 0:
		return errors.Errorf("%d tests failed; their output is above and in %s", len(failed),
			filepath.Join(s.o.out, "logs"))
	case counts["pass"] == 0:
		return errors.Errorf("no test ran")
	}
	return nil
}

// verdicts separates permanent failures from tests that passed alone. It appends the output of the latter to
// flaky.md.
func (s *schedule) verdicts() (failed, flaky []string, err error) {
	for _, r := range s.results {
		if r.ok() {
			continue
		}
		names := r.failed()
		if len(names) == 0 || r.race || r.broken && !r.long {
			failed = append(failed, r.String())
			continue
		}
		for _, test := range names {
			u := unit{pkg: r.pkg, tests: []string{test}}
			if s.again[u.String()] != "flaky" {
				failed = append(failed, u.String())
				continue
			}
			flaky = append(flaky, u.String())
			err = errors.Join(err, s.appendFlaky(u, r))
		}
	}
	return failed, flaky, err
}

func (s *schedule) appendFlaky(u unit, r *result) error {
	f, err := os.OpenFile(filepath.Join(s.o.out, "flaky.md"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return errors.Wrapf(err, "open flaky.md")
	}
	_, err = fmt.Fprintf(f, "## %s, %s\n\n```\n%s\n```\n\n", u, time.Now().UTC().Format(time.RFC3339),
		strings.TrimSpace(r.output))
	return errors.Wrapf(errors.Join(err, f.Close()), "append to flaky.md")
}

// times prints the durations of the parts, the packages and the slowest tests.
func (s *schedule) times() {
	fmt.Fprintf(s.w, "\n== parts, when each had ended, and the free disk space\n")
	for _, p := range s.parts {
		fmt.Fprintf(s.w, "%8.0f s  %-20s %8s\n", p.at.Seconds(), p.name, units.BytesSize(float64(p.free)))
	}
	fmt.Fprintln(s.w, s.disk)
	packages := map[string]time.Duration{}
	type timed struct {
		name    string
		elapsed time.Duration
	}
	var tests, sums []timed
	for _, r := range s.results {
		packages[r.pkg.name] += r.elapsed
		for _, o := range r.outcomes {
			if o.test != "" && !strings.Contains(o.test, "/") {
				tests = append(tests, timed{r.pkg.name + " " + o.test, o.elapsed})
			}
		}
	}
	for name, elapsed := range packages {
		sums = append(sums, timed{name, elapsed})
	}
	for _, table := range []struct {
		title string
		rows  []timed
		most  int
	}{{"packages", sums, len(sums)}, {"the twenty slowest tests", tests, 20}} {
		slices.SortFunc(table.rows, func(a, b timed) int {
			return cmp.Or(cmp.Compare(b.elapsed, a.elapsed),
				cmp.Compare(a.name, b.name))
		})
		fmt.Fprintf(s.w, "\n== %s\n", table.title)
		for _, row := range table.rows[:min(table.most, len(table.rows))] {
			fmt.Fprintf(s.w, "%8.1f s  %s\n", row.elapsed.Seconds(), row.name)
		}
	}
}
