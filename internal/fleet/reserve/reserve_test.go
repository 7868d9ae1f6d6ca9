package reserve_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// TestQuotasAdmitUpToTheLimit checks that the last sandbox that fits is admitted, that the next one is not, and that
// one error lists all exceeded quotas.
// mission: A11
func TestQuotasAdmitUpToTheLimit(t *testing.T) {
	t.Parallel()
	quotas := reserve.Quotas{Sandboxes: 10, CPU: 1, Memory: 1 << 30}
	for name, c := range map[string]struct {
		quotas reserve.Quotas
		inUse  reserve.Use
		cpu    float64
		memory int64
		words  []string // of the error; none if it is admitted
	}{
		"no quotas": {reserve.Quotas{}, reserve.Use{Sandboxes: 1e6, CPU: 1e6, Memory: 1 << 60}, 1e6, 1 << 60,
			nil},
		"all at once": {quotas, reserve.Use{Sandboxes: 9}, 1, 1 << 30, nil},
		"one too many": {quotas, reserve.Use{Sandboxes: 10}, 0, 0,
			[]string{"10 sandboxes", "10 are in use", "1 more is"}},
		"a byte too many": {quotas, reserve.Use{Memory: 1}, 0, 1 << 30, []string{"1GiB of memory", "1B are in use"}},
		"too much cpu": {quotas, reserve.Use{CPU: 0.5}, 0.6, 0,
			[]string{"1 core at once", "0.5 are in use", "0.6 more are"}},
		"everything": {quotas, reserve.Use{Sandboxes: 10, CPU: 1, Memory: 1 << 30}, 1, 1, []string{"3 things",
			"10 sandboxes", "1 core", "1 is in use", "1 more is requested", "1GiB of memory"}},
		"only memory limited": {reserve.Quotas{Memory: 1}, reserve.Use{Sandboxes: 99, CPU: 99}, 99, 2,
			[]string{"1B of memory"}},
	} {
		err := c.quotas.Admit(c.inUse, c.cpu, c.memory)
		if len(c.words) == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, errors.Exhausted) || errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v, want Exhausted with a remedy", name, err)
		}
		for _, word := range c.words {
			if !strings.Contains(errors.Message(err), word) {
				t.Errorf("%s: %q lacks %q", name, errors.Message(err), word)
			}
		}
	}
}

// TestTenthsOfCoresAddUp checks that three tenths of a core are 0.3 cores, although their sum in binary is more.
func TestTenthsOfCoresAddUp(t *testing.T) {
	t.Parallel()
	quotas := reserve.Quotas{CPU: 0.3}
	var inUse reserve.Use
	for i := range 3 {
		if err := quotas.Admit(inUse, 0.1, 0); err != nil {
			t.Fatalf("tenth %d: %v", i+1, err)
		}
		inUse.Add(0.1, 0)
	}
	if err := quotas.Admit(inUse, 0.1, 0); !errors.Is(err, errors.Exhausted) {
		t.Errorf("the fourth tenth: %v", err)
	}
	if inUse.Sandboxes != 3 {
		t.Errorf("%d sandboxes", inUse.Sandboxes)
	}
}

// mission: A12
func TestCost(t *testing.T) {
	t.Parallel()
	prices := reserve.Prices{CPUSecond: 1, GiBSecond: 10, GPUSecond: map[string]float64{"T4": 100}}
	for name, c := range map[string]struct {
		cpu    float64
		memory int64
		gpu    string
		took   time.Duration
		want   float64
	}{
		"nothing":                    {0, 0, "", time.Hour, 0},
		"half a core":                {0.5, 0, "", 10 * time.Second, 5},
		"half a GiB":                 {0, 1 << 29, "", 2 * time.Second, 10},
		"one GPU":                    {0, 0, "T4", time.Second, 100},
		"three GPUs":                 {0, 0, "T4:3", time.Second, 300},
		"a kind without a price":     {1, 0, "H100:8", time.Second, 1},
		"a clock that was set back":  {4, 1 << 34, "T4", -time.Hour, 0},
		"all of them, for a quarter": {2, 1 << 30, "T4:2", 250 * time.Millisecond, 53},
	} {
		if got := prices.Cost(c.cpu, c.memory, c.gpu, c.took); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// mission: F5
func TestConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		quotas reserve.Quotas
		prices reserve.Prices
		want   string // in the error; "" for none
	}{
		{reserve.Quotas{}, reserve.Prices{}, ""},
		{reserve.Quotas{Sandboxes: -1}, reserve.Prices{}, "quotas"},
		{reserve.Quotas{CPU: -0.1}, reserve.Prices{}, "quotas"},
		{reserve.Quotas{Memory: -1}, reserve.Prices{}, "quotas"},
		{reserve.Quotas{}, reserve.Prices{CPUSecond: math.NaN()}, "prices"},
		{reserve.Quotas{}, reserve.Prices{GiBSecond: math.Inf(1)}, "prices"},
		{reserve.Quotas{}, reserve.Prices{GPUSecond: map[string]float64{"T4": -1}}, "prices"},
	} {
		var p spec.Problems
		c.quotas.Check(&p)
		c.prices.Check(&p)
		err := p.Err()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(errors.Message(err), c.want) {
			t.Errorf("%+v, %+v: %v, want %q", c.quotas, c.prices, err, c.want)
		}
	}
}

// TestAtLimit checks that an error tells a request that has to wait from one that exceeds the quotas by itself.
func TestAtLimit(t *testing.T) {
	t.Parallel()
	quotas := reserve.Quotas{Sandboxes: 2, CPU: 4}
	for cpu, want := range map[float64]bool{2: true, 5: false} {
		err := quotas.Admit(reserve.Use{Sandboxes: 2, CPU: 3}, cpu, 0)
		var full reserve.AtLimit
		if errors.As(err, &full) != want || errors.KindOf(err) != errors.Exhausted {
			t.Errorf("%v cores: %v", cpu, err)
		}
	}
}
