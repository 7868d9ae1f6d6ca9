package memory

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/schedule"
)

// Schedules stores scheduled jobs and their runs. The zero value is ready to use.
type Schedules struct {
	mu   sync.Mutex
	jobs map[[2]string]schedule.Job // guarded by mu; by account and name
	runs map[string]schedule.Run    // guarded by mu; by id
}

var _ schedule.Store = (*Schedules)(nil)

// Put implements schedule.Store.
func (s *Schedules) Put(_ context.Context, job schedule.Job, runs ...schedule.Run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs == nil {
		s.jobs, s.runs = map[[2]string]schedule.Job{}, map[string]schedule.Run{}
	}
	s.jobs[[2]string{job.Account, job.Name}] = cloneJob(job)
	for _, run := range runs {
		s.runs[run.ID] = cloneRun(run)
	}
	return nil
}

// Jobs implements schedule.Store.
func (s *Schedules) Jobs(context.Context) ([]schedule.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []schedule.Job
	for _, job := range s.jobs {
		found = append(found, cloneJob(job))
	}
	slices.SortFunc(found, func(a, b schedule.Job) int {
		return cmp.Or(strings.Compare(a.Account, b.Account), strings.Compare(a.Name, b.Name))
	})
	return found, nil
}

// Delete implements schedule.Store.
func (s *Schedules) Delete(_ context.Context, account, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.jobs[[2]string{account, name}]; !ok {
		return schedule.NotFound(name)
	}
	delete(s.jobs, [2]string{account, name})
	maps.DeleteFunc(s.runs, func(_ string, run schedule.Run) bool { return run.Account == account && run.Job == name })
	return nil
}

// Runs implements schedule.Store.
func (s *Schedules) Runs(_ context.Context, account, job, before string, limit int) ([]schedule.Run, error) {
	found := s.newest(func(run schedule.Run) bool {
		return run.Account == account && run.Job == job && (before == "" || run.ID < before)
	})
	return found[:min(limit, len(found))], nil
}

// Open implements schedule.Store.
func (s *Schedules) Open(context.Context) ([]schedule.Run, error) {
	return s.newest(func(run schedule.Run) bool { return run.Status == schedule.Running || !run.RetryAt.IsZero() }), nil
}

// Trim implements schedule.Store.
func (s *Schedules) Trim(_ context.Context, account, job string, keep int) error {
	found := s.newest(func(run schedule.Run) bool { return run.Account == account && run.Job == job })
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, run := range found[min(keep, len(found)):] {
		delete(s.runs, run.ID)
	}
	return nil
}

func (s *Schedules) newest(keep func(schedule.Run) bool) []schedule.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []schedule.Run
	for _, run := range s.runs {
		if keep(run) {
			found = append(found, cloneRun(run))
		}
	}
	slices.SortFunc(found, func(a, b schedule.Run) int { return strings.Compare(b.ID, a.ID) })
	return found
}

func cloneJob(job schedule.Job) schedule.Job {
	job.Args = bytes.Clone(job.Args)
	return job
}

func cloneRun(run schedule.Run) schedule.Run {
	run.Output = bytes.Clone(run.Output)
	return run
}
