package main

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/sandbox/spec"
)

// idle is the command of a peer's container that waits for commands.
var idle = []string{"sleep", "infinity"}

// timed runs f and returns how long it took, as the only value of a sample.
func timed(name string, f func() error) (sample, error) {
	begin := time.Now()
	err := f()
	return sample{name: ms(time.Since(begin))}, err
}

// P4
func benchExec(ctx context.Context, l *lab, r *recorder) (err error) {
	if _, err := l.use(ctx, 0); err != nil {
		return err
	}
	sb, destroy, err := l.create(ctx, spec.Request{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroy()) }()
	m := r.measure("until it has ended", "ms")
	m.Aim = &Aim{Peer: "runc", AtMost: 0.35}
	sides := []side{{harvest, func(ctx context.Context) (sample, error) {
		return timed(m.Name, func() error {
			_, err := l.exec(ctx, sb.ID, sandbox.ExecRequest{Args: []string{"true"}})
			return err
		})
	}}}
	for _, o := range []*oci{l.runc, l.runsc} {
		if o.why != nil {
			r.missing(o.name, o.why)
			continue
		}
		bundle, err := o.bundle(ctx, idle...)
		if err != nil {
			return err
		}
		id, remove, err := o.start(ctx, bundle)
		defer func() { err = errors.Join(err, remove()) }()
		if err != nil {
			return err
		}
		sides = append(sides, side{o.name, func(ctx context.Context) (sample, error) {
			return timed(m.Name, func() error { return o.command(ctx, "exec", id, "true").run(nil) })
		}})
	}
	return r.turns(ctx, r.count(10, 100), []*Measure{m}, sides...)
}
