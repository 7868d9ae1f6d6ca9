// Package schedules has the command for scheduled jobs: list, set, run, pause, and their history.
package schedules

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// commands makes the commands of this package.
type commands struct{ *cli.CLI }

// Command returns the command for scheduled jobs.
func Command(base *cli.CLI) *cobra.Command {
	c := commands{base}
	return cli.Group(&cobra.Command{
		Use:   "schedule",
		Short: "Manage scheduled jobs",
		Long: `A schedule runs a command in a new sandbox, or a prompt in a new session, at set times.

Schedules run while harvest up runs. A server in the background, which ends when it is unused, runs
them only on request. Harvest has two schedules of its own:

  environment-refresh   every half hour: builds the base image anew, runs a program in it, and
                        clears old caches of the volume harvest-agent-state
  events-prune          daily: removes old events`,
		Example: `  harvest schedule create report --cron '0 7 * * 1-5' --zone Europe/Berlin -- python3 -c 'print(1)'
  harvest schedule ls
  harvest schedule run report
  harvest schedule logs report
  harvest schedule history environment-refresh
  harvest schedule pause environment-refresh
  harvest schedule set nightly --kind refresh --cron '0 3 * * *' --zone Europe/Berlin`,
	}, c.scheduleCreate(), c.scheduleList(), c.scheduleShow(), c.scheduleLogs(), c.scheduleSet(), c.scheduleRemove(),
		c.scheduleRun(), c.scheduleHistory(), c.schedulePause(),
		c.scheduleResume())
}

func (c commands) scheduleList() *cobra.Command {
	return cli.Listing(c.CLI, &cobra.Command{Short: "List schedules by name", Example: "  harvest schedule ls"},
		scheduleHeader,
		func(ctx context.Context, server *client.Client) ([]api.Schedule, error) { return server.Schedules(ctx) },
		scheduleRow)
}

var scheduleHeader = []string{"NAME", "KIND", "WHEN", "ZONE", "NEXT"}

func scheduleRow(s api.Schedule) (name string, cells []string) {
	next := cli.Until(s.Next)
	if s.Paused {
		next = "paused"
	}
	zone := s.Zone
	if zone == "" {
		zone = "UTC"
	}
	return s.Name, []string{s.Name, s.Kind, s.Cron, zone, next}
}

func (c commands) scheduleSet() *cobra.Command {
	var given api.ScheduleRequest
	var arguments string
	var limit cli.TimeFlag
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Change a schedule",
		Long: `Change a schedule, or create one of the server's own jobs. Options without a flag keep their values.
For commands and prompts, use harvest schedule create. The kinds of the server:

  refresh       builds an image anew, runs a program in it, and clears old caches:
                --args '{"image":"base","cache_days":7}'
  prune-events  removes events older than 30 days

--cron takes the five fields of cron, or @hourly, @daily and the like, or "@every 90m".`,
		Example: `  harvest schedule set nightly --kind refresh --cron '0 3 * * *' --zone Europe/Berlin
  harvest schedule set environment-refresh --cron '@every 2h' --timeout 20m`,
		Args: cli.Args(1, 1, "one name"),
	}
	flags := cmd.Flags()
	flags.StringVar(&given.Kind, "kind", "", "kind of the job: refresh, prune-events, run or prompt")
	flags.StringVar(&given.Cron, "cron", "", "times at which the job runs")
	flags.StringVar(&given.Zone, "zone", "", "time zone of --cron, such as Europe/Berlin (default: UTC)")
	flags.StringVar(&arguments, "args", "", "arguments of the job, as JSON")
	flags.IntVar(&given.Retries, "retries", 0, "retries after a failure; -1 means none (default: 3)")
	flags.Var(&limit, "timeout", "time limit of one attempt (default: 10m)")
	flags.StringVar(&given.Missed, "missed", "",
		"policy for runs that were due while no server ran: run_once or skip (default: run_once)")
	cmd.RunE = c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
		req, err := scheduleNow(ctx, server, args[0])
		if err != nil {
			return err
		}
		for flag, take := range map[string]func(){
			"kind": func() { req.Kind = given.Kind }, "cron": func() { req.Cron = given.Cron },
			"zone":    func() { req.Zone = given.Zone },
			"args":    func() { req.Args = json.RawMessage(arguments) },
			"retries": func() { req.Retries = given.Retries },
			"timeout": func() { req.TimeoutSeconds = limit.Seconds() },
			"missed":  func() { req.Missed = given.Missed },
		} {
			if flags.Changed(flag) {
				take()
			}
		}
		made, err := server.SetSchedule(ctx, req)
		if err != nil {
			return err
		}
		return c.Show(cli.Table([]api.Schedule{made}, scheduleHeader, scheduleRow))
	})
	return c.WithOutput(cmd, cli.FormatName)
}

