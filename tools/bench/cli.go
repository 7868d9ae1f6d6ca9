package main

import (
	"context"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	cliVersion = "version"
	cliExec    = "exec true"
	cliRun     = "run true"
	overHTTP   = "HTTP" // the requests of the same commands, without a process
)

// benchCLI measures whole commands of the command line as processes.
func benchCLI(ctx context.Context, l *lab, r *recorder) error {
	return withSandbox(ctx, l, "cli", func(d *daemon, data, sb string) error {
		return r.commandLine(ctx, l, d, data, sb)
	})
}

func (r *recorder) commandLine(ctx context.Context, l *lab, d *daemon, data, sb string) (err error) {
	version, exec, run := r.measure(cliVersion, "ms"), r.measure(cliExec, "ms"), r.measure(cliRun, "ms")
	version.Aim, exec.Aim = &Aim{AtMost: 15}, &Aim{Peer: overHTTP, AtMost: 1.5}
	sides := []side{
		{harvest, commandLines(l.opts.harvest, map[string][]string{
			cliVersion: {"--data", data, "version"},
			cliExec:    {"--data", data, "sandbox", "exec", sb, "--", "true"},
			cliRun:     {"--data", data, "run", "--", "true"},
		})},
		{overHTTP, func(ctx context.Context) (sample, error) {
			return timed(cliExec, func() error {
				res, err := d.Exec(ctx, sb, api.ExecRequest{Args: []string{"true"}})
				if err == nil && res.ReturnCode != 0 {
					err = errors.Errorf("true ended with %d: %s", res.ReturnCode, res.Reason)
				}
				return err
			})
		}},
	}
	if err := l.noBwrap(ctx); err != nil {
		r.missing("bwrap", err)
	} else {
		sides = append(sides, side{"bwrap", func(ctx context.Context) (sample, error) {
			return timed(cliRun, l.bwrap(ctx, nil, "true").Run)
		}})
	}
	sides, remove, err := r.execIn(ctx, l.runc, cliExec, sides)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	return r.turns(ctx, r.count(5, 50), []*Measure{version, exec, run}, sides...)
}

// commandLines measures each command line of a program, by measure.
func commandLines(program string, lines map[string][]string) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		all := sample{}
		for _, name := range sortedKeys(lines) {
			s, err := timed(name, func() error { return whole(ctx, program, lines[name]...) })
			if err != nil {
				return nil, err
			}
			all[name] = s[name]
		}
		return all, nil
	}
}
