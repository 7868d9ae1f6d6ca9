package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
)

func (c *cli) scheduleCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "schedule",
		Short: "Work with what runs at times",
		Long: `Schedules run while harvest up does; a server in the background, which ends when nobody needs it, runs one only when asked to. What comes with
Harvest: environment-refresh, every half hour, builds the base image anew, has a program run in it, and clears old caches of the volume
harvest-agent-state; events-prune, daily, removes old events.`,
		Example: `  harvest schedule ls
  harvest schedule run environment-refresh
  harvest schedule history environment-refresh
  harvest schedule pause environment-refresh`,
	}, c.scheduleList(), c.scheduleRun(), c.scheduleHistory(), c.schedulePause(), c.scheduleResume())
}

func (c *cli) scheduleList() *cobra.Command {
	return c.withOutput(&cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List schedules by name",
		Example: "  harvest schedule ls",
		Args:    count(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			found, err := server.Schedules(cmd.Context())
			if err != nil {
				return err
			}
			return c.show(schedules(found...))
		},
	}, formatTable)
}

func schedules(found ...api.Schedule) view {
	v := view{json: found, header: []string{"NAME", "KIND", "WHEN", "ZONE", "NEXT"}}
	for _, s := range found {
		next := until(s.Next)
		if s.Paused {
			next = "paused"
		}
		zone := s.Zone
		if zone == "" {
			zone = "UTC"
		}
		v.names = append(v.names, s.Name)
		v.rows = append(v.rows, []string{s.Name, s.Kind, s.Cron, zone, next})
	}
	return v
}

func (c *cli) scheduleRun() *cobra.Command {
	detach := false
	cmd := c.withOutput(&cobra.Command{
		Use:   "run NAME",
		Short: "Run a schedule's job now, and print what it returned",
		Long:  `Runs a schedule's job now, paused or not, and waits until that has ended. A failure is tried again in the background.`,
		Example: `  harvest schedule run environment-refresh
  harvest schedule run environment-refresh --detach -o name`,
		Args: count(1, 1, "one schedule"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			run, err := server.StartSchedule(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if !detach {
				done := c.waiting("running " + args[0])
				run, err = server.WaitScheduleRun(cmd.Context(), run)
				done()
				if err != nil {
					return err
				}
			}
			return c.ranNow(run)
		},
	}, formatTable)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait for its end")
	return cmd
}

// ranNow shows a run, and makes a failure of it one of ours.
func (c *cli) ranNow(run api.ScheduleRun) error {
	if c.format != formatTable {
		if err := c.show(view{json: run, names: []string{run.ID}}); err != nil {
			return err
		}
	} else if len(run.Output) > 0 {
		fmt.Fprintln(c.out, string(run.Output))
	}
	switch run.Status {
	case "running", "succeeded":
		return nil
	case "timed_out":
		return errors.Newf(errors.Timeout, "%s: %s", run.Schedule, run.Reason)
	}
	return errors.Remedy(errors.Newf(errors.Unavailable, "%s %s: %s", run.Schedule, run.Status, run.Reason), "see: harvest schedule history %s", run.Schedule)
}

func (c *cli) scheduleHistory() *cobra.Command {
	limit := 20
	cmd := c.withOutput(&cobra.Command{
		Use:   "history NAME",
		Short: "List what became of a schedule's runs, newest first",
		Example: `  harvest schedule history environment-refresh
  harvest schedule history environment-refresh --limit 1 -o json`,
		Args: count(1, 1, "one schedule"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || limit > api.MaxPage {
				return usage(cmd, "--limit must be from 1 to %d", api.MaxPage)
			}
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			runs, err := server.ScheduleRuns(cmd.Context(), args[0], limit)
			if err != nil {
				return err
			}
			v := view{json: runs, header: []string{"RUN", "STARTED", "ATTEMPT", "STATUS", "TOOK", "REASON"}}
			for _, r := range runs {
				took := time.Duration(r.Seconds * float64(time.Second)).Round(time.Millisecond)
				v.names = append(v.names, r.ID)
				v.rows = append(v.rows, []string{r.ID, ago(r.Started), strconv.Itoa(r.Attempt), r.Status, took.String(), orDash(r.Reason)})
			}
			return c.show(v)
		},
	}, formatTable)
	cmd.Flags().IntVar(&limit, "limit", limit, "at most so many")
	return cmd
}

func (c *cli) schedulePause() *cobra.Command {
	return c.changeSchedule("pause NAME", "Keep a schedule from being due", "  harvest schedule pause environment-refresh",
		func(cmd *cobra.Command, server *client.Client, name string) (api.Schedule, error) {
			return server.PauseSchedule(cmd.Context(), name)
		})
}

func (c *cli) scheduleResume() *cobra.Command {
	return c.changeSchedule("resume NAME", "Let a schedule be due again", "  harvest schedule resume environment-refresh",
		func(cmd *cobra.Command, server *client.Client, name string) (api.Schedule, error) {
			return server.ResumeSchedule(cmd.Context(), name)
		})
}

func (c *cli) changeSchedule(use, short, example string, do func(*cobra.Command, *client.Client, string) (api.Schedule, error)) *cobra.Command {
	return c.withOutput(&cobra.Command{
		Use: use, Short: short, Example: example, Args: count(1, 1, "one schedule"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			changed, err := do(cmd, server, args[0])
			if err != nil {
				return err
			}
			return c.show(schedules(changed))
		},
	}, formatName)
}
