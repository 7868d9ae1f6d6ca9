package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// quickLimit bounds a binary of the quick suite; longLimit bounds one long test.
const quickLimit, longLimit = 20 * time.Minute, 40 * time.Minute

// kept bounds the kept output of one test, in bytes.
const kept = 256 << 10

// unit is one run of a test binary.
type unit struct {
	pkg   *pkg
	tests []string // the top-level tests to run; none for all
	skip  []string // top-level tests to leave out
	long  bool     // without -test.short
	waits bool     // for the shared images
	limit time.Duration
}

func (u unit) String() string {
	if len(u.tests) == 0 {
		return u.pkg.name
	}
	return u.pkg.name + " " + strings.Join(u.tests, " ")
}

// outcome is the result of one test, or of a whole binary if test is "".
type outcome struct {
	test    string
	action  string // pass, fail or skip
	elapsed time.Duration
}

// result is the result of a unit.
type result struct {
	unit
	outcomes []outcome
	elapsed  time.Duration
	output   string // of the failed tests
	race     bool   // the race detector reported a race
	broken   bool   // the binary ended without a result for each test: a panic or the time limit
	cut      bool   // stopped by the end of the whole run
}

// failed returns the top-level tests that failed.
func (r *result) failed() (names []string) {
	for _, o := range r.outcomes {
		if o.action == "fail" && o.test != "" && !strings.Contains(o.test, "/") {
			names = append(names, o.test)
		}
	}
	return names
}

func (r *result) ok() bool {
	return !r.broken && !slices.ContainsFunc(r.outcomes, func(o outcome) bool { return o.action == "fail" })
}

// args are the flags of the test binary.
func (u unit) args(o options) []string {
	args := []string{"-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + u.limit.String()}
	if !u.long {
		args = append(args, "-test.short")
	}
	if len(u.tests) > 0 {
		args = append(args, "-test.run="+anchored(u.tests))
	}
	if len(u.skip) > 0 {
		args = append(args, "-test.skip="+anchored(u.skip))
	}
	if o.cover {
		args = append(args, "-test.gocoverdir="+o.unitCover())
	}
	return args
}

// unitCover is where test binaries write their coverage counters.
func (o options) unitCover() string { return filepath.Join(o.out, "cover", "unit") }

func anchored(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

// execute runs the unit and reads its results. end is the end of the whole run, or zero.
func (u unit) execute(ctx context.Context, o options, env []string, end time.Time) (*result, error) {
	cut := false
	if left := time.Until(end); !end.IsZero() && left < u.limit {
		u.limit, cut = max(left, time.Second), true
	}
	ctx, cancel := context.WithTimeout(ctx, u.limit+time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return nil, errors.Wrapf(err, "find the wrapper of test binaries")
	}
	cmd := exec.CommandContext(ctx, self, append([]string{wrapCommand, u.pkg.binary}, u.args(o)...)...)
	cmd.Dir, cmd.Env = u.pkg.dir, append(slices.Clone(env), "PWD="+u.pkg.dir)
	if o.cover { // for processes of the test binary, as go test does
		cmd.Env = append(cmd.Env, "GOCOVERDIR="+o.unitCover())
	}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 4 * settle
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", u.pkg.path)
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	convert.Stdin = read
	events, err := convert.StdoutPipe()
	if err != nil {
		return nil, errors.Wrapf(err, "read the results of %s", u)
	}
	if err := convert.Start(); err != nil {
		return nil, errors.Wrapf(err, "start test2json")
	}
	begun := time.Now()
	go func() {
		err := cmd.Run()
		if err != nil && cmd.ProcessState == nil {
			fmt.Fprintln(write, err) // the binary did not start
		}
		_ = write.Close()
	}()
	r := &result{unit: u}
	err = r.read(events, logFile(o, u))
	err = errors.Join(err, convert.Wait())
	r.elapsed = time.Since(begun)
	if r.broken && cut && r.elapsed >= u.limit {
		r.cut = true
	}
	return r, errors.Wrapf(err, "run %s", u)
}

// logFile is the file with the whole output of the unit, for people.
func logFile(o options, u unit) string {
	return filepath.Join(o.out, "logs", strings.NewReplacer("/", "-", " ", "-").Replace(u.String())+".log")
}

// event is a line of test2json.
type event struct {
	Action, Test, Output string
	Elapsed              float64
}

// read collects the results of a stream of test2json. It keeps the output of tests until they pass.
func (r *result) read(events io.Reader, log string) error {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return errors.Wrapf(err, "make the log")
	}
	defer f.Close()
	output := map[string]string{} // by top-level test
	running := map[string]bool{}  // top-level tests
	ended := false
	for dec := json.NewDecoder(events); ; {
		var e event
		if err := dec.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			return errors.Wrapf(err, "decode the output of test2json")
		}
		top, _, _ := strings.Cut(e.Test, "/")
		switch e.Action {
		case "output":
			_, _ = f.WriteString(e.Output)
			r.race = r.race || strings.Contains(e.Output, "WARNING: DATA RACE")
			if len(output[top]) < kept && !strings.HasPrefix(e.Output, "=== ") {
				output[top] += e.Output
			}
		case "run":
			running[top] = true
		case "pass", "fail", "skip":
			r.outcomes = append(r.outcomes, outcome{e.Test, e.Action, time.Duration(e.Elapsed * float64(time.Second))})
			ended = ended || e.Test == ""
			if e.Test == top {
				delete(running, top)
				if e.Action != "fail" && top != "" {
					delete(output, top)
				}
			}
		}
	}
	// After a panic, a time limit or an early end, the running tests have no result.
	for test := range running {
		r.outcomes = append(r.outcomes, outcome{test, "fail", 0})
	}
	r.broken = !ended || len(running) > 0
	for _, test := range r.tests { // a name that matches no test is a fault of the runner
		if !slices.ContainsFunc(r.outcomes, func(o outcome) bool { return o.test == test }) {
			r.outcomes = append(r.outcomes, outcome{test, "fail", 0})
			output[test] = "no test has this name\n"
		}
	}
	if r.ok() {
		return nil
	}
	for _, o := range r.outcomes {
		if o.action == "fail" && o.test != "" && !strings.Contains(o.test, "/") {
			r.output += output[o.test]
		}
	}
	r.output += output[""]
	return nil
}
