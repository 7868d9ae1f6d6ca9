package store

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

func TestSchedulesConformance(t *testing.T) {
	t.Parallel()
	storetest.RunSchedules(t, func(t *testing.T) schedule.Store {
		return open(t,
			filepath.Join(t.TempDir(), "db")).Schedules()
	})
}

func TestSchedulesErrors(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	if _, err := db.write.Exec("INSERT INTO schedules VALUES ('acme', 'a', 'no JSON')"); err != nil {
		t.Fatal(err)
	}
	s := db.Schedules()
	_, err := s.Jobs(t.Context())
	check(t, errors.Message(err), "damaged")
	if err := s.Put(t.Context(), schedule.Job{Args: []byte("{")}); err == nil {
		t.Error("a job that is no JSON is stored")
	}
	if err := s.Put(t.Context(), schedule.Job{}, schedule.Run{Output: []byte("{")}); err == nil {
		t.Error("a run that is no JSON is stored")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, jobs := s.Jobs(t.Context())
	_, runs := s.Runs(t.Context(), "acme", "a", "", 1)
	_, open := s.Open(t.Context())
	for what, err := range map[string]error{
		"Put": s.Put(t.Context(), schedule.Job{}), "Jobs": jobs, "Runs": runs, "Open": open,
		"Delete": s.Delete(t.Context(), "acme", "a"), "Trim": s.Trim(t.Context(), "acme", "a", 1),
	} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}
