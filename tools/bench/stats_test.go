package main

import (
	"math"
	"testing"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for _, c := range []struct {
		values []float64
		p      float64
		want   float64
	}{
		{[]float64{7}, 50, 7},
		{[]float64{7}, 99, 7},
		{[]float64{1, 2}, 50, 1},
		{[]float64{1, 2, 3}, 50, 2},
		{[]float64{1, 2, 3, 4}, 95, 4},
		{hundred, 50, 50},
		{hundred, 95, 95},
		{hundred, 99, 99},
		{hundred, 99.1, 100},
		{hundred[:20], 95, 19},
		{hundred[:20], 99, 20},
		{hundred, 0.001, 1},
	} {
		if got := percentile(c.values, c.p); got != c.want {
			t.Errorf("percentile %v of %d values is %v, want %v", c.p, len(c.values), got, c.want)
		}
	}
}

func TestSummarizeKeepsTheOrderOfMeasuring(t *testing.T) {
	t.Parallel()
	s := Series{Values: []float64{3, 1, 2}}
	s.summarize()
	if s.N != 3 || s.P50 != 2 || s.P95 != 3 || s.P99 != 3 {
		t.Errorf("summary is %+v", s)
	}
	if s.Values[0] != 3 || s.Values[2] != 2 {
		t.Errorf("the values are now %v", s.Values)
	}
	empty := Series{}
	empty.summarize()
	if empty.N != 0 || empty.P50 != 0 {
		t.Errorf("summary of nothing is %+v", empty)
	}
}

func TestGeometricMean(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ratios []float64
		want   float64
	}{
		{[]float64{2}, 2},
		{[]float64{2, 0.5}, 1},
		{[]float64{1, 2, 4}, 2},
		{[]float64{8, 1, 1}, 2},
	} {
		if got := geometricMean(c.ratios); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("mean of %v is %v, want %v", c.ratios, got, c.want)
		}
	}
}

func TestSignificant(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]float64{0: 0, 1.23456: 1.235, 123456: 123500, 0.000123456: 0.0001235,
		-98.765: -98.77, 1000: 1000} {
		if got := significant(v); math.Abs(got-want) > 1e-12 {
			t.Errorf("%v becomes %v, want %v", v, got, want)
		}
	}
	if got := significant(math.Inf(1)); !math.IsInf(got, 1) {
		t.Errorf("infinity becomes %v", got)
	}
}
