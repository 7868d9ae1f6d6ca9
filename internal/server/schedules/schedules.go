// Package schedules serves scheduled jobs and their runs.
package schedules

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// Service serves the routes for scheduled jobs.
type Service struct {
	edge.Settings
	Schedules *schedule.Scheduler // nil: not supported
}

// Routes returns one row per route. Jobs of the server affect all accounts, so only its operator may change them. The
// others need the scope exec, as running a command at once does.
func (s *Service) Routes() []edge.Route {
	const read, write = account.Read, account.Write
	return edge.Only(s.Schedules != nil, "schedules", []edge.Route{
		{Method: "POST", Path: api.Schedules, Handle: s.setSchedule, Scope: write,
			Summary: "Create or replace a schedule",
			In:      api.ScheduleRequest{}, Out: api.Schedule{}, Status: 201},
		{Method: "GET", Path: api.Schedules, Handle: s.listSchedules, Scope: read, Summary: "List schedules by name",
			Query: edge.QueryPage,
			Out:   api.List[api.Schedule]{}, Status: 200},
		{Method: "GET", Path: api.Scheduled, Handle: s.scheduleIs((*schedule.Scheduler).Get), Scope: read,
			Summary: "Get a schedule", Out: api.Schedule{}, Status: 200},
		{Method: "DELETE", Path: api.Scheduled, Handle: s.deleteSchedule, Scope: write,
			Summary: "Delete a schedule and its history", Status: 204},
		{Method: "POST", Path: api.SchedulePause, Handle: s.change((*schedule.Scheduler).Pause), Scope: write,
			Summary: "Pause a schedule", Out: api.Schedule{}, Status: 200},
		{Method: "POST", Path: api.ScheduleResume, Handle: s.change((*schedule.Scheduler).Resume), Scope: write,
			Summary: "Resume a paused schedule", Out: api.Schedule{}, Status: 200},
		{Method: "POST", Path: api.ScheduleStart, Handle: s.startSchedule, Scope: write,
			Summary: "Run a schedule's job now",
			Out:     api.ScheduleRun{}, Status: 202},
		{Method: "GET", Path: api.ScheduleRuns, Handle: s.listScheduleRuns, Scope: read,
			Summary: "List the runs of a schedule, newest first",
			Query:   edge.QueryPage, Out: api.List[api.ScheduleRun]{}, Status: 200},
	})
}

func (s *Service) setSchedule(w http.ResponseWriter, r *http.Request) error {
	var req api.ScheduleRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if err := allowed(r, req.Kind); err != nil {
		return err
	}
	set := s.Schedules.Create
	if !req.New {
		set = s.Schedules.Set
		if err := s.mayChange(r, req.Name); err != nil && !errors.Is(err, errors.NotFound) {
			return err
		}
	}
	made, err := set(r.Context(), schedule.Job{
		Account: edge.Account(r), Name: req.Name, Kind: req.Kind, Args: req.Args, Cron: req.Cron, Zone: req.Zone,
		Retries:        req.Retries,
		TimeoutSeconds: req.TimeoutSeconds, Missed: schedule.Missed(req.Missed), Paused: req.Paused,
	})
	return edge.Send(w, http.StatusCreated, scheduleOut, made, err)
}

// allowed returns Denied if the caller may not change jobs of a kind.
func allowed(r *http.Request, kind string) error {
	who := edge.PrincipalOf(r.Context())
	if kind == api.JobRun || kind == api.JobPrompt {
		return who.May(account.Exec)
	}
	return who.MustBeOperator()
}

// mayChange returns Denied if the caller may not change a schedule, and NotFound if it does not exist.
func (s *Service) mayChange(r *http.Request, name string) error {
	found, err := s.Schedules.Get(r.Context(), edge.Account(r), name)
	if err != nil {
		return err
	}
	return allowed(r, found.Kind)
}

func (s *Service) listSchedules(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Schedules.List(r.Context(), edge.Account(r))
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, found, false, func(j schedule.Job) string { return j.Name }, scheduleOut)
}

// scheduleIs responds with the schedule that do returns.
func (s *Service) scheduleIs(do func(*schedule.Scheduler, context.Context, string,
	string) (schedule.Job, error)) edge.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		found, err := do(s.Schedules, r.Context(), edge.Account(r), r.PathValue("name"))
		return edge.Send(w, http.StatusOK, scheduleOut, found, err)
	}
}

// change is scheduleIs for callers that may change the schedule.
func (s *Service) change(do func(*schedule.Scheduler, context.Context, string,
	string) (schedule.Job, error)) edge.Handler {
	answer := s.scheduleIs(do)
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := s.mayChange(r, r.PathValue("name")); err != nil {
			return err
		}
		return answer(w, r)
	}
}

func (s *Service) deleteSchedule(w http.ResponseWriter, r *http.Request) error {
	if err := s.mayChange(r, r.PathValue("name")); err != nil {
		return err
	}
	return edge.NoContent(w, s.Schedules.Delete(r.Context(), edge.Account(r), r.PathValue("name")))
}

func (s *Service) startSchedule(w http.ResponseWriter, r *http.Request) error {
	if err := s.mayChange(r, r.PathValue("name")); err != nil {
		return err
	}
	run, err := s.Schedules.RunNow(r.Context(), edge.Account(r), r.PathValue("name"))
	return edge.Send(w, http.StatusAccepted, scheduleRunOut, run, err)
}

func (s *Service) listScheduleRuns(w http.ResponseWriter, r *http.Request) error {
	limit, err := edge.Number(r, "limit", api.DefaultPage, api.MaxPage)
	if err != nil {
		return err
	}
	before, err := s.After(r)
	if err != nil {
		return err
	}
	found, err := s.Schedules.History(r.Context(), edge.Account(r), r.PathValue("name"), before, limit)
	if err != nil {
		return err
	}
	page := api.List[api.ScheduleRun]{Data: edge.Each(found, scheduleRunOut)}
	if len(found) == limit {
		page.NextCursor = s.Cursor(r, found[limit-1].ID)
	}
	return edge.Respond(w, http.StatusOK, page)
}

func scheduleOut(j schedule.Job) api.Schedule {
	return api.Schedule{
		Name: j.Name, Kind: j.Kind, Args: j.Args, Cron: j.Cron, Zone: j.Zone, Retries: j.Retries,
		TimeoutSeconds: j.TimeoutSeconds,
		Missed:         string(j.Missed), Paused: j.Paused, Created: j.Created.UTC(), Updated: j.Updated.UTC(),
		Next: j.Next.UTC(),
	}
}

func scheduleRunOut(r schedule.Run) api.ScheduleRun {
	return api.ScheduleRun{
		ID: r.ID, Schedule: r.Job, Due: r.Due.UTC(), Attempt: r.Attempt, Status: string(r.Status), Reason: r.Reason,
		Output:  r.Output,
		Started: r.Started.UTC(), Ended: r.Ended.UTC(), Seconds: r.Seconds, RetryAt: r.RetryAt.UTC(),
	}
}
