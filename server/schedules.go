package server

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/schedule"
)

// scheduleRoutes returns the routes for schedules. Their jobs affect the whole server, so only its operator may change
// them.
func (s *Server) scheduleRoutes() []route {
	const read, write = account.Read, account.Write
	return []route{
		{method: "POST", path: api.Schedules, handle: s.setSchedule, scope: write, operator: true,
			summary: "Create or replace a schedule",
			in:      api.ScheduleRequest{}, out: api.Schedule{}, status: 201},
		{method: "GET", path: api.Schedules, handle: s.listSchedules, scope: read, summary: "List schedules by name",
			query: queryPage,
			out:   api.List[api.Schedule]{}, status: 200},
		{method: "GET", path: api.Scheduled, handle: s.scheduleIs((*schedule.Scheduler).Get), scope: read,
			summary: "Get a schedule", out: api.Schedule{}, status: 200},
		{method: "DELETE", path: api.Scheduled, handle: s.deleteSchedule, scope: write, operator: true,
			summary: "Delete a schedule and its history", status: 204},
		{method: "POST", path: api.SchedulePause, handle: s.scheduleIs((*schedule.Scheduler).Pause), scope: write,
			operator: true,
			summary:  "Pause a schedule", out: api.Schedule{}, status: 200},
		{method: "POST", path: api.ScheduleResume, handle: s.scheduleIs((*schedule.Scheduler).Resume), scope: write,
			operator: true,
			summary:  "Resume a paused schedule", out: api.Schedule{}, status: 200},
		{method: "POST", path: api.ScheduleStart, handle: s.startSchedule, scope: write, operator: true,
			summary: "Run a schedule's job now",
			out:     api.ScheduleRun{}, status: 202},
		{method: "GET", path: api.ScheduleRuns, handle: s.listScheduleRuns, scope: read,
			summary: "List the runs of a schedule, newest first",
			query:   queryPage, out: api.List[api.ScheduleRun]{}, status: 200},
	}
}

// scheduler returns the server's schedules, or Unsupported.
func (s *Server) scheduler() (*schedule.Scheduler, error) {
	if s.opts.Schedules == nil {
		return nil, lacks("schedules")
	}
	return s.opts.Schedules, nil
}

func (s *Server) setSchedule(w http.ResponseWriter, r *http.Request) error {
	schedules, err := s.scheduler()
	if err != nil {
		return err
	}
	var req api.ScheduleRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	made, err := schedules.Set(r.Context(), schedule.Job{
		Account: accountOf(r.Context()), Name: req.Name, Kind: req.Kind, Args: req.Args, Cron: req.Cron, Zone: req.Zone,
		Retries:        req.Retries,
		TimeoutSeconds: req.TimeoutSeconds, Missed: schedule.Missed(req.Missed), Paused: req.Paused,
	})
	if err != nil {
		return err
	}
	return respond(w, http.StatusCreated, scheduleOut(made))
}

func (s *Server) listSchedules(w http.ResponseWriter, r *http.Request) error {
	schedules, err := s.scheduler()
	if err != nil {
		return err
	}
	found, err := schedules.List(r.Context(), accountOf(r.Context()))
	if err != nil {
		return err
	}
	return paged(s, w, r, found, false, func(j schedule.Job) string { return j.Name }, scheduleOut)
}

// scheduleIs responds with the schedule that do returns.
func (s *Server) scheduleIs(do func(*schedule.Scheduler, context.Context, string,
	string) (schedule.Job, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		schedules, err := s.scheduler()
		if err != nil {
			return err
		}
		found, err := do(schedules, r.Context(), accountOf(r.Context()), r.PathValue("name"))
		if err != nil {
			return err
		}
		return respond(w, http.StatusOK, scheduleOut(found))
	}
}

func (s *Server) deleteSchedule(w http.ResponseWriter, r *http.Request) error {
	schedules, err := s.scheduler()
	if err != nil {
		return err
	}
	if err := schedules.Delete(r.Context(), accountOf(r.Context()), r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) startSchedule(w http.ResponseWriter, r *http.Request) error {
	schedules, err := s.scheduler()
	if err != nil {
		return err
	}
	run, err := schedules.RunNow(r.Context(), accountOf(r.Context()), r.PathValue("name"))
	if err != nil {
		return err
	}
	return respond(w, http.StatusAccepted, scheduleRunOut(run))
}

func (s *Server) listScheduleRuns(w http.ResponseWriter, r *http.Request) error {
	schedules, err := s.scheduler()
	if err != nil {
		return err
	}
	limit, err := number(r, "limit", api.DefaultPage, api.MaxPage)
	if err != nil {
		return err
	}
	before, err := s.after(r)
	if err != nil {
		return err
	}
	found, err := schedules.History(r.Context(), accountOf(r.Context()), r.PathValue("name"), before, limit)
	if err != nil {
		return err
	}
	page := api.List[api.ScheduleRun]{Data: each(found, scheduleRunOut)}
	if len(found) == limit {
		page.NextCursor = s.cursor(r, found[limit-1].ID)
	}
	return respond(w, http.StatusOK, page)
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
