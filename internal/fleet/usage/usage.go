// Package usage measures the resource usage of sandboxes over their lives.
package usage

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Usage is the resource usage of a sandbox over its life.
type Usage struct {
	Interval   float64  `json:"interval_seconds"` // approximate time between samples; it grows with the sandbox's age
	PeakMemory int64    `json:"peak_memory_bytes"`
	Samples    []Sample `json:"samples"` // oldest first; the newest is as recent as possible
	// Before is what earlier sandboxes of the engine used for this one, which was carried over or suspended. Samples
	// include it.
	Before engine.Usage `json:"before,omitzero"`
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
	// saveEvery bounds how much of a history a server crash can lose.
	saveEvery = time.Minute
)

// add adds a sample that is newer than the others. Among samples that are closer together than the interval, only the
// newest is kept.
func (u *Usage) add(s Sample) {
	n := len(u.Samples)
	if n > 0 && !s.Time.After(u.Samples[n-1].Time) {
		return
	}
	u.PeakMemory = max(u.PeakMemory, s.Memory)
	const late = 0.9 // of an interval: a timer may fire early after one that fired late
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

func (u Usage) clone() Usage {
	u.Samples = slices.Clone(u.Samples)
	return u
}

// Store stores the usage of sandboxes.
type Store interface {
	// PutUsage stores the usage of a sandbox and replaces the previous value. The sandbox's record must exist.
	PutUsage(ctx context.Context, id string, u Usage) error
	// Usage returns the stored usage; the zero Usage if none is stored.
	Usage(ctx context.Context, id string) (Usage, error)
}

// Meters measures all sandboxes of a server. All methods may be called concurrently.
type Meters struct {
	Store Store
	Every time.Duration    // between the samples of a sandbox
	Now   func() time.Time // the time for samples

	mu   sync.Mutex
	used engine.Usage // guarded by mu; cumulative values, of all sandboxes
}

// Used returns the cumulative values of all sandboxes.
func (m *Meters) Used() engine.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

func (m *Meters) count(used, last engine.Usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used.CPU += max(0, used.CPU-last.CPU)
	m.used.Received += max(0, used.Received-last.Received)
	m.used.Sent += max(0, used.Sent-last.Sent)
}

// Ended returns the usage of a sandbox that has ended.
func (m *Meters) Ended(ctx context.Context, id string) (Usage, error) {
	u, err := m.Store.Usage(ctx, id)
	if u.Interval == 0 {
		u.Interval = m.Every.Seconds()
	}
	return u, err
}

// Of returns the meter of a sandbox that has not ended.
func (m *Meters) Of(id string) *Meter { return &Meter{all: m, id: id} }

// Meter keeps the history of one sandbox. All methods may be called concurrently.
type Meter struct {
	all *Meters
	id  string

	mu   sync.Mutex
	kept *Usage // guarded by mu; nil until the first sample is due
}

// Source measures a sandbox. Current reports whether the sandbox is still the one that Engine measures: a sandbox that
// was lost or carried over is another one for the engine. A sandbox without an Engine cannot be measured.
type Source struct {
	Engine  engine.Meter // nil if there is none
	Current func() bool
}

// Follow samples a sandbox until it ends or is lost. pause waits, and reports whether to continue.
func (m *Meter) Follow(ctx context.Context, s Source, pause func(time.Duration) bool) {
	every := m.all.Every
	if s.Engine == nil || !pause(min(firstSample, every)) || !s.Current() {
		return
	}
	m.begin(ctx)
	saved := time.Now()
	for m.measure(ctx, s) {
		if time.Since(saved) >= saveEvery {
			m.Save(ctx)
			saved = time.Now()
		}
		if !pause(every) {
			m.Save(ctx)
			return
		}
	}
}

// begin starts the history, after that of an earlier server.
func (m *Meter) begin(ctx context.Context) {
	kept, err := m.all.Store.Usage(ctx, m.id)
	if err != nil {
		logf.Warnf(ctx, "read the earlier usage of a sandbox: %v", err)
	}
	kept.Interval = max(kept.Interval, m.all.Every.Seconds())
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = &kept
	}
}

func (m *Meter) begun() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept != nil
}

// measure takes a sample, and reports whether more samples are possible. A failed sample is skipped.
func (m *Meter) measure(ctx context.Context, s Source) bool {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	if s.Engine == nil || !s.Current() {
		return false
	}
	now := m.all.Now()
	used, err := s.Engine.Usage(ctx)
	if !s.Current() {
		return false
	}
	if err != nil {
		return !errors.Is(err, errors.Conflict) // it has ended
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	used.CPU += m.kept.Before.CPU
	used.Received += m.kept.Before.Received
	used.Sent += m.kept.Before.Sent
	last, _ := m.newest()
	m.all.count(used, last.Usage)
	m.kept.add(Sample{Time: now, Usage: used})
	return true
}

// Renew notes that another sandbox of the engine, whose counters begin at 0, continues as this one.
func (m *Meter) Renew(ctx context.Context) {
	if !m.begun() {
		m.begin(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	last, _ := m.newest()
	m.kept.Before = engine.Usage{CPU: last.CPU, Received: last.Received, Sent: last.Sent}
}

// newest returns the newest sample. m.mu is held.
func (m *Meter) newest() (Sample, bool) {
	if m.kept == nil || len(m.kept.Samples) == 0 {
		return Sample{}, false
	}
	return m.kept.Samples[len(m.kept.Samples)-1], true
}

// Last takes the last sample of a sandbox that is about to end, if it was sampled before.
func (m *Meter) Last(ctx context.Context, s Source) {
	if m.begun() {
		m.measure(ctx, s)
	}
}

// Memory returns the memory in use according to the newest sample.
func (m *Meter) Memory() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, _ := m.newest()
	return s.Memory
}

// Save stores the history.
func (m *Meter) Save(ctx context.Context) {
	m.mu.Lock()
	var u Usage
	if m.kept != nil {
		u = m.kept.clone()
	}
	m.mu.Unlock()
	if len(u.Samples) == 0 {
		return
	}
	if err := m.all.Store.PutUsage(context.WithoutCancel(ctx), m.id, u); err != nil {
		logf.Warnf(ctx, "store the usage of a sandbox: %v", err)
	}
}

// History returns the usage so far, with a fresh sample if the sandbox can be measured.
func (m *Meter) History(ctx context.Context, s Source) Usage {
	if !m.begun() { // a client asks within the first second
		m.begin(ctx)
	}
	m.mu.Lock()
	newest, ok := m.newest()
	m.mu.Unlock()
	if !ok || time.Since(newest.Time) >= freshSample {
		m.measure(ctx, s)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept.clone()
}
