package record

import (
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Status is the state of a sandbox.
type Status string

// The states. ARCHITECTURE.md shows them as a diagram.
const (
	Creating   Status = "creating"
	Running    Status = "running"
	Stopping   Status = "stopping"
	Terminated Status = "terminated" // ended on request
	Failed     Status = "failed"     // could not be created, ended by itself, or could not be released
	Lost       Status = "lost"       // should run, but the engine cannot reach it; the Fleet searches for it
	Suspended  Status = "suspended"  // its files are kept, and its processes if possible; operations wake it
)

// Statuses lists every state.
var Statuses = []Status{Creating, Running, Stopping, Terminated, Failed, Lost, Suspended}

// transitions lists the allowed changes of state.
var transitions = map[Status][]Status{
	Creating:   {Running, Failed},
	Running:    {Stopping, Failed, Lost, Suspended},
	Stopping:   {Terminated, Failed},
	Lost:       {Running, Stopping, Terminated},
	Suspended:  {Running, Stopping},
	Terminated: {},
	Failed:     {},
}

// Ended reports whether s is final.
func (s Status) Ended() bool { return len(transitions[s]) == 0 }

// Can reports whether a sandbox may go from s to next.
func (s Status) Can(next Status) bool { return slices.Contains(transitions[s], next) }

// RequireStatus returns nil if s is in one of the states, else Gone if it has ended, else Conflict.
func (s Sandbox) RequireStatus(allowed ...Status) error {
	if slices.Contains(allowed, s.Status) {
		return nil
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	why := ""
	if s.Reason != "" {
		why = " (" + s.Reason + ")"
	}
	if s.Status.Ended() {
		return errors.Remedy(errors.Newf(errors.Gone, "sandbox %s is %s%s", s.ID, s.Status, why),
			"create a new sandbox; for details of this one: harvest sandbox get %s", s.ID)
	}
	err := errors.Newf(errors.Conflict, "sandbox %s is %s%s", s.ID, s.Status, why)
	return errors.Remedy(err, "wait until it is %s", strings.Join(words, " or "))
}
