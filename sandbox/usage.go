package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// Usage is the resource usage of a sandbox over its life.
type Usage struct {
	Interval   float64  `json:"interval_seconds"` // approximate time between samples; it grows with the sandbox's age
	PeakMemory int64    `json:"peak_memory_bytes"`
	Samples    []Sample `json:"samples"` // oldest first; the newest is as recent as possible
}

// Totals is the total usage of an account's sandboxes.
type Totals struct {
	Sandboxes int
	Seconds   float64 // from each start to the end, or until now
	Cost      float64 // USD, from Options.Prices
}

// Add adds the usage of s until now.
func (t *Totals) Add(s Sandbox, now time.Time) {
	if !s.Ended.IsZero() {
		now = s.Ended
	}
	t.Sandboxes++
	t.Cost += s.Cost
	if !s.Started.IsZero() {
		t.Seconds += max(0, now.Sub(s.Started).Seconds())
	}
}

// Totals returns the account's total usage so far over all sandboxes.
func (f *Fleet) Totals(ctx context.Context, account string) (Totals, error) {
	t, err := f.opts.Store.Totals(ctx, account)
	if err != nil {
		return Totals{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.live {
		// Ended sandboxes are in the Store, or will be in a moment.
		if e.record.Account == account && e.record.Ended.IsZero() {
			t.Add(f.snapshot(e), f.now())
		}
	}
	return t, nil
}

// Sample is the cumulative usage at a time.
type Sample struct {
	Time time.Time `json:"at"`
	engine.Usage
}

const (
	// keptSamples limits the history of a sandbox. Beyond it, every other sample is dropped, which loses nothing of
	// cumulative values.
	keptSamples = 360
	// firstSample is the latest time of the first sample. Sandboxes that end earlier are not sampled and cause no
	// load.
	firstSample = time.Second
	// freshSample is the maximum age of the newest sample in an answer.
	freshSample = time.Second
	// sampleTime is the time limit for the engine to take a sample.
	sampleTime = 5 * time.Second
	// saveUsageEvery bounds how much of a history a server crash can lose.
	saveUsageEvery = time.Minute
)

// add adds a sample that is newer than the others. Among samples that are closer together than the interval, only the
// newest is kept.
func (u *Usage) add(s Sample) {
	n := len(u.Samples)
	if n > 0 && !s.Time.After(u.Samples[n-1].Time) {
		return
	}
	u.PeakMemory = max(u.PeakMemory, s.Memory)
	const late = 0.9 // of a timer that fires early after one that fired late
	if n > 1 && u.Samples[n-1].Time.Sub(u.Samples[n-2].Time).Seconds() < u.Interval*late {
		u.Samples[n-1] = s
		return
	}
	u.Samples = append(u.Samples, s)
	if len(u.Samples) <= keptSamples {
		return
	}
	newest, thin := u.Samples[n], u.Samples[:0]
	for i := 0; i < n; i += 2 {
		thin = append(thin, u.Samples[i])
	}
	u.Samples = append(thin, newest)
	u.Interval *= 2
}

// meter samples the usage of a running sandbox until it ends or is lost. Sandboxes whose engine cannot measure cause
// no load.
func (f *Fleet) meter(e *entry, box engine.Sandbox) {
	meter, ok := box.(engine.Meter)
	if !ok || !f.caps.Usage {
		return
	}
	ctx := logf.With(f.ctx, "sandbox_id", e.id)
	every := f.opts.UsageEvery
	if !f.pause(min(firstSample, every)) || !f.lives(e.id) {
		return
	}
	f.beginUsage(ctx, e)
	saved := time.Now()
	for f.measure(ctx, e, box, meter) {
		if time.Since(saved) >= saveUsageEvery {
			f.saveUsage(ctx, e)
			saved = time.Now()
		}
		if !f.pause(every) {
			f.saveUsage(ctx, e)
			return
		}
	}
}

// beginUsage starts e's history, after that of an earlier server.
func (f *Fleet) beginUsage(ctx context.Context, e *entry) {
	kept, err := f.opts.Store.Usage(ctx, e.id)
	if err != nil {
		logf.Warnf(ctx, "read the earlier usage of a sandbox: %v", err)
	}
	kept.Interval = max(kept.Interval, f.opts.UsageEvery.Seconds())
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.usage == nil {
		e.usage = &kept
	}
}

// measure takes a sample, and reports whether more samples are possible. A failed sample is skipped.
func (f *Fleet) measure(ctx context.Context, e *entry, box engine.Sandbox, meter engine.Meter) bool {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	f.mu.Lock()
	gone := e.box != box
	f.mu.Unlock()
	if gone {
		return false
	}
	now := f.now()
	used, err := meter.Usage(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.box != box {
		return false
	}
	if err != nil {
		return !errors.Is(err, errors.Conflict) // it has ended
	}
	var last engine.Usage
	if n := len(e.usage.Samples); n > 0 {
		last = e.usage.Samples[n-1].Usage
	}
	f.used.CPU += max(0, used.CPU-last.CPU)
	f.used.Received += max(0, used.Received-last.Received)
	f.used.Sent += max(0, used.Sent-last.Sent)
	e.usage.add(Sample{Time: now, Usage: used})
	return true
}

// lastMeasure takes the last sample of a sandbox that is about to end, if it was sampled before.
func (f *Fleet) lastMeasure(ctx context.Context, e *entry, box engine.Sandbox) {
	f.mu.Lock()
	watched := e.usage != nil
	f.mu.Unlock()
	if meter, ok := box.(engine.Meter); ok && watched {
		f.measure(ctx, e, box, meter)
	}
}

// saveUsage stores e's history.
func (f *Fleet) saveUsage(ctx context.Context, e *entry) {
	f.mu.Lock()
	var u Usage
	if e.usage != nil {
		u = e.usage.clone()
	}
	f.mu.Unlock()
	if len(u.Samples) == 0 {
		return
	}
	if err := f.opts.Store.PutUsage(context.WithoutCancel(ctx), e.id, u); err != nil {
		logf.Warnf(ctx, "store the usage of a sandbox: %v", err)
	}
}

func (u Usage) clone() Usage {
	u.Samples = slices.Clone(u.Samples)
	return u
}

// Usage returns the resource usage of a sandbox over its life, also after its end, as long as its record is kept. A
// sandbox that ended within a second or two has no samples. Kinds: NotFound, Unsupported (the engine cannot measure
// usage).
func (f *Fleet) Usage(ctx context.Context, account, ref string) (Usage, error) {
	if err := f.begin(); err != nil {
		return Usage{}, err
	}
	defer f.tasks.Done()
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return Usage{}, err
	}
	if e == nil {
		return f.usageOfEnded(ctx, sb.ID)
	}
	if !f.caps.Usage {
		return Usage{}, f.noUsage()
	}
	f.mu.Lock()
	box, begun := e.box, e.usage != nil
	f.mu.Unlock()
	if !begun { // a client asks within the first second
		f.beginUsage(ctx, e)
	}
	f.mu.Lock()
	n := len(e.usage.Samples)
	stale := n == 0 || time.Since(e.usage.Samples[n-1].Time) >= freshSample
	f.mu.Unlock()
	if meter, ok := box.(engine.Meter); ok && stale {
		f.measure(ctx, e, box, meter)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return e.usage.clone(), nil
}

// usageOfEnded is Usage for a sandbox that has ended.
func (f *Fleet) usageOfEnded(ctx context.Context, id string) (Usage, error) {
	u, err := f.opts.Store.Usage(ctx, id)
	if err == nil && len(u.Samples) == 0 && !f.caps.Usage {
		err = f.noUsage()
	}
	if u.Interval == 0 {
		u.Interval = f.opts.UsageEvery.Seconds()
	}
	return u, err
}

func (f *Fleet) noUsage() error {
	err := errors.Newf(errors.Unsupported, "the engine %s does not report the resource use of sandboxes",
		f.opts.Engine.Name())
	return errors.Remedy(err,
		"measure it within the sandbox, for example: harvest sandbox exec SANDBOX -- cat /proc/meminfo")
}
