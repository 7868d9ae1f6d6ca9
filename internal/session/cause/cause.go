// Package cause names the reasons why the turn of an agent failed.
package cause

import "strings"

// Cause is the reason for the failure of a turn whose prompt would fail again.
type Cause string

// The causes. A failure without one may be transient.
const (
	Cost   Cause = "cost_limit"      // the session's limit of cost is reached
	Credit Cause = "no_credit"       // the key's account has no credit
	Key    Cause = "key_refused"     // the key is invalid, or may not use the model
	Model  Cause = "unknown_model"   // the model does not exist
	Length Cause = "prompt_too_long" // prompt and history exceed the model's context
	Price  Cause = "unknown_price"   // the session has a limit of cost, and the model's price is not known
)

// causes are parts of the error texts of agents and models, in lower case.
var causes = []struct {
	text  string
	cause Cause
}{
	{"limit of cost", Cost},
	{"credit balance", Credit}, {"billing", Credit},
	{"permission_error", Key}, {"authentication", Key}, {"api key", Key},
	{"selected model", Model}, {"not_found_error", Model}, {"model not found", Model},
	{"too long", Length}, {"contextoverflow", Length},
}

// Of returns the cause of a failure with that text, or "".
func Of(text string) Cause {
	text = strings.ToLower(text)
	for _, c := range causes {
		if strings.Contains(text, c.text) {
			return c.cause
		}
	}
	return ""
}
