package agents

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// maxAttempts is the maximum number of sessions of a comparison.
const maxAttempts = 10

// compareRun is a command line of harvest compare.
type compareRun struct {
	comparison
	box            cli.SandboxFlags
	where          cli.ProcessFlags
	from           source
	agents, models []string
	n, keep        int
}

func (c commands) compareCommand() *cobra.Command {
	r := &compareRun{comparison: comparison{commands: c}}
	cmd := &cobra.Command{
		Use:   "compare [flags] PROMPT",
		Short: "Run the same prompt in several sessions, and keep the best",
		Long: `Create --n sessions for each agent and each model, send the prompt to all of them, and show the size of their changes,
the result of --test, cost and time side by side. On a terminal, the command asks for the number of the best session;
--keep selects it in advance. The other sessions end, and their changes are discarded. Otherwise all sessions stay.

--test is a shell command that runs in each sandbox, in the agent's directory, after the changes were counted. It passes
if it returns 0. Files that it leaves count as changes when the work is handed back.

A session that fails does not affect the others; the command fails if all do. The command answers no questions of the
agents; they decide by themselves. Ctrl-C detaches: all sessions stay, and their agents continue.`,
		Example: `  harvest compare --agents claude,opencode --test "make test" "fix the failing test"
  harvest compare --n 3 --max-usd 2 "make the parser faster"
  harvest compare --model opus,sonnet -o json "describe the code"`,
		Args: cli.Args(1, 1, "one prompt; quote it"),
		RunE: func(cmd *cobra.Command, args []string) error { return r.run(c.Runs(cmd), cmd, args[0]) },
	}
	flags := cmd.Flags()
	r.from.add(cmd, &r.req)
	flags.StringSliceVar(&r.agents, "agents", nil, "agents, such as claude,opencode (default: claude)")
	flags.StringSliceVar(&r.models, "model", nil, "models for each agent (default: the agent's own)")
	flags.IntVar(&r.n, "n", 1, "sessions for each agent and model")
	flags.StringVar(&r.test, "test", "", "shell command that checks the result")
	flags.IntVar(&r.keep, "keep", 0,
		"number of the session to keep; the others end (default: ask on a terminal, or keep all)")
	flags.Float64Var(&r.req.Limits.Seconds, "max-seconds", 0,
		"maximum duration of a turn, in seconds; 0 means no limit")
	flags.Float64Var(&r.req.Limits.USD, "max-usd", 0, "maximum cost of each session; 0 means no limit")
	r.box.Add(cmd)
	r.where.AddEnv(cmd)
	return c.WithOutput(cmd, cli.FormatTable)
}

func (r *compareRun) run(ctx context.Context, cmd *cobra.Command, prompt string) (err error) {
	r.attempts = variants(r.agents, r.models, r.n)
	switch {
	case r.n < 1 || len(r.attempts) > maxAttempts:
		return cli.Usage(cmd, "a comparison has 1 to %d sessions, not %d", maxAttempts, len(r.attempts))
	case cmd.Flags().Changed("keep") && (r.keep < 1 || r.keep > len(r.attempts)):
		return cli.Usage(cmd, "--keep takes a number from 1 to %d", len(r.attempts))
	}
	if r.req.Prompt, err = r.prompt(cmd, prompt); err != nil {
		return err
	}
	if r.req.Sandbox, err = r.agentSandbox(cmd, r.box, r.where, 0); err != nil {
		return err
	}
	done := r.Waiting("reading the repository")
	cargo, err := r.repository(ctx, r.from, &r.req, r.Hint)
	done()
	if err != nil {
		return err
	}
	defer cargo.Close()
	if r.server, err = r.Connect(ctx); err != nil {
		return err
	}
	defer r.server.Close()
	r.adoptMemory(ctx, r.server, r.req)
	if err := r.send(ctx, r.server, cargo, &r.req); err != nil {
		return err
	}
	defer cargo.Remove(ctx, r.server)
	r.Hint("%d sessions; Ctrl-C leaves them", len(r.attempts))
	if err := r.comparison.run(ctx); err != nil {
		return err
	}
	if r.Format == cli.FormatTable {
		if err := r.table(); err != nil {
			return err
		}
	}
	err = r.choose(ctx)
	if r.Format == cli.FormatTable {
		return errors.Join(err, r.result())
	}
	return errors.Join(err, r.Show(cli.View{JSON: r.attempts,
		Names: r.sessions(func(a *attempt) bool { return true })}), r.result())
}

