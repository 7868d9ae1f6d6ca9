package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestRemediesOfSessions checks that the remedies of commands for sessions name commands for sessions.
// mission: A9
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

// TestInterruptedCommands checks the text of a command that the user interrupts.
func TestInterruptedCommands(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cause := errors.Newf(errors.Unavailable, "x")
	if err := Left(ctx, cause, "the command", "harvest sandbox logs dev p1"); err != cause {
		t.Errorf("before the interrupt: %v", err)
	}
	cancel()
	for _, test := range []struct {
		err  error
		want string
	}{
		{errors.Wrapf(ctx.Err(), "wait"), "harvest: interrupted\n  try:  run the command again\n"},
		{Left(ctx, ctx.Err(), "the command", "harvest sandbox logs dev p1"),
			"harvest: interrupted; the command continues\n  try:  follow it again: harvest sandbox logs dev p1\n"},
		{Left(ctx, nil, "the command", "x"), ""},
	} {
		var stderr bytes.Buffer
		c := New("harvest", strings.NewReader(""), &bytes.Buffer{}, &stderr, nil)
		if code := c.Exit(test.err); stderr.String() != test.want || (code == 130) != (test.want != "") {
			t.Errorf("%v: exit code %d, %q, want %q", test.err, code, stderr.String(), test.want)
		}
	}
}
