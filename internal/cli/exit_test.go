package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestRemediesOfSessions checks that the remedies of commands for sessions name commands for sessions.
// mission: C3
func TestRemediesOfSessions(t *testing.T) {
	t.Parallel()
	root := &cobra.Command{Use: "harvest"}
	group, sub, end, other := &cobra.Command{Use: "session"}, &cobra.Command{Use: "sync"}, &cobra.Command{Use: "end"},
		&cobra.Command{Use: "sandbox"}
	root.AddCommand(group, end, other)
	group.AddCommand(sub)
	for _, test := range []struct {
		cmd  *cobra.Command
		kind errors.Kind
		want string
	}{
		{end, errors.NotFound, "harvest sessions --all"}, {sub, errors.Conflict, "harvest sessions"},
		{end, errors.Gone, "harvest agent --continue"},
		{end, errors.Timeout, remedies[errors.Timeout]}, {other, errors.NotFound, "harvest sandbox ls"},
		{other, errors.Conflict, "harvest sandbox ls --all"},
	} {
		var stderr bytes.Buffer
		c := New("harvest", strings.NewReader(""), &bytes.Buffer{}, &stderr, nil)
		c.Runs(test.cmd)
		if c.Exit(errors.Newf(test.kind, "x")); !strings.Contains(stderr.String(), test.want) {
			t.Errorf("%s, %s: %q, want %q", test.cmd.Name(), test.kind, stderr.String(), test.want)
		}
	}
}
