package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// exitCodes is the only mapping from kinds to exit codes.
var exitCodes = map[errors.Kind]int{
	errors.Invalid:         2,
	errors.Unauthenticated: 3,
	errors.Denied:          3,
	errors.NotFound:        4,
	errors.Conflict:        5,
	errors.Gone:            5,
	errors.Exhausted:       75,
	errors.Unsupported:     1,
	errors.Unavailable:     75,
	errors.Timeout:         124,
	errors.Canceled:        130,
	errors.Internal:        1,
}

// ExitCodesHelp is the end of the help of every command.
const ExitCodesHelp = `
Exit codes: 0 success, 1 failure, 2 invalid usage, 3 denied, 4 not found, 5 conflict, 75 try again,
124 timeout, 130 interrupted. run, exec, sh and logs return the command's own exit code, 126 if it
cannot be executed, 127 if it does not exist.
`

// remedies are the default remedies of errors without their own.
var remedies = map[errors.Kind]string{
	errors.Invalid:         "correct it; see --help",
	errors.Unauthenticated: "sign in",
	errors.Denied:          "use objects of your account, or ask their owner",
	errors.NotFound:        "list the objects: harvest sandbox ls, image ls, volume ls",
	errors.Conflict:        "list their states: harvest sandbox ls --all",
	errors.Gone:            "create a new one",
	errors.Exhausted:       "end unused sandboxes with harvest sandbox rm, or try again later",
	errors.Unsupported:     "check this machine: harvest doctor",
	errors.Unavailable:     "try again",
	errors.Timeout:         "set a longer timeout, or try again",
	errors.Canceled:        "run the command again",
	errors.Internal:        "look at server.log in the data directory, and run: harvest doctor",
}

// sessionRemedies are the default remedies of commands for sessions, where they differ.
var sessionRemedies = map[errors.Kind]string{
	errors.NotFound:  "list the sessions: harvest sessions --all",
	errors.Conflict:  "list the states of sessions: harvest sessions",
	errors.Gone:      "continue with its files and its conversation: harvest agent --continue SESSION",
	errors.Exhausted: "end finished sessions with harvest end, or try again later",
}

// sessionCommands are the commands for sessions.
var sessionCommands = []string{"agent", "answer", "apply", "attach", "checkout", "compare", "diff", "end", "pr", "push",
	"send", "session", "sessions", "stop"}

// remedy is the default remedy for an error of the running command.
func (c *CLI) remedy(kind errors.Kind) string {
	if text := sessionRemedies[kind]; text != "" && slices.Contains(sessionCommands, c.command) {
		return text
	}
	return remedies[kind]
}

// WithRemedy replaces the remedy of an error of the server, which names the fields of the API, by one that names
// flags.
func WithRemedy(err error, format string, args ...any) error {
	replaced := errors.Remedy(errors.Newf(errors.KindOf(err), "%s", errors.Message(err)), format, args...)
	return errors.Stage(replaced, errors.StageOf(err))
}

// Left replaces the error of a command that only followed work of the server, if the user has interrupted it: the work
// continues. again is the command that follows it again.
func Left(ctx context.Context, err error, work, again string) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Remedy(errors.Newf(errors.Canceled, "interrupted; %s continues", work), "follow it again: %s", again)
}

// AddFollow adds -f, which commands that always follow accept because their users expect it.
func AddFollow(cmd *cobra.Command) {
	cmd.Flags().BoolP("follow", "f", true, "follow the output; this is always so")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if follow, err := cmd.Flags().GetBool("follow"); err != nil || !follow {
			return Usage(cmd, "invalid --follow=false: %s always follows", cmd.CommandPath())
		}
		return run(cmd, args)
	}
}

// OwnExit is the exit code of the user's command. It is an error only to pass through cobra.
type OwnExit int

// Error implements error.
func (e OwnExit) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// Exit reports err, which may be nil, and returns the exit code for it.
func (c *CLI) Exit(err error) int {
	var own OwnExit
	if err == nil || errors.As(err, &own) {
		return int(own)
	}
	kind := errors.KindOf(err)
	text := errors.Message(err)
	if kind == errors.Internal && text == errors.Message(errors.Internal) {
		text = err.Error() // the reader is the operator
	}
	if kind == errors.Canceled && text == errors.Message(errors.Canceled) {
		text = "interrupted"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "harvest: %s\n", text)
	if stage := errors.StageOf(err); stage != "" {
		fmt.Fprintf(&b, "  step: %s\n", stage)
	}
	remedy := errors.RemedyOf(err)
	if remedy == "" {
		remedy = c.remedy(kind)
	}
	fmt.Fprintf(&b, "  try:  %s\n", remedy)
	fmt.Fprint(c.Err, escapedLines(logf.Redacted(b.String())))
	if code := errors.ExitOf(err); code != 0 {
		return code
	}
	return exitCodes[kind]
}

// Notef prints a note beside the results, unless --quiet.
func (c *CLI) Notef(format string, args ...any) {
	if !c.Quiet {
		c.Warnf(format, args...)
	}
}

// Warnf prints a part of the result that is for people, also with --quiet.
func (c *CLI) Warnf(format string, args ...any) {
	fmt.Fprintln(c.Err, "harvest: "+escapedLines(fmt.Sprintf(format, args...)))
}
