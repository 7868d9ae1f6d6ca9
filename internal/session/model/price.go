package model

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// price is in USD per million tokens.
type price struct {
	model         string // a name, or a prefix that ends in "*"
	input, output float64
	cached        float64 // input that was in the cache
	written       float64 // input that was written to the cache
	// long is the number of input tokens above which input costs longInput times as much, and output longOutput times;
	// 0: never
	long int64
}

const (
	longInput  = 2
	longOutput = 1.5
)

// families of Claude. The first is the price that Claude Code 2.1.328 prints for that model. The others assume the
// usual ratio of their families and were not compared with a bill. An unknown model of Anthropic has the first price,
// so that a limit is reached too early rather than too late.
var families = []price{claude("opus", 4, 20), claude("sonnet", 3, 15), claude("haiku", 1, 5)}

// claude returns a price with the ratios of
// https://docs.claude.com/en/docs/build-with-claude/prompt-caching.
func claude(model string, input, output float64) price {
	return price{model: model, input: input, output: output, cached: input / 10, written: input * 1.25}
}

const (
	openAILong = 272_000
	geminiLong = 200_000
)

// listed are list prices, as of 2026-11-30. They belong to https://developers.openai.com/api/docs/pricing (models
// without a price for writes do not charge them apart) and https://ai.google.dev/gemini-api/docs/pricing (3.6 to 3.8
// Flash cost half until 2026-12-31; the price from then on is used). Only that of gpt-6.2-sol was compared with its
// page; the others are from pages that quote these, and where they differ, the highest. None was compared with a bill:
// an operator who needs exact limits sets model.prices. Not included: the fee of tools that run at the provider, such
// as a web search; audio.
var listed = []price{
	{"gpt-6-astra", 10, 50, 1, 12.5, openAILong},
	{"gpt-6.2-sol", 2, 10, 0.1, 2.5, openAILong},
	{"gpt-6.1-sol", 2, 10, 0.1, 2.5, openAILong},
	{"gpt-6-sol", 2, 10, 0.2, 2.5, openAILong},
	{"gpt-6-luna", 0.1, 0.5, 0.01, 0.125, openAILong},
	{"gpt-5.6-sol", 5, 30, 0.5, 6.25, openAILong},
	{"gpt-5.6-terra", 2, 12, 0.2, 2.5, openAILong},
	{"gpt-5.6-luna", 0.2, 1.2, 0.02, 0.25, openAILong},
	{"gpt-5.5", 5, 30, 0.5, 5, openAILong},
	{"gpt-5.4", 2.5, 15, 0.25, 2.5, openAILong},
	{"gpt-5.4-mini", 0.75, 4.5, 0.075, 0.75, 0},
	{"gpt-5.4-nano", 0.2, 1.25, 0.02, 0.2, 0},
	{"gpt-5.3-codex", 1.75, 14, 0.175, 1.75, 0},
	{"gpt-5.2", 1.75, 14, 0.175, 1.75, 0},
	{"gpt-5.2-codex", 1.75, 14, 0.175, 1.75, 0},
	{"gpt-5.1", 1.25, 10, 0.125, 1.25, 0},
	{"gpt-5.1-codex", 1.25, 10, 0.125, 1.25, 0},
	{"gpt-5.1-codex-max", 1.25, 10, 0.125, 1.25, 0},
	{"gpt-5.1-codex-mini", 0.25, 2, 0.025, 0.25, 0},
	{"gpt-5", 1.25, 10, 0.125, 1.25, 0},
	{"gpt-5-codex", 1.25, 10, 0.125, 1.25, 0},
	{"gpt-5-mini", 0.25, 2, 0.025, 0.25, 0},
	{"gpt-5-nano", 0.05, 0.4, 0.005, 0.05, 0},
	{"gpt-4.1", 2, 8, 0.5, 2, 0},
	{"gpt-4.1-mini", 0.4, 1.6, 0.1, 0.4, 0},
	{"gpt-4.1-nano", 0.1, 0.4, 0.025, 0.1, 0},
	{"gpt-4o", 2.5, 10, 1.25, 2.5, 0},
	{"gpt-4o-mini", 0.15, 0.6, 0.075, 0.15, 0},
	{"o3", 2, 8, 0.5, 2, 0},
	{"o4-mini", 1.1, 4.4, 0.275, 1.1, 0},

	{"gemini-3.8-flash", 1.5, 7.5, 0.15, 1.5, 0},
	{"gemini-3.7-flash", 1.5, 7.5, 0.15, 1.5, 0},
	{"gemini-3.6-flash", 1.5, 7.5, 0.15, 1.5, 0},
	{"gemini-3.5-flash", 1.5, 9, 0.15, 1.5, 0},
	{"gemini-3.5-flash-lite", 0.3, 2.5, 0.03, 0.3, 0},
	{"gemini-3.1-pro", 2, 12, 0.2, 2, geminiLong},
	{"gemini-3.1-flash-lite", 0.25, 1.5, 0.025, 0.25, 0},
	{"gemini-3-pro", 2, 12, 0.2, 2, geminiLong},
	{"gemini-3-flash", 0.5, 3, 0.05, 0.5, 0},
	{"gemini-2.5-pro", 1.25, 10, 0.125, 1.25, geminiLong},
	{"gemini-2.5-flash", 0.3, 2.5, 0.03, 0.3, 0},
	{"gemini-2.5-flash-lite", 0.1, 0.4, 0.01, 0.1, 0},
}

