package main

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// The measures of P12.
const (
	fresh = "when it is ready"
	used  = "after a command"
)

const (
	together = 5               // sandboxes at once, so that shared memory is shared as in practice
	quiet    = 3 * time.Second // until they are idle
)

// idlers are sandboxes of one side that run at the same time.
type idlers struct {
	create func(ctx context.Context) (id string, remove func() error, err error)
	exec   func(ctx context.Context, id string) error
	of     func(cmdline string) bool // whether a process belongs to them
}

// measure returns the memory per sandbox, fresh and used, in MiB.
func (i idlers) measure(ctx context.Context) (s sample, err error) {
	var ids []string
	for range together {
		id, remove, err := i.create(ctx)
		defer func() { err = errors.Join(err, remove()) }()
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	s = sample{}
	for _, name := range []string{fresh, used} {
		if name == used {
			for _, id := range ids {
				if err := i.exec(ctx, id); err != nil {
					return nil, err
				}
			}
		}
		if err := pause(ctx, quiet); err != nil {
			return nil, err
		}
		pids := family(i.of)
		if len(pids) < together {
			return nil, errors.Errorf("%d sandboxes have %d processes", together, len(pids))
		}
		bytes, err := pss(pids)
		if err != nil {
			return nil, err
		}
		s[name] = float64(bytes) / together / (1 << 20)
	}
	return s, nil
}

// P12
func benchMemory(ctx context.Context, l *lab, r *recorder) error {
	if err := l.use(ctx, 0); err != nil {
		return err
	}
	whenFresh, whenUsed := r.measure(fresh, "MiB"), r.measure(used, "MiB")
	whenFresh.Aim, whenUsed.Aim = &Aim{Peer: "runsc", AtMost: 1.1}, &Aim{Peer: "runsc", AtMost: 1.1}
	ours := idlers{
		create: func(ctx context.Context) (string, func() error, error) {
			sb, destroy, err := l.create(ctx, spec.Request{})
			return sb.ID, destroy, err
		},
		exec: func(ctx context.Context, id string) error {
			return l.exec(ctx, id, fleet.ExecRequest{Args: []string{"true"}})
		},
		of: func(cmdline string) bool { return strings.Contains(cmdline, filepath.Join(l.dir, "sandboxes")+"/") },
	}
	sides := []side{{harvest, ours.measure}}
	if l.runsc.why != nil {
		r.missing("runsc", l.runsc.why)
	} else {
		bundle, err := l.runsc.bundle(ctx, idle...)
		if err != nil {
			return err
		}
		theirs := idlers{
			create: func(ctx context.Context) (string, func() error, error) { return l.runsc.start(ctx, bundle) },
			exec: func(ctx context.Context, id string) error {
				return l.runsc.command(ctx, "exec", id, "true").run(nil)
			},
			of: func(cmdline string) bool { return strings.Contains(cmdline, l.runsc.dir+"/") },
		}
		sides = append(sides, side{"runsc", theirs.measure})
	}
	if err := r.turns(ctx, r.count(1, 5), []*Measure{whenFresh, whenUsed}, sides...); err != nil {
		return err
	}
	for _, m := range []*Measure{whenFresh, whenUsed} {
		for _, s := range m.Series {
			if s.summarize(); s.N > 0 {
				r.note("%s, %s: %.1f sandboxes per GiB", s.Side, m.Name, 1024/s.P50)
			}
		}
	}
	return nil
}
