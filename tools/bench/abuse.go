package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// tight are the small limits of offenders, which are reached soon. As many Pythons as it has processes fit into
// the memory.
var tight = spec.Request{CPU: 1, Memory: 512 << 20, Disk: 256 << 20, Processes: 100}

// abuse is an attempt of a sandbox to exceed a limit.
type abuse struct {
	name    string
	args    []string
	reports string // its output once it is refused; "" if its sandbox ends for lack of memory instead
}

//go:embed forkbomb.py
var forkBomb string

var abuses = []abuse{
	{"fork bomb", []string{"python3", "-c", forkBomb}, "EAGAIN"},
	{"memory bomb", []string{"python3", "-c", "b = []\nwhile True: b.append(b'x' * (4 << 20))"}, ""},
	{"disk filler",
		[]string{"sh", "-c", "while :; do dd if=/dev/zero of=/fill bs=1M 2>&1 | grep -o 'No space left on device'; rm -f /fill; done"}, "No space left on device"},
}

// Time limits for operations that must be quick.
const (
	endTime    = 10 * time.Second // for an offender that was killed
	reportTime = 60 * time.Second // until an offender is refused
)

// victim is a second sandbox and the host, which the abuse must not affect.
type victim struct {
	r  *recorder
	id string
}

// look measures both once.
func (v victim) look(ctx context.Context, when string) error {
	inside, outside := v.r.measure("exec in another sandbox, "+when, "ms"),
		v.r.measure("starting `true` on the host, "+when, "ms")
	s, err := timed("", func() error {
		return v.r.lab.exec(ctx, v.id, fleet.ExecRequest{Args: []string{"true"}})
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		v.r.fail(inside, harvest, err)
	} else {
		inside.add(harvest, s[""])
	}
	s, err = timed("", func() error {
		cmd := exec.CommandContext(ctx, "true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd.Run()
	})
	if err != nil {
		v.r.fail(outside, host, err)
	} else {
		outside.add(host, s[""])
	}
	return pause(ctx, 20*time.Millisecond)
}

func benchAbuse(ctx context.Context, l *lab, r *recorder) (err error) {
	if err := l.use(ctx, 0); err != nil {
		return err
	}
	sb, destroy, err := l.create(ctx, spec.Request{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroy()) }()
	v := victim{r, sb.ID}
	n := r.count(10, 100)
	for range n {
		if err := v.look(ctx, "before"); err != nil {
			return err
		}
	}
	for _, a := range abuses {
		run := r.refused
		if a.reports == "" {
			run = r.outOfMemory
		}
		if err := run(ctx, a, v, n); err != nil {
			return err
		}
	}
	failed := 0
	for _, m := range r.row.Measures {
		for _, s := range m.Series {
			failed += s.Failed
		}
	}
	r.check("the other sandbox and the host always answered", failed == 0, "")
	return nil
}

// offender is a sandbox that runs an abuse.
type offender struct {
	r       *recorder
	sb      record.Sandbox
	x       *commands.Execution
	output  *locked
	destroy func() error
}

func (r *recorder) offend(ctx context.Context, a abuse) (offender, error) {
	sb, destroy, err := r.lab.create(ctx, tight)
	if err != nil {
		return offender{}, err
	}
	o := offender{r: r, sb: sb, output: &locked{}, destroy: destroy}
	o.x, err = r.lab.fleet.Exec(ctx, account, sb.ID, fleet.ExecRequest{Args: a.args, Stdout: o.output})
	if err != nil {
		return o, errors.Join(err, destroy())
	}
	return o, nil
}

// ended waits for the end of the abuse.
func (o offender) ended(ctx context.Context, longest time.Duration) (commands.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	return o.x.Wait(ctx)
}

// gone destroys the sandbox and checks that nothing of it is left.
func (o offender) gone(ctx context.Context, name string) {
	begin := time.Now()
	err := o.destroy()
	took := time.Since(begin)
	left := waitGone(ctx, func(cmdline string) bool { return strings.Contains(cmdline, o.sb.Handle.Ref) })
	detail := fmt.Sprintf("in %d ms, %d processes left", took.Milliseconds(), len(left))
	if err != nil {
		detail += ": " + err.Error()
	}
	o.r.check(name+": destroy ends it", err == nil && len(left) == 0, detail)
}

// refused runs an abuse that gets an error at its limit, twice: once the abuse is killed, and once its sandbox
// is destroyed.
func (r *recorder) refused(ctx context.Context, a abuse, v victim, n int) error {
	o, err := r.offend(ctx, a)
	if err != nil {
		return err
	}
	reported := o.output.waitFor(ctx, a.reports, reportTime)
	r.check(a.name+": the answer is "+a.reports, reported, "")
	for range n {
		if err := v.look(ctx, "during the "+a.name); err != nil {
			return errors.Join(err, o.destroy())
		}
	}
	begin := time.Now()
	err = o.x.Kill(ctx)
	res, waited := o.ended(ctx, endTime)
	r.check(a.name+": kill ends it", err == nil && waited == nil && res.Signal == "KILL",
		fmt.Sprintf("in %d ms; signal %q, %s", time.Since(begin).Milliseconds(), res.Signal, res.Reason))
	err = r.lab.exec(ctx, o.sb.ID, fleet.ExecRequest{Args: []string{"sh", "-c", "true; true"}})
	r.check(a.name+": afterwards its sandbox works", err == nil, text(err))
	if err := o.destroy(); err != nil {
		return err
	}
	if o, err = r.offend(ctx, a); err != nil {
		return err
	}
	o.output.waitFor(ctx, a.reports, reportTime)
	o.gone(ctx, a.name)
	return ctx.Err()
}

// text returns the text of an error, "" for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// outOfMemory runs an abuse that ends its sandbox, until the victim was measured n times.
func (r *recorder) outOfMemory(ctx context.Context, a abuse, v victim, n int) error {
	looks, rounds, told, seen := 0, 0, 0, 0
	for ; looks < n; rounds++ {
		o, err := r.offend(ctx, a)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		var res commands.Result
		var waited error
		go func() {
			defer close(done)
			res, waited = o.ended(ctx, reportTime)
		}()
		for alive := true; alive; {
			if err := v.look(ctx, "during the "+a.name); err != nil {
				<-done
				return errors.Join(err, o.destroy())
			}
			looks++
			select {
			case <-done:
				alive = false
			default:
			}
		}
		if waited == nil && res.OutOfMemory {
			told++
		}
		if sb, err := r.lab.fleet.Get(ctx, account, o.sb.ID); err == nil && sb.OutOfMemory &&
			sb.Status == record.Failed {
			seen++
		}
		if rounds == 0 {
			o.gone(ctx, a.name)
		} else if err := o.destroy(); err != nil {
			return err
		}
	}
	r.check(a.name+": its result says that memory ran out", told == rounds, fmt.Sprintf("%d of %d", told, rounds))
	r.check(a.name+": so does its sandbox", seen == rounds, fmt.Sprintf("%d of %d", seen, rounds))
	return nil
}

// locked is a buffer that is read while it is written.
type locked struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *locked) Write(p []byte) (int, error) {
	const most = 1 << 20
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len() < most {
		b.buf.Write(p)
	}
	return len(p), nil
}

func (b *locked) contains(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Contains(b.buf.Bytes(), []byte(text))
}

// waitFor reports whether text is written within a time.
func (b *locked) waitFor(ctx context.Context, text string, longest time.Duration) bool {
	for end := time.Now().Add(longest); time.Now().Before(end); {
		if b.contains(text) {
			return true
		}
		if pause(ctx, 10*time.Millisecond) != nil {
			return false
		}
	}
	return false
}