// scheduleNow returns the request that would recreate the schedule. For a schedule that does not exist, it has
// only the name.
func scheduleNow(ctx context.Context, server *client.Client, name string) (api.ScheduleRequest, error) {
	s, err := server.Schedule(ctx, name)
	if errors.Is(err, errors.NotFound) {
		return api.ScheduleRequest{Name: name}, nil
	}
	return api.ScheduleRequest{
		Name: name, Kind: s.Kind, Args: s.Args, Cron: s.Cron, Zone: s.Zone, Retries: s.Retries,
		TimeoutSeconds: s.TimeoutSeconds, Missed: s.Missed, Paused: s.Paused,
	}, err
}

func (c commands) scheduleRemove() *cobra.Command {
	return c.Removal(&cobra.Command{
		Use:   "rm NAME…",
		Short: "Delete schedules and their history, and cancel their runs",
		Long: `Delete schedules and their history, and cancel their runs. The next start of the server recreates
Harvest's own schedules; to stop one of those, pause it.`,
		Example: "  harvest schedule rm nightly",
	}, "schedules", func(ctx context.Context, server *client.Client, name string) error {
		return server.DeleteSchedule(ctx, name)
	})
}

func (c commands) scheduleRun() *cobra.Command {
	detach := false
	cmd := c.WithOutput(&cobra.Command{
		Use:   "run NAME",
		Short: "Run a scheduled job now, and print its result",
		Long: `Run a scheduled job now, even if it is paused, and wait for its end. A failure is retried in the
background.`,
		Example: `  harvest schedule run environment-refresh
  harvest schedule run environment-refresh --detach -o name`,
		Args: cli.Args(1, 1, "one schedule"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			run, err := server.StartSchedule(ctx, args[0])
			if err != nil {
				return err
			}
			if !detach {
				done := c.Waiting("running " + args[0])
				run, err = server.WaitScheduleRun(ctx, run)
				done()
				if err != nil {
					return cli.Left(ctx, err, "the run", "harvest schedule logs "+args[0]+" "+run.ID)
				}
			}
			return c.ranNow(ctx, server, run)
		}),
	}, cli.FormatTable)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait for the end")
	return cmd
}

// ranNow shows a run and returns its failure as an error.
func (c commands) ranNow(ctx context.Context, server *client.Client, run api.ScheduleRun) error {
	if c.Format != cli.FormatTable {
		if err := c.Show(cli.View{JSON: run, Names: []string{run.ID}}); err != nil {
			return err
		}
		return failureOf(run)
	}
	s, err := server.Schedule(ctx, run.Schedule)
	if err != nil {
		return err
	}
	if run.Ended.IsZero() {
		return nil
	}
	return c.printRun(s.Kind, run)
}

// failureOf returns the failure of a run as an error.
func failureOf(run api.ScheduleRun) error {
	switch run.Status {
	case "running", "succeeded":
		return nil
	case "timed_out":
		return errors.Newf(errors.Timeout, "%s: %s", run.Schedule, run.Reason)
	}
	return errors.Remedy(errors.Newf(errors.Unavailable, "%s %s: %s", run.Schedule, run.Status, run.Reason),
		"see: harvest schedule history %s", run.Schedule)
}

func (c commands) scheduleHistory() *cobra.Command {
	limit := 20
	cmd := c.WithOutput(&cobra.Command{
		Use:   "history NAME",
		Short: "List the runs of a schedule, newest first",
		Example: `  harvest schedule history environment-refresh
  harvest schedule history environment-refresh --limit 1 -o json`,
		Args: cli.Args(1, 1, "one schedule"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || limit > api.MaxPage {
				return cli.Usage(cmd, "invalid --limit: want 1 to %d", api.MaxPage)
			}
			return c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
				runs, err := server.ScheduleRuns(ctx, args[0], limit)
				if err != nil {
					return err
				}
				return c.Show(cli.Table(runs, []string{"RUN", "STARTED", "ATTEMPT", "STATUS", "TOOK", "REASON"},
					func(r api.ScheduleRun) (string, []string) {
						took := time.Duration(r.Seconds * float64(time.Second)).Round(time.Millisecond)
						return r.ID, []string{r.ID, cli.Ago(r.Started), strconv.Itoa(r.Attempt), r.Status,
							took.String(), cli.OrDash(r.Reason)}
					}))
			})(cmd, args)
		},
	}, cli.FormatTable)
	cmd.Flags().IntVar(&limit, "limit", limit, "maximum number of runs")
	return cmd
}

func (c commands) schedulePause() *cobra.Command {
	return c.changeSchedule("pause NAME", "Pause a schedule", "  harvest schedule pause environment-refresh",
		(*client.Client).PauseSchedule)
}

func (c commands) scheduleResume() *cobra.Command {
	return c.changeSchedule("resume NAME", "Resume a paused schedule", "  harvest schedule resume environment-refresh",
		(*client.Client).ResumeSchedule)
}

func (c commands) changeSchedule(use, short, example string, do func(*client.Client, context.Context,
	string) (api.Schedule, error)) *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use: use, Short: short, Example: example, Args: cli.Args(1, 1, "one schedule"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			changed, err := do(server, ctx, args[0])
			if err != nil {
				return err
			}
			return c.Show(cli.Table([]api.Schedule{changed}, scheduleHeader, scheduleRow))
		}),
	}, cli.FormatName)
}
