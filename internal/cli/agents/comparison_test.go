package agents

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// TestVariants checks that there is one session for each agent and each model, n of each.
func TestVariants(t *testing.T) {
	t.Parallel()
	var got []string
	for _, a := range variants([]string{"claude", "opencode"}, []string{"x", "y"}, 2) {
		got = append(got, fmt.Sprint(a.Number, a.Agent, a.Model))
	}
	if text := strings.Join(got,
		" "); text != "1claudex 2claudex 3claudey 4claudey 5opencodex 6opencodex 7opencodey 8opencodey" {
		t.Error(text)
	}
	if one := variants(nil, nil, 1); len(one) != 1 || one[0].Agent != "claude" {
		t.Errorf("%+v", one)
	}
}

// TestComparisonTable checks that the table fits 80 columns, whatever agents reply.
func TestComparisonTable(t *testing.T) {
	t.Parallel()
	var out, hints bytes.Buffer
	c := commands{cli.New("harvest", nil, &out, &hints, nil)}
	c.Format = cli.FormatTable
	r := &compareRun{comparison: comparison{commands: c, attempts: variants([]string{"opencode", "claude"},
		[]string{"m-" + strings.Repeat("long", 10), ""}, 2)}}
	for i, a := range r.attempts {
		a.Session, a.Kept, a.Status = "ses_01m89qsa0zjp8k5t3cez3d432p", true, attemptDone
		a.Reply = "\x1b[31mI have " + strings.Repeat("done it ", 20) + "\nmore"
		a.Files, a.Added, a.Removed, a.Cost, a.Seconds = 123, 4567, 890, 12.345, 754.2
		a.Test = []*testResult{nil, {Passed: true}, {ReturnCode: 137}, {TimedOut: true}}[i%4]
	}
	r.attempts[7] = &attempt{Number: 8, Agent: "claude", Status: attemptFailed, Error: "there is no agent"}
	if err := errors.Join(r.table(), r.result()); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 || strings.ContainsRune(line, '\x1b') {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	for _, want := range []string{"1  opencode  done    123    +4567 -890  -", "passed", "failed 137", "too slow",
		"12m34s", "8  -  there is no agent\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if !strings.Contains(hints.String(), "harvest end --discard SESSION") {
		t.Errorf("hints: %s", &hints)
	}
	for _, a := range r.attempts {
		a.Status, a.Error = attemptFailed, "it broke"
	}
	if err := r.result(); errors.KindOf(err) != errors.Unavailable ||
		!strings.Contains(errors.Message(err), "it broke") {
		t.Errorf("where all failed: %v", err)
	}
	if got := duration(61.4); got != (61 * time.Second).String() {
		t.Error(got)
	}
}
