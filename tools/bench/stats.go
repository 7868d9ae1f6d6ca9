package main

import (
	"math"
	"slices"
)

// percentile returns the smallest value that at least p percent of the values do not exceed (nearest rank), so
// it is always a measured value. p is above 0 and at most 100; values are sorted and not empty.
func percentile(sorted []float64, p float64) float64 {
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// summarize sets the percentiles of s from its values.
func (s *Series) summarize() {
	s.N = len(s.Values)
	if s.N == 0 {
		return
	}
	sorted := slices.Sorted(slices.Values(s.Values))
	s.P50, s.P95, s.P99 = percentile(sorted, 50), percentile(sorted, 95), percentile(sorted, 99)
}

// geometricMean returns the geometric mean of ratios: that of 2 and 1/2 is 1. The ratios are positive and not empty.
func geometricMean(ratios []float64) float64 {
	sum := 0.0
	for _, r := range ratios {
		sum += math.Log(r)
	}
	return math.Exp(sum / float64(len(ratios)))
}

// significant rounds to four digits, the precision of these measurements.
func significant(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return v
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}
