package model

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/session/cause"
)

// TestCost checks prices: those of Claude are those that Claude Code prints (see the transcripts of package claude),
// those of the operator come first, and a model without a price has no cost.
func TestCost(t *testing.T) {
	t.Parallel()
	prices, err := parsePrices([]string{"mine=1/2/0.5", "mine-large*=10/20", "gpt-6-luna=7/7"})
	if err != nil {
		t.Fatal(err)
	}
	g := &Gateway{prices: prices}
	reported := 0.25
	for _, c := range []struct {
		p    Provider
		u    Usage
		a    answer
		want float64 // -1: not known
	}{
		{Anthropic, Usage{Model: "claude-opus-5-5", InputTokens: 36439, OutputTokens: 109}, answer{}, 0.147936},
		{Anthropic, Usage{Model: "claude-haiku-4-5-20251001", InputTokens: 1e6, CacheReadTokens: 1e6,
			CacheWriteTokens: 1e6}, answer{}, 2.35},
		{Anthropic, Usage{Model: "odd", OutputTokens: 1e6}, answer{}, 20},
		{Bedrock, Usage{Model: "us.anthropic.claude-sonnet-5", OutputTokens: 1e6}, answer{}, 15},
		{OpenAI, Usage{Model: "gpt-6.2-sol", InputTokens: 1e5, CacheReadTokens: 1e5, OutputTokens: 1e5}, answer{},
			1.21},
		{OpenAI, Usage{Model: "gpt-6.2-sol-2026-11-24", OutputTokens: 1e6}, answer{}, 10},
		{OpenAI, Usage{Model: "gpt-6.2-sol", InputTokens: 3e5, OutputTokens: 1e5}, answer{}, 2.7}, // long
		{OpenAI, Usage{Model: "gpt-5-mini", OutputTokens: 1e6}, answer{}, 2},
		{OpenAI, Usage{Model: "gpt-5-mini", OutputTokens: 1e6}, answer{tier: "priority"}, 4},
		{OpenAI, Usage{Model: "gpt-5-mini", OutputTokens: 1e6}, answer{tier: "default"}, 2},
		{OpenAI, Usage{Model: "gpt-5-pro", OutputTokens: 1e6}, answer{}, -1}, // ten times as much as gpt-5
		{OpenAI, Usage{Model: "gpt-5.55", OutputTokens: 1e6}, answer{}, -1},
		{OpenAI, Usage{Model: "llama", OutputTokens: 1e6}, answer{}, -1},
		{OpenAI, Usage{Model: "opus-of-another", OutputTokens: 1e6}, answer{}, -1},
		{OpenAI, Usage{Model: "", OutputTokens: 1e6}, answer{}, -1},
		{OpenAI, Usage{Model: "mine", InputTokens: 1e6, CacheReadTokens: 1e6}, answer{}, 1.5},
		{OpenAI, Usage{Model: "mine-large-7b", OutputTokens: 1e6}, answer{}, 20},
		{OpenAI, Usage{Model: "gpt-6-luna", OutputTokens: 1e6}, answer{}, 7},
		{OpenAI, Usage{Model: "vendor/mine", OutputTokens: 1e6}, answer{}, 2},
		{Gemini, Usage{Model: "gemini-3.1-pro-preview", InputTokens: 2e5, OutputTokens: 1e6}, answer{}, 12.4},
		{Gemini, Usage{Model: "gemini-3.1-pro-preview", InputTokens: 200001}, answer{}, 0.800004},
		{Gemini, Usage{Model: "gemini-3.5-flash-lite", OutputTokens: 1e6}, answer{}, 2.5},
		{Gemini, Usage{Model: "gemini-9", OutputTokens: 1e6}, answer{}, -1},
		{OpenRouter, Usage{Model: "x/y", OutputTokens: 1e6}, answer{cost: &reported}, 0.25},
		{OpenRouter, Usage{Model: "anthropic/claude-sonnet-5", OutputTokens: 1e6}, answer{}, 15},
		{OpenRouter, Usage{Model: "x/y", OutputTokens: 1e6}, answer{}, 50}, // too early rather than too late
	} {
		g.bill(c.p, &c.u, c.a)
		if c.want < 0 != c.u.Unpriced || c.want >= 0 && math.Abs(c.u.Cost-c.want) > 1e-9 ||
			c.u.Unpriced && (c.u.Cost != 0 || g.priced(c.p, c.u.Model)) {
			t.Errorf("%s %+v, want %g", c.p, c.u, c.want)
		}
	}
	for _, bad := range []string{"m", "m=1", "=1/2", "m=a/2", "m=1/-2", "m=1/2/3/4", "m=1/NaN", "m=Inf/1"} {
		if _, err := parsePrices([]string{bad}); err == nil {
			t.Errorf("%q is a price", bad)
		}
	}
	for i, p := range listed {
		if p.input <= 0 || p.output < p.input || p.cached > p.input || p.written < p.input {
			t.Errorf("%+v", p)
		}
		for _, other := range listed[i+1:] {
			if p.model == other.model {
				t.Errorf("%s has two prices", p.model)
			}
		}
	}
}

// TestLimitNeedsPrice checks that a session with a limit of cost cannot use a model whose cost nobody knows, and learns
// why. Without a limit, it can.
func TestLimitNeedsPrice(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"object":"response","usage":{"input_tokens":1000000}}`)
	}))
	defer upstream.Close()
	g, err := New(Options{Key: []byte("k"), Prices: []string{"mine=3/9"},
		Upstreams: map[Provider]string{OpenAI: upstream.URL, Gemini: upstream.URL, OpenRouter: upstream.URL},
		Credential: func(_ context.Context, _ string, _ []string, p []Provider) (Credential, error) {
			return Credential{Kind: Default(p[0]), Value: "key"}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, model string
		left        float64
		status      int
		cost        float64
	}{
		{"/openai/v1/responses", "mine", 1, 200, 3},
		{"/openai/v1/responses", "theirs", math.Inf(1), 200, 0},
		{"/openai/v1/responses", "theirs", 1, 400, 0},
		{"/openai/v1/responses", "", 1, 400, 0},
		{"/openai/v1/chat/completions", "theirs", 1, 400, 0},
		{"/gemini/v1/models/theirs:generateContent", "", 1, 403, 0},
		{"/gemini/v1/models/theirs:countTokens", "", 1, 200, 0},
		{"/openrouter/v1/chat/completions", "theirs", 1, 200, 0},
	} {
		var used Usage
		answers := &Answers{}
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.path,
			strings.NewReader(fmt.Sprintf(`{"model":%q,"Model":"mine"}`, c.model)))
		r.Header.Set("Authorization", "Bearer "+g.Token("s"))
		g.Handler(Grant{ID: "s", Answers: answers, Left: func() float64 { return c.left },
			Spend: func(u Usage) { used = u }}).ServeHTTP(w, r)
		if w.Code != c.status || c.path == "/openai/v1/responses" && used.Cost != c.cost {
			t.Errorf("%s %q, %g left: %d %s, %+v", c.path, c.model, c.left, w.Code, w.Body, used)
		}
		if f := answers.Take(); c.status == 403 && (f == nil || f.Cause() != cause.Price ||
			!strings.Contains(f.String(), "model.prices")) {
			t.Errorf("%s: %v", c.path, f)
		}
		if c.status == 200 && math.IsInf(c.left, 1) && !used.Unpriced {
			t.Errorf("%s: %+v", c.path, used)
		}
	}
	if _, err := New(Options{Key: []byte("k"), Prices: []string{"m=x"}, Credential: g.opts.Credential}); err == nil {
		t.Error("a price that is none")
	}
}
