package agent

import "testing"

// TestCauses checks which failures of a turn are permanent.
// mission: C3
func TestCauses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Cause{
		"Credit balance is too low": CauseCredit,
		"API Error: 403 {\"type\":\"error\",\"error\":{\"type\":\"permission_error\"": CauseKey,
		"Invalid API key · Please run /login":                                         CauseKey,
		"There's an issue with the selected model (x). It may not exist":              CauseModel,
		"API Error: 404 not_found_error: model: claude-x":                             CauseModel,
		"Prompt is too long":                     CauseLength,
		"the session's limit of cost is reached": CauseCost,
		"API Error: 529 Overloaded":              "",
		"":                                       "",
	} {
		if got := CauseOf(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
