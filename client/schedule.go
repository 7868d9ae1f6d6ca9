package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// SetSchedule creates or replaces a schedule.
func (c *Client) SetSchedule(ctx context.Context, req api.ScheduleRequest) (api.Schedule, error) {
	return ask[api.Schedule](ctx, c, http.MethodPost, api.Schedules, nil, req)
}

// CommandSchedule returns the request for a new schedule that runs a command, each time in a new sandbox. It replaces
// the Kind and the Args of req. SetSchedule returns Conflict if the schedule exists.
func CommandSchedule(req api.ScheduleRequest, run api.RunRequest) (api.ScheduleRequest, error) {
	if err := checkText(run.ExecRequest); err != nil {
		return req, err
	}
	return newSchedule(req, api.JobRun, run)
}

// PromptSchedule is CommandSchedule for a prompt, which is sent to a new session each time.
func PromptSchedule(req api.ScheduleRequest, job api.PromptJob) (api.ScheduleRequest, error) {
	return newSchedule(req, api.JobPrompt, job)
}

func newSchedule(req api.ScheduleRequest, kind string, args any) (api.ScheduleRequest, error) {
	data, err := json.Marshal(args)
	if err != nil {
		return req, errors.Explainf(err, errors.Invalid, "cannot encode the job as JSON")
	}
	req.Kind, req.Args, req.New = kind, data, true
	return req, nil
}

// Schedules returns all schedules by name.
func (c *Client) Schedules(ctx context.Context) ([]api.Schedule, error) {
	return list[api.Schedule](ctx, c, api.Schedules, nil)
}

// Schedule returns a schedule.
func (c *Client) Schedule(ctx context.Context, name string) (api.Schedule, error) {
	return ask[api.Schedule](ctx, c, http.MethodGet, api.Path(api.Scheduled, name), nil, nil)
}

// PauseSchedule suspends a schedule until ResumeSchedule.
func (c *Client) PauseSchedule(ctx context.Context, name string) (api.Schedule, error) {
	return ask[api.Schedule](ctx, c, http.MethodPost, api.Path(api.SchedulePause, name), nil, nil)
}

// ResumeSchedule ends PauseSchedule.
func (c *Client) ResumeSchedule(ctx context.Context, name string) (api.Schedule, error) {
	return ask[api.Schedule](ctx, c, http.MethodPost, api.Path(api.ScheduleResume, name), nil, nil)
}

// DeleteSchedule deletes a schedule and its history, and cancels its current run.
func (c *Client) DeleteSchedule(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Scheduled, name), nil, nil, nil)
}

// StartSchedule runs a schedule's job now. It returns Conflict if the job is running already.
func (c *Client) StartSchedule(ctx context.Context, name string) (api.ScheduleRun, error) {
	return ask[api.ScheduleRun](ctx, c, http.MethodPost, api.Path(api.ScheduleStart, name), nil, nil)
}

// ScheduleRuns returns at most limit runs of a schedule, newest first.
func (c *Client) ScheduleRuns(ctx context.Context, name string, limit int) ([]api.ScheduleRun, error) {
	var page api.List[api.ScheduleRun]
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	return page.Data, c.call(ctx, http.MethodGet, api.Path(api.ScheduleRuns, name), query, nil, &page)
}

// lookAgain is the polling interval of WaitScheduleRun.
const lookAgain = 200 * time.Millisecond

// WaitScheduleRun waits until a run has ended, and returns it. It returns NotFound if the run is not in the history.
func (c *Client) WaitScheduleRun(ctx context.Context, run api.ScheduleRun) (api.ScheduleRun, error) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		runs, err := c.ScheduleRuns(ctx, run.Schedule, api.MaxPage)
		if err != nil {
			return run, err
		}
		found := false
		for _, r := range runs {
			if r.ID == run.ID {
				run, found = r, true
			}
		}
		switch {
		case !found:
			return run, errors.Newf(errors.NotFound, "the history of %s no longer has %s", run.Schedule, run.ID)
		case !run.Ended.IsZero():
			return run, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return run, errors.Wrapf(ctx.Err(), "wait for the schedule %s", run.Schedule)
		}
	}
}
