package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// A soak is the traffic of a day, compressed: user actions come as a Poisson process, each chosen by its
// weight.
var deeds = []struct {
	name   string
	weight int
	do     func(ctx context.Context, d *daemon, n int) error
}{
	{"run code", 30, func(ctx context.Context, d *daemon, _ int) error {
		return printed42(d.Execute(ctx, "print(6*7)", time.Minute))
	}},
	{"exec", 30, func(ctx context.Context, d *daemon, n int) error {
		return printed42(d.Exec(ctx, residents[n%len(residents)],
			api.ExecRequest{Args: []string{"sh", "-c", "echo 42; head -c 100000 /dev/zero > /tmp/x; rm /tmp/x"}}))
	}},
	{"sandbox", 10, soakSandbox},
	{"snapshot", 3, soakSnapshot},
	{"volume", 8, soakVolume},
	{"secret", 5, func(ctx context.Context, d *daemon, n int) error {
		name := fmt.Sprintf("soak-%d", n)
		_, err := d.SetSecret(ctx, api.SecretRequest{Name: name,
			Pairs: map[string]string{"TOKEN": fmt.Sprintf("value-of-%d", n)}})
		return errors.Join(err, d.DeleteSecret(ctx, name))
	}},
	{"follow", 8, func(ctx context.Context, d *daemon, _ int) error {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(10))*time.Second)
		defer cancel()
		for _, err := range d.Events(ctx, client.Follow{Tail: 20}) {
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	}},
	{"vanish", 6, func(ctx context.Context, d *daemon, n int) error { // a client that disconnects in the middle
		ctx, cancel := context.WithTimeout(ctx, time.Duration(100+rand.IntN(400))*time.Millisecond)
		defer cancel()
		_, _ = d.Exec(ctx, residents[n%len(residents)], api.ExecRequest{Args: []string{"sleep", "30"}})
		return nil
	}},
}

// residents are sandboxes that stay.
var residents = []string{"soak-a", "soak-b", "soak-c"}

func printed42(res api.Result, err error) error {
	if err == nil && strings.TrimSpace(res.Stdout) != "42" {
		err = errors.Errorf("it printed %q, %q", res.Stdout, res.Stderr)
	}
	return err
}

func soakSandbox(ctx context.Context, d *daemon, _ int) error {
	sb, err := d.CreateSandbox(ctx, api.SandboxRequest{Volumes: []api.Mount{{Name: "soak", Path: "/soak"}}}, nil)
	if err != nil {
		return err
	}
	_, err = d.Exec(ctx, sb.ID, api.ExecRequest{Args: []string{"sh", "-c", "date > /soak/now"}})
	return errors.Join(err, d.DestroySandbox(ctx, sb.ID))
}

func soakSnapshot(ctx context.Context, d *daemon, n int) error {
	ref := residents[n%len(residents)]
	if _, err := d.Exec(ctx, ref, api.ExecRequest{Args: []string{"sh", "-c",
		fmt.Sprintf("echo %d > /changed", n)}}); err != nil {
		return err
	}
	img, err := d.SnapshotSandbox(ctx, ref, api.SnapshotRequest{})
	if err != nil {
		return err
	}
	if err := d.DeleteImage(ctx, img.ID); !errors.Is(err, errors.NotFound) { // two equal snapshots are one image
		return err
	}
	return nil
}

func soakVolume(ctx context.Context, d *daemon, n int) error {
	name := fmt.Sprintf("soak-%d", n)
	_, err := d.CreateVolume(ctx, name)
	return errors.Join(err, d.DeleteVolume(ctx, name))
}

// deedsPerSecond is the rate of the soak: a day of light use by a team, 2,400 deeds, in 20 minutes.
const deedsPerSecond = 2

// soak runs traffic for the given time and reports whether the server's resource usage stays flat.
func soak(ctx context.Context, l *lab, program string, long time.Duration, out io.Writer) (err error) {
	data, err := l.dataDir("soak")
	if err != nil {
		return err
	}
	d, err := serve(ctx, program, data)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, d.endAll(context.WithoutCancel(ctx)), d.stop())
	}()
	for _, name := range residents {
		if _, err := d.CreateSandbox(ctx, api.SandboxRequest{Name: name}, nil); err != nil {
			return err
		}
	}
	t := &traffic{daemon: d, done: map[string]int{}, failed: map[string]int{}}
	states, err := t.run(ctx, long, out)
	if err != nil {
		return err
	}
	return t.report(out, states, long)
}

