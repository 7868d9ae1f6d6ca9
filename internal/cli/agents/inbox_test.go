package agents

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

func TestInboxAnswer(t *testing.T) {
	t.Parallel()
	approval := api.InboxItem{Number: 3, Kind: "approval", State: "waiting", Tool: "Bash"}
	question := api.InboxItem{Number: 4, Kind: "question", State: "waiting", Questions: []api.Question{
		{Text: "Which?", Options: []api.Option{{Label: "red"}, {Label: "blue"}}}, {Text: "Why?"}}}
	for words, want := range map[string]api.AnswerRequest{
		"allow":              {Allow: true},
		"always":             {Allow: true, Always: true},
		"deny":               {},
		"deny|not on|main":   {Message: "not on main"},
		"2|for no reason":    {Allow: true, Answers: map[string]string{"Which?": "blue", "Why?": "for no reason"}},
		"allow|deny":         {Allow: true, Answers: map[string]string{"Which?": "allow", "Why?": "deny"}},
		"an answer of mine|": {Allow: true, Answers: map[string]string{"Which?": "an answer of mine", "Why?": ""}},
	} {
		item := approval
		if want.Answers != nil {
			item = question
		}
		got, err := inboxAnswer(item, strings.Split(words, "|"))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", words, err, diff)
		}
	}
	closed, finished, cut := approval, approval, question
	closed.State, finished.Kind, cut.Cut, cut.Questions = "answered", "finished", true, nil
	for what, c := range map[string]struct {
		item  api.InboxItem
		words string
		kind  errors.Kind
	}{
		"another word":               {approval, "yes", errors.Invalid},
		"an answer to an approval":   {approval, "allow|it", errors.Invalid},
		"a closed item":              {closed, "allow", errors.Conflict},
		"an item without a question": {finished, "allow", errors.Invalid},
		"too few answers":            {question, "red", errors.Invalid},
		"too many answers":           {question, "red|x|y", errors.Invalid},
		"a question that is cut":     {cut, "red", errors.Unsupported},
	} {
		if a, err := inboxAnswer(c.item, strings.Split(c.words, "|")); !errors.Is(err, c.kind) ||
			errors.RemedyOf(err) == "" || a.Allow && a.Answers != nil {
			t.Errorf("%s: %+v, %v", what, a, err)
		}
	}
}

// TestInboxShowsTextsOfAgentsPlainly checks that a text of an agent cannot move the cursor.
func TestInboxShowsTextsOfAgentsPlainly(t *testing.T) {
	t.Parallel()
	const evil = "x\x1b[2Ky"
	i := api.InboxItem{Kind: "approval", State: "waiting", Title: evil, SubAgent: evil, What: evil, Text: evil,
		Input: []byte(`{"command":"x\u001b[2Ky"}`), Cut: true, Session: "ses_1"}
	got := inboxDetails(i) + inboxKind(i) + inboxSession(i) + inboxWho(i)
	i.Input, i.Questions = nil, []api.Question{{Text: evil, Options: []api.Option{{Label: evil, Description: evil}}}}
	if got += inboxDetails(i); strings.Contains(got, "\x1b") || strings.Count(got, "x[2Ky") != 7 {
		t.Errorf("%q", got)
	}
}
