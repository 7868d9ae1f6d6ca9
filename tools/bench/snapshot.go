package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// The measures of P7, for each number of files.
const (
	takeSnapshot = "snapshot of %d changed files, until it is durable"
	standStill   = "of which commands stand still, %d files"
	fromSnapshot = "%d files in a new sandbox, which is created"
)

// The peers of P7.
const (
	tarInside   = "tar inside"
	untarInside = "tar x inside"
)

// changeFiles creates the number of files in its argument, of 2.6 kB each, 500 to a directory.
const changeFiles = `import os, sys
content = os.urandom(2600)
for i in range(int(sys.argv[1])):
    if i % 500 == 0: os.makedirs('/changed/%d' % (i // 500))
    with open('/changed/%d/%d' % (i // 500, i), 'wb') as f: f.write(content)`

// watchStill prints, when its input ends, its longest standstill in milliseconds.
const watchStill = `import select, sys, time
last, worst = time.monotonic(), 0
while True:
    end = select.select([sys.stdin], [], [], 0.001)[0]
    now = time.monotonic(); worst = max(worst, now - last); last = now
    if end: break
print(worst * 1000)`

// P7
func benchSnapshot(ctx context.Context, l *lab, r *recorder) error {
	if err := l.use(ctx, 0); err != nil {
		return err
	}
	for _, n := range []int{1_000, 50_000} {
		if err := l.snapshots(ctx, r, n); err != nil {
			return errors.Wrapf(err, "%d files", n)
		}
	}
	return nil
}

// snapshots measures with n changed files.
func (l *lab) snapshots(ctx context.Context, r *recorder, n int) (err error) {
	sb, destroy, err := l.create(ctx, spec.Request{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroy()) }()
	if err := l.exec(ctx, sb.ID, fleet.ExecRequest{Args: []string{"python3", "-c", changeFiles,
		strconv.Itoa(n)}}); err != nil {
		return err
	}
	take, still, from := r.measure(fmt.Sprintf(takeSnapshot, n), "ms"), r.measure(fmt.Sprintf(standStill, n), "ms"),
		r.measure(fmt.Sprintf(fromSnapshot, n), "ms")
	take.Aim, from.Aim = &Aim{Peer: tarInside, AtMost: 1}, &Aim{Peer: untarInside, AtMost: 1}
	turns := r.count(2, 10)
	ours := side{harvest, func(ctx context.Context) (sample, error) {
		return l.takeSnapshot(ctx, sb.ID, take.Name, still.Name)
	}}
	tar := side{tarInside, func(ctx context.Context) (sample, error) {
		return timed(take.Name, func() error {
			return l.exec(ctx, sb.ID, fleet.ExecRequest{Args: []string{"sh", "-c",
				"tar cf - /changed 2>/dev/null | cat > /dev/null"}})
		})
	}}
	if err := r.turns(ctx, turns, []*Measure{take, still}, ours, tar); err != nil {
		return err
	}
	img, err := l.fleet.Snapshot(ctx, account, sb.ID, fleet.SnapshotOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.engine.Images().Delete(context.WithoutCancel(ctx), img.ID)) }()
	if err := l.exec(ctx, sb.ID, fleet.ExecRequest{Args: []string{"tar", "cf", "/tmp/changed.tar",
		"/changed"}}); err != nil {
		return err
	}
	return r.turns(ctx, turns, []*Measure{from}, side{harvest, func(ctx context.Context) (sample, error) {
		var end func() error
		s, err := timed(from.Name, func() (err error) {
			_, end, err = l.create(ctx, spec.Request{Image: img.ID})
			return err
		})
		if err != nil {
			return s, err
		}
		return s, end()
	}}, side{untarInside, func(ctx context.Context) (sample, error) {
		s, err := timed(from.Name, func() error {
			return l.exec(ctx, sb.ID, fleet.ExecRequest{Args: []string{"sh", "-c",
				"mkdir /new && tar xf /tmp/changed.tar -C /new"}})
		})
		if err == nil {
			err = l.exec(ctx, sb.ID, fleet.ExecRequest{Args: []string{"rm", "-rf", "/new"}})
		}
		return s, err
	}})
}

// takeSnapshot takes and deletes a snapshot, beside a command that measures its standstill.
func (l *lab) takeSnapshot(ctx context.Context, id, take, still string) (sample, error) {
	// Without a change, the snapshot would be the existing image.
	if err := l.exec(ctx, id, fleet.ExecRequest{Args: []string{"sh", "-c",
		"date +%N > /changed/now"}}); err != nil {
		return nil, err
	}
	input, end := io.Pipe()
	defer end.Close()
	watching, err := l.fleet.Exec(ctx, account, id, fleet.ExecRequest{Args: []string{"python3", "-c", watchStill},
		Stdin: input})
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, settle); err != nil { // until it watches
		return nil, err
	}
	begin := time.Now()
	img, err := l.fleet.Snapshot(ctx, account, id, fleet.SnapshotOptions{})
	took := time.Since(begin)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(end.Close(), l.engine.Images().Delete(ctx, img.ID)); err != nil {
		return nil, err
	}
	res, err := watching.Wait(ctx)
	if err != nil {
		return nil, err
	}
	worst, err := strconv.ParseFloat(strings.TrimSpace(res.Stdout), 64)
	return sample{take: ms(took), still: worst}, errors.Wrapf(err, "read for how long commands stood still")
}
