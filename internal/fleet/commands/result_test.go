package commands_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/internal/fleet/commands"
)

func TestWhyACommandEnded(t *testing.T) {
	t.Parallel()
	const crash = "process node (pid 12) died of SIGSEGV"
	for _, c := range []struct {
		result commands.Result
		want   string
	}{
		{commands.Result{}, ""},
		{commands.Result{ReturnCode: 1}, ""},
		{commands.Result{ReturnCode: 139, Crashed: crash}, crash},
		{commands.Result{Crashed: crash}, ""}, // a child crashed, and the command knows better
		{commands.Result{ReturnCode: 137, Reason: "the sandbox ended", Crashed: crash}, "the sandbox ended"},
	} {
		if got := c.result.Why(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.result, got, c.want)
		}
	}
}
