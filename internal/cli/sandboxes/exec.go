package sandboxes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) sandboxExec() *cobra.Command {
	var how cli.ProcessFlags
	detach := false
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] PROGRAM [ARG…]",
		Short: "Run a program in a sandbox",
		Example: `  harvest sandbox exec dev -- python3 -c 'print(6*7)'
  harvest sandbox exec -it dev bash
  process=$(harvest sandbox exec -d dev -- sleep 100)`,
		Args: cli.Args(2, -1, "a sandbox and a program"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, program := args[0], args[1:]
			if program[0] == "--" {
				program = program[1:]
			}
			return c.exec(cmd.Context(), ref, program, how, detach)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the process's id, and do not wait for its end")
	how.Add(cmd)
	return cmd
}

// bestShell runs the best shell of an image.
var bestShell = []string{"/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh"}

func (c commands) sandboxShell() *cobra.Command {
	how := cli.ProcessFlags{Interactive: true, Terminal: true}
	cmd := &cobra.Command{
		Use:     "sh SANDBOX",
		Short:   "Open a shell in a sandbox",
		Example: "  harvest sandbox sh dev",
		Args:    cli.Args(1, 1, "one sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.exec(cmd.Context(), args[0], bestShell, how, false)
		},
	}
	how.AddWhere(cmd)
	return cmd
}

func (c commands) exec(ctx context.Context, ref string, program []string, how cli.ProcessFlags,
	detach bool) error {
	req, err := how.Request(c.CLI)
	if err != nil {
		return err
	}
	req.Args = program
	server, err := c.Connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	if detach {
		req.Capture = false
		started, err := server.ExecDetached(ctx, ref, req)
		if err != nil {
			return err
		}
		if how.JSON {
			return cli.PrintJSON(c.Out, started)
		}
		fmt.Fprintln(c.Out, started.ProcessID)
		return nil
	}
	begin := time.Now()
	res, err := c.stream(ctx, how, func(ctx context.Context, streams client.Streams) (*client.Process, error) {
		return server.Start(ctx, ref, req, streams)
	})
	if err != nil {
		return err
	}
	if res.ReturnCode != 0 && !how.JSON {
		c.tellDenied(ctx, server, res.SandboxID, begin)
	}
	return c.finish(res, how.JSON)
}

func (c commands) sandboxProcesses() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:     "ps SANDBOX",
		Short:   "List the commands of a sandbox",
		Example: "  harvest sandbox ps dev",
		Args:    cli.Args(1, 1, "one sandbox"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			found, err := server.Processes(ctx, args[0])
			if err != nil {
				return err
			}
			v := cli.View{JSON: found, Header: []string{"ID", "STARTED", "STATUS", "COMMAND"}}
			for _, p := range found {
				v.Names = append(v.Names, p.ID)
				v.Rows = append(v.Rows, []string{p.ID, cli.Ago(p.Started), processStatus(p), strings.Join(p.Args, " ")})
			}
			return c.Show(v)
		}),
	}, cli.FormatTable)
}

func processStatus(p api.Process) string {
	switch {
	case p.Exit == nil:
		return "running"
	case p.Exit.InputLost:
		return "input lost"
	case p.Exit.OutOfMemory:
		return "out of memory"
	case p.Exit.Signal != "":
		return "ended by " + p.Exit.Signal
	}
	return fmt.Sprintf("exit code %d", p.Exit.Code)
}

func (c commands) sandboxLogs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs SANDBOX [PROCESS]",
		Short: "Show the output of a command",
		Long: `Show the stored output of a command, and follow it until the command ends. The default is the command
that was started last. Interrupting this command does not stop the one that it shows.

If the connection breaks, or the server restarts, the command connects again. No output is lost or
shown twice. The exit code is that of the command shown.`,
		Example: `  harvest sandbox logs dev
  harvest sandbox ps dev`,
		Args: cli.Args(1, 2, "a sandbox and optionally a process"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			process := ""
			if len(args) == 2 {
				process = args[1]
			}
			process, err := findProcess(ctx, server, args[0], process)
			if err != nil {
				return err
			}
			p, err := server.Attach(ctx, args[0], process, client.Streams{Stdout: c.Out, Stderr: c.Err,
				Truncated: func(bytes int64) {
					c.Notef("%d bytes of the output are no longer kept", bytes)
				}, Broken: c.breaks()})
			if err != nil {
				return err
			}
			res, err := p.Wait(ctx)
			if err != nil {
				return cli.Left(ctx, err, "the command", "harvest sandbox logs "+args[0]+" "+process)
			}
			return c.finish(res, false)
		}),
	}
	cli.AddFollow(cmd)
	return cmd
}

// breaks returns a function that reports a broken connection. It stays silent if the previous break was less
// than a minute ago.
func (c commands) breaks() func(error) {
	var told time.Time
	return func(err error) {
		if time.Since(told) > time.Minute {
			c.Notef("%s; connecting again", errors.Message(err))
		}
		told = time.Now()
	}
}

// findProcess returns the id of the process whose id begins with beginning, or of the newest one.
func findProcess(ctx context.Context, server *client.Client, ref, beginning string) (string, error) {
	all, err := server.Processes(ctx, ref)
	if err != nil {
		return "", err
	}
	var found []api.Process
	for _, p := range all {
		if p.ID == beginning {
			return p.ID, nil
		}
		if strings.HasPrefix(p.ID, beginning) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return "", errors.Remedy(errors.Newf(errors.NotFound, "sandbox %s: no such process", ref),
			"see: harvest sandbox ps %s", ref)
	}
	last := found[0]
	for _, p := range found {
		if p.Started.After(last.Started) {
			last = p
		}
	}
	if beginning != "" && len(found) > 1 {
		return "", errors.Remedy(errors.Newf(errors.Invalid, "%d processes have ids that begin with %s", len(found),
			beginning), "see: harvest sandbox ps %s", ref)
	}
	return last.ID, nil
}
