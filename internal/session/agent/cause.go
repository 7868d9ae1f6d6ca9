package agent

import "strings"

// Cause is the reason for the failure of a turn whose prompt would fail again.
type Cause string

// The causes. A failure without one may be transient.
const (
	CauseCost   Cause = "cost_limit"      // the session's limit of cost is reached
	CauseCredit Cause = "no_credit"       // the key's account has no credit
	CauseKey    Cause = "key_refused"     // the key is invalid, or may not use the model
	CauseModel  Cause = "unknown_model"   // the model does not exist
	CauseLength Cause = "prompt_too_long" // prompt and history exceed the model's context
)

// causes are parts of the error texts of agents and models, in lower case.
var causes = []struct {
	text  string
	cause Cause
}{
	{"limit of cost", CauseCost},
	{"credit balance", CauseCredit}, {"billing", CauseCredit},
	{"permission_error", CauseKey}, {"authentication", CauseKey}, {"api key", CauseKey},
	{"selected model", CauseModel}, {"not_found_error", CauseModel}, {"model not found", CauseModel},
	{"too long", CauseLength}, {"contextoverflow", CauseLength},
}

// CauseOf returns the cause of a failure with that text, or "".
func CauseOf(text string) Cause {
	text = strings.ToLower(text)
	for _, c := range causes {
		if strings.Contains(text, c.text) {
			return c.cause
		}
	}
	return ""
}
