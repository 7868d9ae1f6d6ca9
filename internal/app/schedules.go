package app

import (
	"context"
	"encoding/json"
	"time"
	_ "time/tzdata" // schedules have time zones, and some machines lack the database

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/refresh"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/store"
)

const refreshJob = "environment-refresh"

// keepEvents is how long events are kept.
const keepEvents = 30 * 24 * time.Hour

// openSchedules opens the schedules and creates the built-in ones. In a background server they do not run on
// their own, because such a server ends when it is no longer needed.
func (a *App) openSchedules(ctx context.Context, db *store.DB) (err error) {
	if _, err := a.pruneEvents(ctx, nil); err != nil {
		logf.Errorf(ctx, "remove old events: %v", err)
	}
	kinds := map[string]schedule.Func{"refresh": a.refresh, "prune-events": a.pruneEvents,
		refreshRepoKind: a.refreshRepo}
	if a.schedules, err = schedule.Open(ctx, schedule.Options{Store: db.Schedules(), Kinds: kinds,
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
func (a *App) refresh(ctx context.Context, args json.RawMessage) (any, error) {
	var asked struct {
		Image     string  `json:"image"`
		CacheDays float64 `json:"cache_days"`
	}
	if len(args) > 0 {
		if err := json.Unmarshal(args, &asked); err != nil || asked.CacheDays < 0 || asked.CacheDays > 36500 {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid arguments of the refresh"),
				`give {"image": "base", "cache_days": 7}, or nothing`)
		}
	}
	age := time.Duration(asked.CacheDays * float64(24*time.Hour))
	return refresh.Refresh{Fleet: a.fleet, Images: a.baseImages, Account: personal, Image: asked.Image,
		CacheAge: age}.Run(ctx)
}

func (a *App) pruneEvents(ctx context.Context, _ json.RawMessage) (any, error) {
	n, err := a.events.Prune(ctx, "", time.Now().Add(-keepEvents))
	return map[string]int{"events_removed": n}, err
}
