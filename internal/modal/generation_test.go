package modal

import (
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// TestIDsOfGenerations checks that all forms of the IDs of a sandbox name it, also of one whose own ID ends like the
// mark of a task, and that texts of the same length that are no IDs do not.
func TestIDsOfGenerations(t *testing.T) {
	t.Parallel()
	for _, box := range []string{"sbx_01m8bd031eydzb6b1zvfpt224v", "sbx_00000000000000000000000000",
		"sbx_7zzzzzzzzzzzzzzzzzzzzzzzzz", "sbx_01m8bd031eydzb6b1zvfpt2240"} {
		for _, first := range []bool{true, false} {
			id, task := idOf(box, first), taskIn(box, first)
			if got, err := boxOf(id, sandboxID); err != nil || got != box {
				t.Errorf("%s is %s, %v, want %s", id, got, err, box)
			}
			if got, err := boxOf(task, taskID); err != nil || got != box {
				t.Errorf("%s is %s, %v, want %s", task, got, err, box)
			}
			if first != (len(id) == len(sandboxID)+firstDigits) {
				t.Errorf("%s has the form of the other generation", id)
			}
		}
	}
	for _, id := range []string{"sb-zzzzzzzzzzzzzzzzzzzzzz", "sb-000000000000000000000", "sb-0000000000000000000_00",
		"sb-"} {
		if got, err := boxOf(id, sandboxID); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%s is %s, %v", id, got, err)
		}
	}
}

// TestFollowersRepeatNothing ends sandboxes around the moment at which a look at their output begins.
func TestFollowersRepeatNothing(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Millisecond)
	var ended []record.Sandbox
	c := logCursor{At: map[string][2]int64{}}
	for id, at := range map[string]time.Time{"before": now.Add(-time.Millisecond),
		"with": now, "after": now.Add(time.Millisecond)} {
		ended = append(ended, record.Sandbox{ID: id, Status: record.Terminated, Ended: at})
		c.At[id] = [2]int64{5, 7}
	}
	c.shorten(ended, now)
	for _, sb := range ended {
		if _, kept := c.At[sb.ID]; c.includes(sb) == kept {
			t.Errorf("the sandbox that ended %s the look: included %v, with offsets %v", sb.ID, c.includes(sb), kept)
		}
	}
	if len(c.At) != 2 {
		t.Errorf("offsets of %v", c.At)
	}
}
