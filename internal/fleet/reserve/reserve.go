// Package reserve limits the reservations of an account's sandboxes, and computes their cost.
package reserve

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// Quotas of an account; 0 means no quota.
type Quotas struct {
	Sandboxes int     `json:"sandboxes"`
	CPU       float64 `json:"cpu"`
	Memory    int64   `json:"memory_bytes"`
}

// Use is the reservation of one or more sandboxes.
type Use struct {
	Sandboxes int
	CPU       float64
	Memory    int64
}

// Add adds the reservation of one more sandbox.
func (u *Use) Add(cpu float64, memory int64) {
	u.Sandboxes++
	u.CPU += cpu
	u.Memory += memory
}

// Check adds a problem for a negative quota.
func (q Quotas) Check(p *spec.Problems) {
	p.Require(q.Sandboxes >= 0 && q.CPU >= 0 && q.Memory >= 0, "quotas must not be negative")
}

// AtLimit is the error of a request that the quotas admit once other sandboxes of the account have ended.
type AtLimit struct{ error }

// Unwrap returns the error with its kind.
func (e AtLimit) Unwrap() error { return e.error }

// Admit returns Exhausted, with all quotas that would be exceeded, if an account that uses inUse may not have one more
// sandbox with these reservations. The error is an AtLimit if that may change.
func (q Quotas) Admit(inUse Use, cpu float64, memory int64) error {
	err := q.admit(inUse, cpu, memory)
	if err != nil && q.admit(Use{}, cpu, memory) == nil {
		return AtLimit{err}
	}
	return err
}

func (q Quotas) admit(inUse Use, cpu float64, memory int64) error {
	var ps spec.Problems
	exceeded := func(quota, inUse, asked string) {
		ps.Addf(errors.Exhausted, "remove unused sandboxes, request less, or have the quota raised",
			"quota of the account: %s at once; %s in use, %s requested", quota, inUse, asked)
	}
	size := func(n int64) string { return units.BytesSize(float64(n)) }
	if q.Sandboxes > 0 && inUse.Sandboxes+1 > q.Sandboxes {
		exceeded(plural(float64(q.Sandboxes), "sandbox", "sandboxes"), plural(float64(inUse.Sandboxes), "is", "are"),
			"1 more is")
	}
	const rounding = 1e-9 // tenths of cores do not add up exactly
	if q.CPU > 0 && inUse.CPU+cpu > q.CPU+rounding {
		exceeded(plural(q.CPU, "core", "cores"), plural(inUse.CPU, "is", "are"), plural(cpu, "more is", "more are"))
	}
	if q.Memory > 0 && inUse.Memory+memory > q.Memory {
		exceeded(size(q.Memory)+" of memory", size(inUse.Memory)+" are", size(memory)+" more are")
	}
	return ps.Err()
}

// plural formats a number with the singular or plural word.
func plural(n float64, one, many string) string {
	word := many
	if n == 1 {
		word = one
	}
	return strconv.FormatFloat(n, 'g', 6, 64) + " " + word
}

// Prices in USD.
type Prices struct {
	CPUSecond float64            `json:"cpu_second"` // of one core
	GiBSecond float64            `json:"gib_second"` // of one GiB of memory
	GPUSecond map[string]float64 `json:"gpu_second"` // of one GPU, by its kind; missing kinds are free
}

// Check adds a problem if a price is negative or not a number.
func (p Prices) Check(ps *spec.Problems) {
	all := append(slices.Collect(maps.Values(p.GPUSecond)), p.CPUSecond, p.GiBSecond)
	ps.Require(!slices.ContainsFunc(all, func(v float64) bool { return !(v >= 0 && !math.IsInf(v, 0)) }),
		"prices must be numbers and not negative")
}

// Cost returns the price of reserving cpu, memory and gpu (in the notation of requests) for a duration.
func (p Prices) Cost(cpu float64, memory int64, gpu string, took time.Duration) float64 {
	kind, count, several := strings.Cut(gpu, ":")
	gpus := 1.0
	if n, err := strconv.Atoi(count); several && err == nil {
		gpus = float64(n)
	}
	return max(0, took.Seconds()) * (cpu*p.CPUSecond + float64(memory)/(1<<30)*p.GiBSecond + gpus*p.GPUSecond[kind])
}