// tiers are the factors of the prices of a service tier. Others cost the list price.
var tiers = map[string]float64{"flex": 0.5, "priority": 2, "fast": 2, "ultrafast": 6}

// parsePrices parses prices of the form MODEL=INPUT/OUTPUT or MODEL=INPUT/OUTPUT/CACHED, in USD per million tokens.
func parsePrices(texts []string) ([]price, error) {
	var all []price
	for _, text := range texts {
		name, values, ok := strings.Cut(text, "=")
		var numbers []float64
		for value := range strings.SplitSeq(values, "/") {
			n, err := strconv.ParseFloat(value, 64)
			ok = ok && err == nil && n >= 0 && n < 1e9
			numbers = append(numbers, n)
		}
		if !ok || name == "" || len(numbers) < 2 || len(numbers) > 3 {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "%.80q is not the price of a model", text),
				"write MODEL=INPUT/OUTPUT in USD per million tokens, such as my-model=1.5/6")
		}
		p := price{model: name, input: numbers[0], output: numbers[1], cached: numbers[0], written: numbers[0]}
		if len(numbers) == 3 {
			p.cached = numbers[2]
		}
		all = append(all, p)
	}
	return all, nil
}

// matches reports whether p is the price of a model: of its name, or of a snapshot such as NAME-2026-11-30.
func (p price) matches(model string) bool {
	if prefix, ok := strings.CutSuffix(p.model, "*"); ok {
		return strings.HasPrefix(model, prefix)
	}
	rest, ok := strings.CutPrefix(model, p.model)
	snapshot := slices.ContainsFunc([]string{"-2", "-0", "-latest", "-preview", "-exp"}, func(s string) bool {
		return strings.HasPrefix(rest, s)
	})
	return ok && (rest == "" || snapshot)
}

// longest returns the price with the longest name that matches.
func longest(prices []price, model string) (found price, ok bool) {
	for _, p := range prices {
		if p.matches(model) && (!ok || len(p.model) > len(found.model)) {
			found, ok = p, true
		}
	}
	return found, ok
}

// priceOf returns the price of a provider's model. ok is false if it is not known.
func (g *Gateway) priceOf(p Provider, model string) (found price, ok bool) {
	short := model[strings.LastIndex(model, "/")+1:] // OpenRouter and others name the vendor first
	for _, prices := range [][]price{g.prices, listed} {
		for _, name := range []string{model, short} {
			if found, ok := longest(prices, name); ok {
				return found, true
			}
		}
	}
	anthropic := p == Anthropic || p == Bedrock
	for _, family := range families {
		if strings.Contains(model, family.model) && (anthropic || strings.Contains(model, "claude")) {
			return family, true
		}
	}
	return families[0], anthropic
}

// priced reports whether the cost of a model will be known. OpenRouter reports it.
func (g *Gateway) priced(p Provider, model string) bool {
	_, ok := g.priceOf(p, model)
	return ok || p == OpenRouter
}

// bill sets the cost of a usage.
func (g *Gateway) bill(p Provider, u *Usage, a answer) {
	if a.cost != nil {
		u.Cost = *a.cost
		return
	}
	known, ok := g.priceOf(p, u.Model)
	if !ok && p == OpenRouter { // it has not reported the cost, as when the answer broke off
		known, ok = slices.MaxFunc(listed, func(a, b price) int { return cmp.Compare(a.output, b.output) }), true
	}
	if u.Unpriced = !ok; ok {
		u.Cost = known.cost(*u) * cmp.Or(tiers[a.tier], 1)
	}
}

// cost returns the price of a usage.
func (p price) cost(u Usage) float64 {
	in := float64(u.InputTokens)*p.input + float64(u.CacheReadTokens)*p.cached + float64(u.CacheWriteTokens)*p.written
	out := float64(u.OutputTokens) * p.output
	if p.long > 0 && u.InputTokens+u.CacheReadTokens+u.CacheWriteTokens > p.long {
		in, out = in*longInput, out*longOutput
	}
	return (in + out) / 1e6
}
