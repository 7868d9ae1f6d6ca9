package schedules

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// creation has the flags of schedule create.
type creation struct {
	req    api.ScheduleRequest
	limit  cli.TimeFlag
	box    cli.SandboxFlags
	where  cli.ProcessFlags
	code   string
	prompt api.SessionRequest
	keep   bool
}

func (c commands) scheduleCreate() *cobra.Command {
	var f creation
	cmd := &cobra.Command{
		Use:   "create NAME --cron TIMES [flags] (-- PROGRAM [ARG…] | --code CODE | --prompt TEXT)",
		Short: "Run a command, Python code or a prompt at set times",
		Long: `Create a schedule. Each run starts a new sandbox for the command, or a new session for the prompt, and
ends it. The history keeps the output, the exit code and the time of the last 100 runs. A command
whose exit code is not 0 has failed.

--cron takes the five fields of cron, or @hourly, @daily and the like, or "@every 90m". Values of -e
are stored in the schedule; use --secret for keys.`,
		Example: `  harvest schedule create report --cron '0 7 * * 1-5' --zone Europe/Berlin -- python3 -c 'print(1)'
  harvest schedule create backup --cron @daily -v data:/data --retries 3 -- sh -c 'tar -czf /data/b.tgz /data/db'
  harvest schedule create review --cron '@every 6h' --repo https://github.com/owner/name --prompt "look for dead code"`,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.req.Cron, "cron", "", "times at which the job runs")
	flags.StringVar(&f.req.Zone, "zone", "", "time zone of --cron, such as Europe/Berlin (default: UTC)")
	flags.IntVar(&f.req.Retries, "retries", 0, "retries after a failure (default: none)")
	flags.Var(&f.limit, "timeout", "time limit of one attempt (default: 10m)")
	flags.StringVar(&f.req.Missed, "missed", "",
		"policy for runs that were due while no server ran: run_once or skip (default: run_once)")
	flags.BoolVar(&f.req.Paused, "paused", false, "do not run it before harvest schedule resume")
	flags.BoolVar(&f.keep, "keep", false, "keep the sandbox or the session of each run")
	flags.StringVar(&f.code, "code", "", "Python code")
	flags.StringVar(&f.prompt.Prompt, "prompt", "", "prompt for an agent")
	flags.StringVar(&f.prompt.Agent, "agent", "", "agent for --prompt, such as claude or codex (default: claude)")
	flags.StringVar(&f.prompt.Model, "model", "", "model of the agent")
	flags.StringVar(&f.prompt.Repo, "repo", "", "address of a repository for the agent (default: none)")
	flags.StringVar(&f.prompt.Branch, "branch", "", "branch of --repo (default: the default branch of the repository)")
	f.box.Add(cmd)
	f.where.AddWhere(cmd)
	return c.creating(cmd, &f)
}

// creating sets the function of schedule create.
func (c commands) creating(cmd *cobra.Command, f *creation) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		if len(args) == 0 || dash == 0 || dash < 0 && len(args) > 1 || dash > 1 {
			return cli.Usage(cmd, "%s takes one name, and the command after --", cmd.CommandPath())
		}
		f.req.Name = args[0]
		if f.req.Cron == "" {
			return cli.Usage(cmd, "no --cron given")
		}
		ways := 0
		for _, given := range []bool{len(args) > 1, f.code != "", f.prompt.Prompt != ""} {
			if given {
				ways++
			}
		}
		if ways != 1 {
			return cli.Usage(cmd, "give either a command after --, or --code, or --prompt")
		}
		if f.req.Retries == 0 {
			f.req.Retries = -1
		}
		f.req.TimeoutSeconds = f.limit.Seconds()
		box, err := f.box.Request(cmd)
		if err != nil {
			return err
		}
		env, err := c.Environment(f.where.EnvFile, f.where.Env)
		if err != nil {
			return err
		}
		req, err := f.request(box, env, args[1:])
		if err != nil {
			return err
		}
		return c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
			made, err := server.SetSchedule(ctx, req)
			if err != nil {
				return err
			}
			c.warnBackground(ctx, server)
			return c.Show(cli.Table([]api.Schedule{made}, scheduleHeader, scheduleRow))
		})(cmd, args)
	}
	return c.WithOutput(cmd, cli.FormatName)
}

