// Command bench measures Harvest beside its peers: in turn, on the same work, within the same minutes.
// docs/performance.md explains each row and how to repeat it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/helpers"
)

// row is one measurement.
type row struct {
	id   string
	work string // one line for the table
	run  func(ctx context.Context, l *lab, r *recorder) error
}

// rows lists the rows in order.
var rows = []row{
	{"P1", "cold: create, then `python3 -c 'print(1)'`; nothing is warm", benchCold},
	{"P2", "warm: the same from the pool of booted sandboxes", benchWarm},
	{"P3", "many: bursts of creates, and one every 200 ms, each until its Python has printed", benchMany},
	{"P4", "exec `true` in a running sandbox, in process", benchExec},
	{"P4http", "exec `true` in a running sandbox, through HTTP over TCP with a key", benchHTTPExec},
	{"modal", "exec through Modal's Go SDK, beside the HTTP API of the same server", benchModal},
	{"P5", "exec that prints 100 MB", benchOutput},
	{"P6", "a started agent restored from a checkpoint with its memory: create, prompt, until its first line",
		benchPrepared},
	{"P7", "filesystem snapshot of a running sandbox, and a new sandbox from it", benchSnapshot},
	{"P8", "real work inside, on all cores", benchWork},
	{"cli", "the command line as processes: `version`, `exec true` in a running sandbox, `run true` in a new one",
		benchCLI},
	{"cp", "`harvest sandbox cp` of 1,000 files into a sandbox and out of it, as whole commands", benchCopy},
	{"ssh", "OpenSSH's `ssh true`, and rsync of 1,000 files, beside exec and an sshd in the same sandbox", benchSSH},
	{"session", "a session with the scripted agent: create, until the agent's first event; 50 at once", benchSession},
	{"kubernetes", "sandboxes in pods: cold, warm and exec, beside kubectl run and kubectl exec", benchKubernetes},
	{"acp", "agents by ACP: a prompt, until the model is asked, beside the agent started by hand", benchACP},
	{"P11", "image of a repository brought up to date: nothing changed, one commit, the lock file changed", benchRepo},
	{"P13", "image build: a Dockerfile of two RUNs and two COPYs on the base image", benchBuild},
	{"net", "the way through the gateway to a server of this machine", benchNetwork},
	{"credentials", "a connection to a host that a secret is bound to, beside one to an unbound host",
		benchCredentials},
	{"P12", "memory of an idle sandbox, the PSS of all its processes", benchMemory},
	{"P9", "a volume to S3 and back: 15,000 files, nothing changed, 1 % changed, one large file", benchSync},
	{"P10",
		"events: 1,000 a second on one stream, from Publish until 500 clients have them over HTTP; connections cut, two restarts", benchEvents},
	{"P14", "GET /v1/sandboxes with 10,000 records and 100 sandboxes, from 16 connections", benchList},
	{"abuse", "a fork bomb, a memory bomb and a disk filler in one sandbox; `true` in another one", benchAbuse},
}

// options are the command line's options.
type options struct {
	rows   []string // ids; all if empty
	turns  int      // of each row; 0: the row's own
	files  int      // of P9's tree
	large  int64    // MiB of P9's large file
	short  bool     // a check that everything works, with too few turns for figures
	name   string   // of the result
	out    string   // directory of results
	data   string   // directory on a disk; the run creates a directory in it
	images string   // the image library
	show   string   // a result to print instead of measuring

	warmUp  string        // warm-up command of pooled sandboxes
	harvest string        // the program, for rows that measure a server
	soak    time.Duration // duration of the soak, which replaces the rows
}

// errorLevel is slog's level Error. Lower levels are not of interest here.
const errorLevel = 8

func main() {
	helpers.Main() // the engine starts this program as its helpers
	logf.Setup(os.Stderr, errorLevel, false)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	helper, err := playRole(ctx, os.Args[1:])
	if !helper {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var list string
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	images := filepath.Join(cache, "harvest-bench", "images")
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&list, "rows", "", "which rows, with commas; all if empty: "+strings.Join(ids(), ","))
	fs.IntVar(&o.turns, "n", 0, "how often each side of a row runs; 0 means what the row needs")
	fs.BoolVar(&o.short, "short", false, "few turns: shows that everything works, not how fast it is")
	fs.IntVar(&o.files, "files", syncFiles, "files of P9's tree")
	fs.Int64Var(&o.large, "large", largeSize>>20, "MiB of P9's large file; less where the disk has no room")
	fs.StringVar(&o.name, "name", "tmp/last", "name of the result, which is written to NAME.json in -out")
	fs.StringVar(&o.out, "out", "tools/bench/results", "directory of results")
	fs.StringVar(&o.data, "data", os.TempDir(), "directory on a disk, where this run keeps its data")
	fs.StringVar(&o.images, "images", images, "the image library")
	fs.StringVar(&o.harvest, "harvest", "bin/harvest", "the program that is measured as a server")
	fs.StringVar(&o.warmUp, "warm-up", config.Default(os.Getenv).PoolWarmUp,
		"command that is run in sandboxes of a pool ahead of need")
	fs.DurationVar(&o.soak, "soak", 0,
		"instead of measuring rows, a day's traffic in so long, such as 20m; fails if anything grows")
	fs.StringVar(&o.show, "show", "", "print the table of this result and measure nothing")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, errors.Errorf("%q is too much", fs.Arg(0))
	}
	for id := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		if !slices.Contains(ids(), id) {
			return o, errors.Errorf("there is no row %q; there are %s", id, strings.Join(ids(), ", "))
		}
		o.rows = append(o.rows, id)
	}
	if o.large < 64 {
		return o, errors.Errorf("-large cannot be %d: parts have 16 MiB", o.large)
	}
	if o.files < syncFiles/syncChanged {
		return o, errors.Errorf("-files cannot be %d: one of a hundred changes", o.files)
	}
	if o.turns < 0 {
		return o, errors.Errorf("-n cannot be %d", o.turns)
	}
	return o, nil
}

func ids() []string {
	var all []string
	for _, r := range rows {
		all = append(all, r.id)
	}
	return all
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.show != "" {
		rep, err := readReport(o.show)
		if err != nil {
			return err
		}
		return rep.print(stdout)
	}
	l, err := openLab(ctx, o, stderr)
	if err != nil {
		return err
	}
	if o.soak > 0 {
		return errors.Join(soak(ctx, l, o.harvest, o.soak, stdout), l.close(context.WithoutCancel(ctx)))
	}
	rep := &Report{Started: time.Now().UTC().Truncate(time.Second), Short: o.short, Machine: l.describe(ctx)}
	for _, row := range rows {
		if len(o.rows) > 0 && !slices.Contains(o.rows, row.id) {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(stderr, "%s %s\n", row.id, row.work)
		r := &recorder{row: &Row{ID: row.id, Work: row.work}, lab: l, stderr: stderr}
		if err := row.run(ctx, l, r); err != nil && ctx.Err() == nil {
			r.row.Error = err.Error()
		}
		rep.Rows = append(rep.Rows, r.row)
	}
	interrupted := ctx.Err()
	if err := l.close(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	if interrupted != nil {
		return errors.Wrapf(interrupted, "interrupted; all that ran was ended, and no result is written")
	}
	rep.Seconds = time.Since(rep.Started).Seconds()
	rep.finish()
	path := filepath.Join(o.out, o.name+".json")
	if err := rep.write(path); err != nil {
		return err
	}
	fmt.Fprintln(stderr, "written to", path)
	return rep.print(stdout)
}
