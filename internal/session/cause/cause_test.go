package cause

import "testing"

// TestCauses checks which failures of a turn are permanent.
// mission: E1
func TestCauses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Cause{
		"Credit balance is too low": Credit,
		"API Error: 403 {\"type\":\"error\",\"error\":{\"type\":\"permission_error\"": Key,
		"Invalid API key · Please run /login":                                         Key,
		"There's an issue with the selected model (x). It may not exist":              Model,
		"API Error: 404 not_found_error: model: claude-x":                             Model,
		"Prompt is too long":                     Length,
		"the session's limit of cost is reached": Cost,
		"API Error: 529 Overloaded":              "",
		"":                                       "",
	} {
		if got := Of(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