// endAll ends all sandboxes.
func (d *daemon) endAll(ctx context.Context) error {
	all, _, err := d.Sandboxes(ctx, api.SandboxFilter{Limit: api.MaxPage})
	for _, sb := range all {
		err = errors.Join(err, d.DestroySandbox(ctx, sb.ID))
	}
	return err
}

// traffic is the simulated user traffic.
type traffic struct {
	*daemon
	running sync.WaitGroup

	mu     sync.Mutex
	done   map[string]int // guarded by mu
	failed map[string]int // guarded by mu
	first  error          // guarded by mu
	late   int            // guarded by mu; deeds left out because too many were under way
	under  int            // guarded by mu
}

// mostUnderWay bounds concurrent deeds: on a slow machine the test must not become one of overload.
const mostUnderWay = 24

// run generates traffic and samples the server's resource usage in moments of rest, so that running operations
// do not count.
func (t *traffic) run(ctx context.Context, long time.Duration, out io.Writer) ([]state, error) {
	const looks = 12 // and a first one, once everything has been done a little
	var states []state
	for look := range looks + 1 {
		end := time.Now().Add(long / (looks + 1))
		for n := 0; time.Now().Before(end); n++ {
			if err := pause(ctx, time.Duration(rand.ExpFloat64()/deedsPerSecond*float64(time.Second))); err != nil {
				t.running.Wait()
				return nil, err
			}
			t.start(ctx, look*1_000_000+n)
		}
		t.running.Wait()
		if err := pause(ctx, 3*time.Second); err != nil { // background work ends meanwhile
			return nil, err
		}
		s, err := t.measured(ctx)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(out,
			"%2d/%d  %4.0f goroutines  %4.0f files  %6.1f MiB  %7.1f MiB on disk  %2.0f processes of sandboxes\n", look,
			looks, s.Goroutines, s.Files, s.RSS, s.Disk, s.Processes)
		states = append(states, s)
	}
	return states, nil
}

// start starts a random deed.
func (t *traffic) start(ctx context.Context, n int) {
	total := 0
	for _, d := range deeds {
		total += d.weight
	}
	pick := rand.IntN(total)
	deed := deeds[slices.IndexFunc(deeds, func(d struct {
		name   string
		weight int
		do     func(ctx context.Context, d *daemon, n int) error
	}) bool {
		pick -= d.weight
		return pick < 0
	})]
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.under >= mostUnderWay {
		t.late++
		return
	}
	t.under++
	t.running.Go(func() {
		err := deed.do(ctx, t.daemon, n)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.under--
		t.done[deed.name]++
		if err != nil {
			t.failed[deed.name]++
			t.first = errors.Join(t.first, errors.Wrapf(err, "%s", deed.name))
		}
	})
}

// report compares the last third of the samples with the first.
func (t *traffic) report(out io.Writer, states []state, long time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	total := 0
	for _, name := range slices.Sorted(maps.Keys(t.done)) {
		total += t.done[name]
		fmt.Fprintf(out, "%-9s %5d, %d failed\n", name, t.done[name], t.failed[name])
	}
	fmt.Fprintf(out, "%d deeds in %s, %d left out since %d were under way\n", total, long, t.late, mostUnderWay)
	states = states[1:]
	third := len(states) / 3
	var all error
	for _, m := range []struct {
		name  string
		of    func(state) float64
		slack float64 // tolerated growth
		part  float64 // tolerated growth, as a share of the first value
	}{
		{"goroutines", func(s state) float64 { return s.Goroutines }, 10, 0.05},
		{"open files", func(s state) float64 { return s.Files }, 10, 0.05},
		{"memory, MiB", func(s state) float64 { return s.RSS }, 16, 0.15},
		// Records, their events and the log: about 3 KiB for a deed, kept for 30 days.
		{"disk, MiB", func(s state) float64 { return s.Disk }, 4 + float64(total)*4/1024, 0.05},
		// A leaked sandbox is ten processes and more. gVisor keeps a few more for each resident once it has
		// been busy.
		{"processes", func(s state) float64 { return s.Processes }, 9, 0},
	} {
		first, last := mean(states[:third], m.of), mean(states[len(states)-third:], m.of)
		verdict := "flat"
		if last > first+math.Max(m.slack, m.part*first) {
			verdict = "GROWS"
			all = errors.Join(all, errors.Errorf("%s grow from %.1f to %.1f", m.name, first, last))
		}
		fmt.Fprintf(out, "%-12s %8.1f → %8.1f  %s\n", m.name, first, last, verdict)
	}
	return errors.Join(all, t.first)
}

func mean(states []state, of func(state) float64) float64 {
	sum := 0.0
	for _, s := range states {
		sum += of(s)
	}
	return sum / float64(len(states))
}
