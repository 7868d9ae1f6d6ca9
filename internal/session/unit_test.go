package session

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/cause"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/pipe"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// recordOnly keeps the newest record of a session.
type recordOnly struct {
	records.Store
	last records.Session
}

func (s *recordOnly) PutSession(_ context.Context, record records.Session) error {
	s.last = record
	return nil
}

// TestDeliverAgain checks that the part of a delivery that the agent received is not written again, and that the rest
// is.
//
// mission: E4
func TestDeliverAgain(t *testing.T) {
	const turn, prompt = "msg_1", "go on"
	whole := string(scripted.Agent{}.Open(agent.Setup{}).Prompt(turn+"..p", prompt))
	for _, c := range []struct {
		name     string
		received int64 // by the process, of all input
		d        records.Delivery
		want     string
	}{
		{"nothing", 100, records.Delivery{Message: turn, Process: "p", At: 100, Size: len(whole)}, whole},
		{"less than was there before", 90, records.Delivery{Message: turn, Process: "p", At: 100, Size: len(whole)},
			whole},
		{"a part", 105, records.Delivery{Message: turn, Process: "p", At: 100, Size: len(whole)}, whole[5:]},
		{"all", 100 + int64(len(whole)), records.Delivery{Message: turn, Process: "p", At: 100, Size: len(whole)}, ""},
		{"by another process", 500, records.Delivery{Message: turn, Process: "old", At: 100, Size: len(whole)}, whole},
		{"of another turn", 100, records.Delivery{Message: "msg_0", Process: "p", At: 100, Size: len(whole)}, ""},
		{"of an answer", 103, records.Delivery{Message: turn, Process: "p", At: 100, Size: 7, Text: []byte("answer\n")},
			"wer\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := &recordOnly{}
			r := newRunner(&Manager{opts: Options{Store: store}, ctx: t.Context()},
				records.Session{ID: "ses_1", Process: "p", Conversation: "c", Deliveries: []records.Delivery{c.d}})
			r.agent, r.conv = &pipe.Process{In: pipe.NewInbox(), Received: c.received, Written: c.received,
				Counted: true}, scripted.Agent{}.Open(agent.Setup{})
			r.current, r.recheck, r.lost = &records.Message{ID: turn, Prompt: prompt}, true, []records.Delivery{c.d}
			r.redeliver(t.Context())
			r.agent.In.Close()
			if got, err := io.ReadAll(r.agent.In); err != nil || string(got) != c.want {
				t.Errorf("written: %q, %v, want %q", got, err, c.want)
			}
			if c.want == "" {
				return
			}
			now := store.last.Deliveries[0]
			if now.Process != "p" || now.At+int64(now.Size) != r.agent.Written {
				t.Errorf("recorded %+v, written %d", now, r.agent.Written)
			}
		})
	}
}

// TestFailedTurn checks which words describe a failed turn, and which cause is taken.
//
// mission: E2
func TestFailedTurn(t *testing.T) {
	t.Parallel()
	busy := &model.Failure{Status: 429, Type: "rate_limit_error", Message: "slower"}
	credit := &model.Failure{Status: 402, Message: "pay"}
	for _, c := range []struct {
		name, overspent string
		e               agent.Event
		answer          *model.Failure
		text            string
		cause           cause.Cause
	}{
		{"the limit comes first", "spent", agent.Event{Text: "agent"}, busy, "spent", cause.Cost},
		{"the answer replaces the agent's words", "", agent.Event{Text: "agent"}, busy,
			"the model's API failed: slower (rate_limit_error, status 429)", ""},
		{"Harvest gave up", "", agent.Event{Text: "asked again only after 1h0m0s: slower", Reason: agent.GaveUp}, busy,
			"asked again only after 1h0m0s: slower", ""},
		{"Harvest gave up for good", "", agent.Event{Text: "failed 10 times: pay", Reason: agent.GaveUp}, credit,
			"failed 10 times: pay", cause.Credit},
		{"the process ended", "", agent.Event{Text: "it died", Reason: processEnded}, busy, "it died", ""},
		{"no answer was seen", "", agent.Event{Text: "agent"}, nil, "agent", ""},
	} {
		if text, why := failedTurn(c.e, c.overspent, c.answer); text != c.text || why != c.cause {
			t.Errorf("%s: %q, %q; want %q, %q", c.name, text, why, c.text, c.cause)
		}
	}
}

// TestUnprovenTurnNeedsTheModel checks that a turn counts as done only if the model succeeded, where the agent says
// "done" in any case.
//
// mission: E1
func TestUnprovenTurnNeedsTheModel(t *testing.T) {
	failure := &model.Failure{Status: 500}
	for _, c := range []struct {
		e      agent.Event
		answer *model.Failure
		want   bool
	}{
		{agent.Event{Unproven: true}, failure, true},
		{agent.Event{Unproven: true}, nil, false},
		{agent.Event{Unproven: true, Interrupted: true}, failure, false},
		{agent.Event{}, failure, false}, // it has recovered by itself
		{agent.Event{Failed: true}, nil, true},
	} {
		if got := believed(c.e, c.answer).Failed; got != c.want {
			t.Errorf("%+v, %v: failed %t", c.e, c.answer, got)
		}
	}
}

// TestUsageOfTurn checks that the gateway's count fills in what an agent does not report.
//
// mission: F6
func TestUsageOfTurn(t *testing.T) {
	counted := agent.Usage{InputTokens: 10, OutputTokens: 5, Cost: 0.5, Unpriced: true}
	r := &runner{used: counted}
	for _, c := range []struct {
		reported *agent.Usage
		want     agent.Usage
	}{
		{nil, counted},
		{&agent.Usage{}, counted},
		{&agent.Usage{Cost: 0.7}, agent.Usage{InputTokens: 10, OutputTokens: 5, Cost: 0.7}},
		{&agent.Usage{InputTokens: 12}, agent.Usage{InputTokens: 12, Cost: 0.5, Unpriced: true}},
		{&agent.Usage{InputTokens: 12, Cost: 0.7}, agent.Usage{InputTokens: 12, Cost: 0.7}},
	} {
		if got := r.usage(c.reported); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.reported, got, c.want)
		}
	}
}

// slow is an agent that needs long to end a turn.
type slow struct{ scripted.Agent }

func (slow) StopGrace() time.Duration { return time.Minute }

func TestProgram(t *testing.T) {
	m := &Manager{opts: Options{Agents: map[string]agent.Agent{"scripted": scripted.Agent{}, "slow": slow{}},
		Command: func(string) agent.Agent { return slow{} }, StopGrace: time.Second}}
	for name, want := range map[string]time.Duration{"scripted": time.Second, "slow": time.Minute,
		"x --acp": time.Minute, "/bin/x": time.Minute, "x": 0, "": 0, "x \x00": 0,
		"x " + strings.Repeat("y", 5000): 0} {
		if found := programOf(m, name) != nil; found != (want > 0) {
			t.Errorf("%.20q: found %v", name, found)
		}
		if want == 0 {
			continue
		}
		if got := stopGrace(newRunner(m, records.Session{Agent: name})); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

// TestSilenceIsNoActivity checks that a report of silence does not count as a sign of life.
func TestSilenceIsNoActivity(t *testing.T) {
	for kind, want := range map[agent.Type]bool{agent.Silent: true, agent.MCPStatus: true, agent.MessageDelta: false} {
		if got := isStatus([]agent.Event{{Type: kind}}); got != want {
			t.Errorf("%s: %v", kind, got)
		}
	}
}
