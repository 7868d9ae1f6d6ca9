package apps_test

import (
	"slices"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/apps"
	"github.com/RelevanceAI/harvest/internal/store/records"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

func open(t *testing.T, store records.Store, now *time.Time) *apps.Registry {
	t.Helper()
	r, err := apps.Open(t.Context(), store, func() time.Time { return *now })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func add(t *testing.T, r *apps.Registry, state apps.State, now time.Time) string {
	t.Helper()
	id, err := apps.NewID()
	if err != nil || !apps.Random(id) {
		t.Fatalf("the ID is %s, %v", id, err)
	}
	if err := r.Add(apps.App{Account: "acme", ID: id, Env: "main", Name: id, Created: now, State: state}); err != nil {
		t.Fatal(err)
	}
	return id
}

func unattended(r *apps.Registry, at time.Time) (ids []string) {
	for _, a := range r.Unattended(at) {
		ids = append(ids, a.ID)
	}
	slices.Sort(ids)
	return ids
}

// TestSilentClients checks which apps are to be ended when heartbeats are missing, also after a restart, which counts
// as a heartbeat.
func TestSilentClients(t *testing.T) {
	t.Parallel()
	now, store := time.Now(), testdb.Open(t).Records()
	r := open(t, store, &now)
	silent, heard := add(t, r, apps.Ephemeral, now), add(t, r, apps.Ephemeral, now)
	stopping := add(t, r, apps.Stopping, now)
	if _, err := r.Ensure(apps.App{Account: "acme", ID: "ap-named", Name: "named", Created: now}, true); err != nil {
		t.Fatal(err)
	}
	now = now.Add(apps.Patience)
	if err := r.Hear("acme", heard); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Second)
	want := []string{silent, stopping}
	slices.Sort(want)
	if got := unattended(r, now); !slices.Equal(got, want) {
		t.Errorf("unattended are %v, want %v", got, want)
	}
	r = open(t, store, &now)
	if got := unattended(r, now); !slices.Equal(got, []string{stopping}) {
		t.Errorf("after a restart, unattended are %v", got)
	}
	for _, id := range []string{stopping, "ap-none"} {
		if err := r.Hear("acme", id); errors.KindOf(err) != errors.NotFound {
			t.Errorf("a heartbeat of %s: %v", id, err)
		}
	}
	if err := r.Hear("other", heard); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a heartbeat of another account: %v", err)
	}
}

// TestStoppedApps checks that a stopped app with a name is missing for lookups and starts again when it is created, and
// that the records of those without one go after a day.
func TestStoppedApps(t *testing.T) {
	t.Parallel()
	now, store := time.Now(), testdb.Open(t).Records()
	r := open(t, store, &now)
	named := apps.App{Account: "acme", ID: "ap-named", Env: "main", Name: "named", Created: now}
	if _, err := r.Ensure(named, false); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a missing app: %v", err)
	}
	if _, err := r.Ensure(named, true); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(named); errors.KindOf(err) != errors.Conflict {
		t.Errorf("added twice: %v", err)
	}
	loose := add(t, r, apps.Ephemeral, now)
	for _, id := range []string{named.ID, loose} {
		if _, err := r.Change("acme", id, func(a apps.App) (apps.App, error) {
			a = a.Deploy(apps.Version{At: now})
			a.State, a.Stopped = apps.Stopped, now
			return a, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Ensure(named, false); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a stopped app: %v", err)
	}
	if a, err := r.Ensure(named, true); err != nil || a.Last().Number != 1 {
		t.Errorf("started again: %+v, %v", a, err)
	}
	if _, err := r.Get("acme", loose); err != nil {
		t.Errorf("one without a name, at once: %v", err)
	}
	now = now.Add(25 * time.Hour)
	add(t, r, apps.Ephemeral, now)
	if _, err := r.Get("acme", loose); errors.KindOf(err) != errors.NotFound {
		t.Errorf("one without a name, a day later: %v", err)
	}
	if a, err := open(t, store, &now).Get("acme", named.ID); err != nil || a.ID != named.ID || a.Name != "named" {
		t.Errorf("after a restart: %+v, %v", a, err)
	}
}

// TestManyRuns checks that the records of stopped apps without a name do not fill an account.
func TestManyRuns(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := open(t, testdb.Open(t).Records(), &now)
	first := ""
	for range 230 {
		now = now.Add(time.Second)
		id := add(t, r, apps.Stopped, now)
		if _, err := r.Change("acme", id, func(a apps.App) (apps.App, error) {
			a.Stopped = now
			return a, nil
		}); err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = id
		}
	}
	if n := len(r.List("acme", false)); n > 210 {
		t.Errorf("there are %d records", n)
	}
	if _, err := r.Get("acme", first); errors.KindOf(err) != errors.NotFound {
		t.Errorf("the oldest: %v", err)
	}
}

// TestDeployments checks that only the last deployments are kept, with their numbers.
func TestDeployments(t *testing.T) {
	t.Parallel()
	a := apps.App{State: apps.Initializing}
	for range 150 {
		a = a.Deploy(apps.Version{})
	}
	if len(a.Versions) != 100 || a.Last().Number != 150 || a.Versions[0].Number != 51 || a.State != apps.Deployed {
		t.Errorf("%d versions, from %d to %d", len(a.Versions), a.Versions[0].Number, a.Last().Number)
	}
}

// TestUnwritable checks that a change that cannot be stored is not made.
func TestUnwritable(t *testing.T) {
	t.Parallel()
	now, store := time.Now(), &storetest.Unwritable{Store: testdb.Open(t).Records()}
	r := open(t, store, &now)
	id := add(t, r, apps.Ephemeral, now)
	if err := r.Delete("acme", "im-1"); err != nil {
		t.Fatal(err)
	}
	store.Err = errors.Newf(errors.Exhausted, "the disk is full")
	if _, err := r.Change("acme", id, func(a apps.App) (apps.App, error) {
		a.State = apps.Stopped
		return a, nil
	}); err == nil {
		t.Error("the change succeeds")
	}
	if a, err := r.Get("acme", id); err != nil || a.State != apps.Ephemeral {
		t.Errorf("the state is %s, %v", a.State, err)
	}
	if err := r.Remove("acme", id); err == nil {
		t.Error("the removal succeeds")
	}
	if _, err := r.Get("acme", id); err != nil {
		t.Errorf("after the removal: %v", err)
	}
	if err := r.Delete("acme", "im-2"); err == nil || r.Deleted("acme", "im-2") {
		t.Errorf("the image is deleted: %v", err)
	}
	if err := r.Undelete("acme", "im-1", "im-2"); err == nil || !r.Deleted("acme", "im-1") {
		t.Errorf("the deletion is forgotten: %v", err)
	}
}

// TestDeletedImages checks that the IDs of deleted images are kept across restarts, apart from apps.
func TestDeletedImages(t *testing.T) {
	t.Parallel()
	now, store := time.Now(), testdb.Open(t).Records()
	r := open(t, store, &now)
	for _, id := range []string{"im-1", "im-2"} {
		if err := r.Delete("acme", id); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Undelete("acme", "im-2", "im-3"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if !r.Deleted("acme", "im-1") || r.Deleted("acme", "im-2") || r.Deleted("other", "im-1") {
			t.Error("other images are deleted")
		}
		if _, err := r.Get("acme", "im-1"); errors.KindOf(err) != errors.NotFound || len(r.List("acme", false)) != 0 {
			t.Errorf("a deleted image is an app: %v", err)
		}
		r = open(t, store, &now)
	}
}