// request returns the request to create the schedule.
func (f *creation) request(box api.SandboxRequest, env map[string]string, args []string) (api.ScheduleRequest, error) {
	if f.prompt.Prompt != "" {
		box.Env, box.Workdir, box.User = env, f.where.Workdir, f.where.User
		f.prompt.Sandbox = box
		return client.PromptSchedule(f.req, api.PromptJob{Session: f.prompt, Keep: f.keep})
	}
	return client.CommandSchedule(f.req, api.RunRequest{Sandbox: box, Keep: f.keep,
		ExecRequest: api.ExecRequest{Args: args, Code: f.code, Env: env, Workdir: f.where.Workdir, User: f.where.User}})
}

// warnBackground prints a note if the server does not run schedules by itself.
func (c commands) warnBackground(ctx context.Context, server *client.Client) {
	if info, err := server.Server(ctx); err == nil && info.Background {
		c.Notef("schedules run while \"harvest up\" runs; a command has started this server, and it ends when it is " +
			"unused")
	}
}

func (c commands) scheduleShow() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:     "show NAME",
		Aliases: []string{"get"},
		Short:   "Show a schedule and its last run",
		Example: "  harvest schedule show environment-refresh",
		Args:    cli.Args(1, 1, "one schedule"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			s, err := server.Schedule(ctx, args[0])
			if err != nil {
				return err
			}
			runs, err := server.ScheduleRuns(ctx, args[0], 1)
			if err != nil {
				return err
			}
			return c.Show(oneSchedule(s, runs))
		}),
	}, cli.FormatTable)
}

// oneSchedule shows all details of a schedule.
func oneSchedule(s api.Schedule, runs []api.ScheduleRun) cli.View {
	name, cells := scheduleRow(s)
	v := cli.View{JSON: s, Names: []string{name}}
	add := func(name, format string, args ...any) {
		v.Rows = append(v.Rows, []string{name, fmt.Sprintf(format, args...)})
	}
	add("name", "%s", s.Name)
	add("kind", "%s", s.Kind)
	if len(s.Args) > 0 {
		add("job", "%s", s.Args)
	}
	add("when", "%s (%s)", s.Cron, cells[3])
	add("next", "%s", cells[4])
	add("time limit", "%s", time.Duration(s.TimeoutSeconds*float64(time.Second)))
	add("retries", "%d", max(0, s.Retries))
	add("missed runs", "%s", s.Missed)
	for _, r := range runs {
		text := fmt.Sprintf("%s, %s: %s", cli.Ago(r.Started), r.Status, r.Reason)
		add("last run", "%s", strings.TrimSuffix(text, ": "))
	}
	return v
}

func (c commands) scheduleLogs() *cobra.Command {
	return &cobra.Command{
		Use:   "logs NAME [RUN]",
		Short: "Print the output of a run of a schedule",
		Long: `Print the output of a run, by default of the last one that has ended. The exit code is that of the
command that ran.`,
		Example: `  harvest schedule logs nightly
  harvest schedule history nightly`,
		Args: cli.Args(1, 2, "a schedule and optionally a run"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			s, err := server.Schedule(ctx, args[0])
			if err != nil {
				return err
			}
			runs, err := server.ScheduleRuns(ctx, args[0], api.MaxPage)
			if err != nil {
				return err
			}
			for _, r := range runs {
				if len(args) == 2 && r.ID == args[1] || len(args) == 1 && r.Attempt > 0 && !r.Ended.IsZero() {
					return c.printRun(s.Kind, r)
				}
			}
			return errors.Remedy(errors.Newf(errors.NotFound, "schedule %s: no such run", args[0]),
				"see: harvest schedule history %s", args[0])
		}),
	}
}

// printRun prints the output of a run as its command did, and returns the command's exit code.
func (c commands) printRun(kind string, run api.ScheduleRun) error {
	switch kind {
	case api.JobRun:
		var res api.Result
		if json.Unmarshal(run.Output, &res) == nil {
			fmt.Fprint(c.Out, res.Stdout)
			fmt.Fprint(c.Err, res.Stderr)
			if res.ReturnCode == 0 || run.Status == "timed_out" {
				return failureOf(run)
			}
			c.Notef("%s %s: %s", run.Schedule, run.Status, run.Reason)
			return cli.OwnExit(res.ReturnCode)
		}
	case api.JobPrompt:
		var res api.PromptResult
		if json.Unmarshal(run.Output, &res) == nil {
			fmt.Fprintln(c.Out, res.Reply)
			c.Notef("session %s", res.SessionID)
			return failureOf(run)
		}
	}
	if len(run.Output) > 0 {
		fmt.Fprintln(c.Out, string(run.Output))
	}
	return failureOf(run)
}