// choose ends the sessions that are not kept, if the user named one to keep.
func (r *compareRun) choose(ctx context.Context) error {
	if r.keep == 0 && len(r.sessions(func(a *attempt) bool { return true })) > 1 {
		r.keep = r.ask(ctx)
	}
	if r.keep == 0 {
		return nil
	}
	best := r.attempts[r.keep-1]
	if best.Session == "" {
		return errors.Remedy(errors.Newf(errors.Conflict,
			"cannot keep session %d: it could not be created; the others stay", r.keep),
			"see the others: harvest sessions")
	}
	r.rememberSession(ctx, ".", best.Session)
	return r.end(ctx, r.keep)
}

// ask asks on a terminal which session to keep; 0 means all.
func (r *compareRun) ask(ctx context.Context) int {
	_, in := cli.Terminal(r.In)
	_, out := cli.Terminal(r.Err)
	if !in || !out || r.Format != cli.FormatTable {
		return 0
	}
	lines := make(chan string)
	go func() { // the goroutine ends with the program if the answer never comes
		defer close(lines)
		for s := bufio.NewScanner(r.In); s.Scan(); {
			lines <- s.Text()
		}
	}()
	for {
		fmt.Fprintf(r.Err, "keep which? 1-%d, or Enter for all: ", len(r.attempts))
		select {
		case <-ctx.Done():
			fmt.Fprintln(r.Err)
			return 0
		case line := <-lines:
			line = strings.TrimSpace(line)
			if line == "" {
				return 0
			}
			if n, err := strconv.Atoi(line); err == nil && n >= 1 && n <= len(r.attempts) &&
				r.attempts[n-1].Session != "" {
				return n
			}
		}
	}
}

// table prints the attempts side by side, and below them their sessions with the beginning of the reply.
func (r *compareRun) table() error {
	v := cli.View{Header: []string{"#", "AGENT", "RESULT", "FILES", "LINES", "TEST", "COST", "TIME"}}
	if r.modelsDiffer() {
		v.Header = append(v.Header, "MODEL")
	}
	for _, a := range r.attempts {
		row := []string{strconv.Itoa(a.Number), cutTo(a.Agent, 10), a.Status, strconv.Itoa(a.Files),
			fmt.Sprintf("+%d -%d", a.Added, a.Removed), a.Test.text(),
			fmt.Sprintf("$%.2f", a.Cost), duration(a.Seconds)}
		if r.modelsDiffer() {
			row = append(row, cutTo(cli.OrDash(a.Model), 11))
		}
		v.Rows = append(v.Rows, row)
	}
	if err := cli.PrintTable(r.Out, v); err != nil {
		return err
	}
	fmt.Fprintln(r.Out)
	for _, a := range r.attempts {
		text := fmt.Sprintf("%d  %s  %s", a.Number, cli.OrDash(a.Session), chat.FirstLine(cli.OrElse(a.Error, a.Reply)))
		fmt.Fprintln(r.Out, strings.TrimSpace(cutTo(text, 80)))
	}
	return nil
}

// result prints the next steps. It is an error if all attempts failed.
func (r *compareRun) result() error {
	kept := r.sessions(func(a *attempt) bool { return true })
	switch {
	case len(kept) == 1:
		r.Hint("kept %s: harvest diff, harvest checkout or harvest pr %s", kept[0], kept[0])
	case len(kept) > 1:
		r.Hint("all sessions stay; end unwanted ones with harvest end --discard SESSION…")
	}
	for _, a := range r.attempts {
		if a.Status == attemptDone {
			return nil
		}
	}
	return errors.Remedy(errors.Newf(errors.Unavailable, "all sessions failed: %s",
		chat.FirstLine(r.attempts[0].Error)), "fix the cause, and compare again")
}

// text describes the result of a test in a table.
func (t *testResult) text() string {
	switch {
	case t == nil:
		return "-"
	case t.Passed:
		return "passed"
	case t.TimedOut:
		return "too slow"
	}
	return fmt.Sprintf("failed %d", t.ReturnCode)
}

// duration formats seconds for a table.
func duration(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

// cutTo shortens a text to a number of characters.
func cutTo(text string, most int) string {
	if all := []rune(text); len(all) > most {
		return string(all[:most-1]) + "…"
	}
	return text
}
