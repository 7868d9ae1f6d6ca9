// Command testrun runs the module's tests: the quick suite of `make test`, the long tests, or both within a time limit.
//
// It compiles each test binary once and runs it in its package's directory, with as many binaries at a time as
// there are processors. Tests that call testenv.Long are the long suite. The quick suite is all others.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// options of the command.
type options struct {
	suite    string        // quick, long or all
	patterns []string      // of packages
	out      string        // directory of binaries, logs and reports
	cover    bool          // count coverage
	race     bool          // compile with the race detector
	retries  int           // how often a failed test runs again, alone
	start    time.Duration // no long test starts after this time; 0: no limit
	end      time.Duration // running long tests are stopped at this time; 0: no limit
	turn     int           // selects the third of the long tests that runs first
	first    []string      // package:Test, which build the images that the packages of wait use
	wait     string        // prefix of the packages that wait for first
	slots    int           // test binaries at a time
}

func parseFlags(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("testrun", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.out, "out", "test-results", "directory of binaries, logs and reports")
	flags.BoolVar(&o.cover, "cover", false, "count coverage")
	flags.BoolVar(&o.race, "race", true, "compile with the race detector")
	flags.IntVar(&o.retries, "retries", 0, "how often a failed test runs again, alone")
	flags.DurationVar(&o.start, "start", 0, "time after which no long test starts (default: no limit)")
	flags.DurationVar(&o.end, "end", 0, "time at which running long tests are stopped (default: no limit)")
	flags.IntVar(&o.turn, "turn", 0, "number that selects the third of the long tests that runs first")
	first := flags.String("first", "", "package:Test pairs, separated by commas, that build the shared images")
	flags.StringVar(&o.wait, "wait", "", "prefix of the packages that need the shared images")
	flags.IntVar(&o.slots, "slots", runtime.GOMAXPROCS(0), "test binaries at a time")
	if err := flags.Parse(args); err != nil || flags.NArg() == 0 {
		return options{}, errors.Errorf("usage: testrun [flags] quick|long|all [package…]: %v", err)
	}
	o.suite, o.patterns = flags.Arg(0), flags.Args()[1:]
	if o.suite != "quick" && o.suite != "long" && o.suite != "all" {
		return options{}, errors.Errorf("unknown suite %q: use quick, long or all", o.suite)
	}
	if len(o.patterns) == 0 {
		o.patterns = []string{"./..."}
	}
	if *first != "" {
		o.first = strings.Split(*first, ",")
	}
	var err error
	o.out, err = filepath.Abs(o.out)
	return o, errors.Wrapf(err, "find the directory of results")
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	if len(os.Args) > 2 && os.Args[1] == wrapCommand {
		stop()
		code, err := wrap(os.Args[2:])
		if err != nil {
			fmt.Fprintln(os.Stderr, "testrun:", err)
			code = 1
		}
		os.Exit(code)
	}
	o, err := parseFlags(os.Args[1:])
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
}

// run compiles the tests, runs the suite and writes the reports. It returns an error if a test failed.
func run(ctx context.Context, o options, w io.Writer) error {
	begun := time.Now()
	if err := os.MkdirAll(filepath.Join(o.out, "logs"), 0o755); err != nil {
		return errors.Wrapf(err, "make the directory of results")
	}
	list, err := list(ctx, o.patterns)
	if err != nil {
		return err
	}
	s := newSchedule(o, begun, w)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go s.disk.watch(watching)
	b := &builder{o: o, w: w, begun: begun}
	if s.env, err = b.programs(ctx); err != nil {
		return err
	}
	first, rest := split(list, o.first)
	if err := b.compile(ctx, first); err != nil {
		return err
	}
	s.prepare(ctx, first)
	if err := b.compile(ctx, rest); err != nil {
		s.say("waiting for the tests that build the shared images")
		s.wait()
		return err
	}
	s.part("compiled")
	if o.suite != "long" {
		s.run(ctx, quickUnits(list, s))
		s.part("quick suite")
	}
	if o.suite != "quick" {
		s.run(ctx, longUnits(list, s))
		s.part("long tests")
	}
	select {
	case <-s.prepared:
	default:
		s.sayRunning()
		s.wait()
	}
	s.retry(ctx)
	return s.report()
}
