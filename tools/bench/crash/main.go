// Command crash starts programs many times on the host, in runc, in gVisor's own runsc and in Harvest. It
// counts crashes and wrong results. All sides use the files of the image that Dockerfile describes. See
// docs/performance.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// options are the command line's options.
type options struct {
	sides, cases []string
	count        int // starts of each case, in each sandbox and round
	rounds       int // turns of the sides
	sandboxes    int // at the same time
	parallel     int // programs at the same time, in each sandbox
	load         int // busy threads beside them, in each sandbox
	seconds      int // of the register test
	env          []string
	dir          string
	harvest      string
	runsc        []string // program and flags
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	work := run
	args := os.Args[1:]
	if len(args) > 0 && args[0] == insideName {
		work, args = inside, args[1:]
	}
	err := work(ctx, args, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func parse(args []string) (o options, err error) {
	fs := flag.NewFlagSet("crash", flag.ContinueOnError)
	var runsc string
	list := func(to *[]string, name, value, usage string) {
		*to = strings.Split(value, ",")
		fs.Func(name, usage+" (default "+value+")", func(s string) error { *to = strings.Split(s, ","); return nil })
	}
	list(&o.sides, "sides", "host,runc,runsc,harvest", "sides, which run in turn")
	list(&o.cases, "cases", strings.Join(caseNames(), ","), "programs")
	fs.IntVar(&o.count, "n", 20, "starts of each program, in each sandbox and round")
	fs.IntVar(&o.rounds, "rounds", 1, "rounds, in which each side has one turn")
	fs.IntVar(&o.sandboxes, "sandboxes", 1, "sandboxes at the same time")
	fs.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "programs at the same time, in each sandbox")
	fs.IntVar(&o.load, "load", 0, "busy threads beside them, in each sandbox; 4 for each core is much")
	fs.IntVar(&o.seconds, "seconds", 10, "seconds of each start of the register test")
	fs.Func("e", "NAME=VALUE for all programs, such as GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F; repeatable",
		func(s string) error {
			o.env = append(o.env, s)
			return nil
		})
	fs.StringVar(&o.dir, "dir", "",
		"directory for image, files and data; an empty one is filled, a filled one is used again")
	fs.StringVar(&o.harvest, "harvest", "bin/harvest", "the program harvest")
	fs.StringVar(&runsc, "runsc", "bin/runsc",
		"gVisor's program and flags, such as 'bin/runsc --systrap-disable-syscall-patching'")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.runsc = strings.Fields(runsc)
	if o.dir == "" || len(o.runsc) == 0 {
		return o, errors.Errorf("-dir and -runsc need values")
	}
	for _, name := range o.cases {
		if !slices.Contains(caseNames(), name) {
			return o, errors.Errorf("no program %q; the programs are %s", name, strings.Join(caseNames(), ", "))
		}
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	all := map[string]results{}
	for round := range o.rounds {
		for _, name := range o.sides {
			begin := time.Now()
			got, err := b.turn(ctx, name)
			all[name] = all[name].add(got)
			if err != nil {
				return errors.Join(err, report(stdout, o, all))
			}
			fmt.Fprintf(os.Stderr, "round %d of %d: %s, %s\n", round+1, o.rounds, name,
				time.Since(begin).Round(time.Second))
		}
	}
	return report(stdout, o, all)
}

// report writes the table and examples of failures.
func report(stdout io.Writer, o options, all map[string]results) error {
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "program\tside\tstarts\tcrashes\twrong\tper 10,000\tseconds each")
	for _, c := range o.cases {
		for _, side := range o.sides {
			t, ran := all[side][c]
			if !ran {
				continue
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.1f\t%.2f\n", c, side, t.Starts, t.Crashes, t.Wrong,
				1e4*float64(t.Crashes+t.Wrong)/float64(max(1, t.Starts)), t.Seconds/float64(max(1, t.Starts)))
		}
	}
	if err := w.Flush(); err != nil {
		return errors.Wrapf(err, "print")
	}
	for _, side := range o.sides {
		for _, c := range o.cases {
			for _, e := range all[side][c].Examples {
				fmt.Fprintf(stdout, "\n%s, %s: %s\n", c, side, e)
			}
		}
	}
	return nil
}
