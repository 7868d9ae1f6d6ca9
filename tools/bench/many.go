package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// P3
func benchMany(ctx context.Context, l *lab, r *recorder) error {
	if err := l.use(ctx, 0); err != nil {
		return err
	}
	for _, n := range []int{50, 100} {
		each := r.measure(fmt.Sprintf("burst of %d: %s", n, printed), "ms")
		all := r.measure(fmt.Sprintf("burst of %d: until all have printed", n), "s")
		if n == 100 {
			all.Aim = &Aim{AtMost: 8}
		}
		for range r.count(1, 3) {
			if err := r.many(ctx, each, all, n, 0); err != nil {
				return err
			}
		}
	}
	for warm, name := range []string{"without a pool", "with a pool of 1"} {
		if err := l.use(ctx, warm); err != nil {
			return err
		}
		if err := l.refilled(ctx); err != nil {
			return err
		}
		each := r.measure(fmt.Sprintf("every 200 ms, %s: %s", name, printed), "ms")
		if err := r.many(ctx, each, nil, r.count(10, 50), 200*time.Millisecond); err != nil {
			return err
		}
	}
	failed := 0
	for _, m := range r.row.Measures {
		failed += m.series(harvest).Failed
	}
	r.check("no creation failed", failed == 0, "")
	return nil
}

// many creates n sandboxes, one every gap. They stay until the last one has printed. all may be nil.
func (r *recorder) many(ctx context.Context, each, all *Measure, n int, gap time.Duration) error {
	type outcome struct {
		took    float64
		err     error
		destroy func() error
	}
	outcomes := make([]outcome, n)
	var running sync.WaitGroup
	begin := time.Now()
	for i := range outcomes {
		if gap > 0 && i > 0 && pause(ctx, time.Until(begin.Add(time.Duration(i)*gap))) != nil {
			break
		}
		running.Go(func() {
			o := &outcomes[i]
			var s sample
			s, _, o.destroy, o.err = r.lab.helloSandbox(ctx, spec.Request{})
			o.took = s[printed]
		})
	}
	running.Wait()
	took := time.Since(begin).Seconds()
	var first error
	var left error
	for _, o := range outcomes {
		if o.destroy == nil { // interrupted before its creation
			continue
		}
		left = errors.Join(left, o.destroy())
		if o.err != nil {
			r.fail(each, harvest, o.err)
			first = o.err
			continue
		}
		each.add(harvest, o.took)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case all != nil && first != nil:
		r.fail(all, harvest, first)
	case all != nil:
		all.add(harvest, took)
	}
	return errors.Wrapf(left, "destroy the sandboxes")
}
