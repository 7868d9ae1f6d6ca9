package main

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
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
	if err := l.use(ctx, 0); err != nil {
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
			return l.exec(ctx, sb.ID, fleet.ExecRequest{Args: []string{"true"}})
		})
	}}}
	if l.noContainers == nil {
		box, end, failed := l.create(ctx, spec.Request{Isolation: engine.Container})
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, end()) }()
		sides = r.inContainer(sides, func(ctx context.Context) (sample, error) {
			return timed(m.Name, func() error { return l.exec(ctx, box.ID, fleet.ExecRequest{Args: []string{"true"}}) })
		})
	}
	for _, o := range []*oci{l.runc, l.runsc} {
		more, remove, failed := r.execIn(ctx, o, m.Name, sides)
		defer func() { err = errors.Join(err, remove()) }()
		if failed != nil {
			return failed
		}
		sides = more
	}
	return r.turns(ctx, r.count(10, 100), []*Measure{m}, sides...)
}

// execIn adds a side that runs commands in a container of o, unless this machine lacks o. remove ends the container.
func (r *recorder) execIn(ctx context.Context, o *oci, measure string,
	sides []side) (more []side, remove func() error, err error) {
	remove = func() error { return nil }
	if o.why != nil {
		r.missing(o.name, o.why)
		return sides, remove, nil
	}
	bundle, err := o.bundle(ctx, idle...)
	if err != nil {
		return sides, remove, err
	}
	id, remove, err := o.start(ctx, bundle)
	return append(sides, side{o.name, func(ctx context.Context) (sample, error) {
		return timed(measure, func() error { return o.command(ctx, "exec", id, "true").run(nil) })
	}}), remove, err
}
