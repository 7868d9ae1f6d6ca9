package app

import (
	"context"
	"encoding/json"
	"time"
	_ "time/tzdata" // schedules have time zones, and some machines lack the database

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/refresh"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/server/jobs"
	"github.com/RelevanceAI/harvest/internal/store"
)

const refreshJob = "environment-refresh"

// keepEvents is how long events are kept.
const keepEvents = 30 * 24 * time.Hour

// openSchedules opens the schedules and creates the built-in ones. In a background server they do not run on
// their own, because such a server ends when it is no longer needed.
func (a *App) openSchedules(ctx context.Context, db *store.DB) (err error) {
	if _, err := a.pruneEvents(ctx, schedule.Job{}); err != nil {
		logf.Errorf(ctx, "remove old events: %v", err)
	}
	users := jobs.Jobs{Fleet: a.fleet, Sessions: a.sessions}
	if err := users.RemoveOrphans(ctx); err != nil {
		return errors.Stage(err, "schedules")
	}
	kinds := map[string]schedule.Func{"refresh": a.refresh, "prune-events": a.pruneEvents,
		refreshRepoKind: a.refreshRepo, api.JobRun: users.Run, api.JobPrompt: users.Prompt}
	checks := map[string]func(schedule.Job) error{api.JobRun: users.CheckRun, api.JobPrompt: users.CheckPrompt}
	if a.schedules, err = schedule.Open(ctx, schedule.Options{Store: db.Schedules(), Kinds: kinds, Checks: checks,
		Ended:  func(job schedule.Job, run schedule.Run) { a.reportRun(ctx, job, run) },
		ByHand: a.background}); err != nil {
		return err
	}
	a.then("the schedules", a.schedules.Close)
	for _, job := range []schedule.Job{
		// Every half hour, with 3 retries and a limit of 10 minutes, to keep the environment fresh.
		{Name: refreshJob, Kind: "refresh", Cron: "*/30 * * * *", Missed: schedule.Skip},
		{Name: "events-prune", Kind: "prune-events", Cron: "@daily"},
	} {
		job.Account = personal
		if _, err := a.schedules.Ensure(ctx, job); err != nil {
			return errors.Stage(err, "schedules")
		}
	}
	return errors.Stage(errors.Join(a.configureRefresh(ctx), a.scheduleRepos(ctx)), "schedules")
}

// configureRefresh applies the configured refresh. Without one, the user's own setting stays.
func (a *App) configureRefresh(ctx context.Context) error {
	if a.cfg.Source("refresh") == "default" {
		return nil
	}
	change := a.schedules.Pause
	if a.cfg.Refresh {
		change = a.schedules.Resume
	}
	_, err := change(ctx, personal, refreshJob)
	return err
}

// refresh renews the environment of sandboxes. args is {"image": "base", "cache_days": 7}; both fields are
// optional.
func (a *App) refresh(ctx context.Context, job schedule.Job) (any, error) {
	var asked struct {
		Image     string  `json:"image"`
		CacheDays float64 `json:"cache_days"`
	}
	if len(job.Args) > 0 {
		if err := json.Unmarshal(job.Args, &asked); err != nil || asked.CacheDays < 0 || asked.CacheDays > 36500 {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid arguments of the refresh"),
				`give {"image": "base", "cache_days": 7}, or nothing`)
		}
	}
	age := time.Duration(asked.CacheDays * float64(24*time.Hour))
	return refresh.Refresh{Fleet: a.fleet, Images: a.baseImages, Account: personal, Image: asked.Image,
		CacheAge: age}.Run(ctx)
}

// reportRun publishes the end of an attempt in the stream of the account.
func (a *App) reportRun(ctx context.Context, job schedule.Job, run schedule.Run) {
	a.events.Post(ctx, event.Draft{Stream: event.AccountStream(job.Account), Type: api.EventScheduleEnded,
		Data: api.ScheduleEnded{Schedule: job.Name, Kind: job.Kind, RunID: run.ID, Attempt: run.Attempt,
			Status: string(run.Status), Reason: run.Reason, Final: run.RetryAt.IsZero()}})
}

func (a *App) pruneEvents(ctx context.Context, _ schedule.Job) (any, error) {
	n, err := a.events.Prune(ctx, "", time.Now().Add(-keepEvents))
	return map[string]int{"events_removed": n}, err
}
