package questions

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

var (
	permission = Question{Tool: "Bash"}
	model      = Question{Asks: []agent.Question{{Text: "Which color?"}, {Text: "Which size?"}}}
)

// TestAnswerable checks which answers fit, and that the error says what is missing.
func TestAnswerable(t *testing.T) {
	t.Parallel()
	both := map[string]string{"Which color?": "red", "Which size?": "large"}
	for name, c := range map[string]struct {
		q     Question
		a     agent.Answer
		words []string // of the error and its remedy; none if it fits
	}{
		"allow a tool": {permission, agent.Answer{Allow: true}, nil},
		"deny a tool":  {permission, agent.Answer{Message: "no"}, nil},
		"an answer to no query": {permission, agent.Answer{Allow: true, Answers: both},
			[]string{`run "Bash"`, "allow or deny"}},
		"all answers":          {model, agent.Answer{Allow: true, Answers: both}, nil},
		"deny without answers": {model, agent.Answer{}, nil},
		"no answers": {model, agent.Answer{Allow: true}, []string{`"Which color?": no answer`,
			`answer "Which color?" and "Which size?"`}},
		"one answer": {model, agent.Answer{Allow: true, Answers: map[string]string{"Which color?": "red"}},
			[]string{`"Which size?": no answer`, `answer "Which size?", or deny`}},
		"a blank answer": {model, agent.Answer{Allow: true, Answers: map[string]string{"Which color?": "red",
			"Which size?": " \n"}}, []string{`"Which size?": no answer`}},
		"an unknown question": {model, agent.Answer{Allow: true, Answers: map[string]string{"Why?": "so"}},
			[]string{`unknown question "Why?"`, `"Which color?" and "Which size?"`}},
		"an unknown question, denied": {model, agent.Answer{Answers: map[string]string{"Why?": "so"}},
			[]string{`unknown question "Why?"`}},
	} {
		err := c.q.Answerable(c.a)
		if len(c.words) == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		text := errors.Message(err) + " | " + errors.RemedyOf(err)
		if !errors.Is(err, errors.Invalid) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
		for _, word := range c.words {
			if !strings.Contains(text, word) {
				t.Errorf("%s: %q lacks %q", name, text, word)
			}
		}
	}
}

func TestAnswered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		q    Question
		a    agent.Answer
		want string
	}{
		{permission, agent.Answer{Allow: true}, "allowed"},
		{permission, agent.Answer{Allow: true, Always: true}, "allowed, and from now on"},
		{permission, agent.Answer{}, "denied"},
		{permission, agent.Answer{Message: "too slow"}, "denied: too slow"},
		{model, agent.Answer{Allow: true, Answers: map[string]string{"Which size?": "large", "Which color?": "red"}},
			"Which color? red\nWhich size? large"},
		{model, agent.Answer{Message: "later"}, "denied: later"},
	} {
		if got := c.q.Answered(c.a); got != c.want {
			t.Errorf("%+v: %q, want %q", c.a, got, c.want)
		}
	}
}

// TestPublicHidesSecrets checks that the form for events has no secrets, and that the answer itself keeps them.
func TestPublicHidesSecrets(t *testing.T) {
	const secret = "the-secret-of-an-answer"
	t.Cleanup(logf.Redact(secret))
	a := agent.Answer{Allow: true, Message: "use " + secret, Answers: map[string]string{"Which token?": secret,
		"Which color?": "red"}}
	want := &agent.Answer{Allow: true, Message: "use " + logf.Hidden,
		Answers: map[string]string{"Which token?": logf.Hidden, "Which color?": "red"}}
	if diff := cmp.Diff(want, Public(a)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if a.Answers["Which token?"] != secret {
		t.Error("the answer for the agent was changed")
	}
	if got := Public(agent.Answer{}); got.Answers != nil {
		t.Errorf("no answers became %v", got.Answers)
	}
}
