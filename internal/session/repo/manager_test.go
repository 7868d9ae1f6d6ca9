package repo_test

import (
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session/repo"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// options returns the options of a Manager on the fake engine, which runs nothing here. test/e2e/repo tests builds on
// gVisor.
func options(t *testing.T) repo.Options {
	t.Helper()
	eng, err := fake.Open(t.TempDir(), fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	db := testdb.Open(t)
	fleet, err := fleet.Open(t.Context(), fleet.Options{Engine: eng, Store: db.Sandboxes()})
	if err != nil {
		t.Fatal(err)
	}
	journal := event.Open(t.Context(), event.Options{Store: db.Events()})
	t.Cleanup(func() {
		if err := errors.Join(fleet.Close(t.Context()), eng.Close()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return repo.Options{Fleet: fleet, Images: eng.Images(), Journal: journal, Store: db.Repos(),
		Check: workspace.CheckRepo}
}

// mission: B5
func TestInterruptedBuildsAreMarked(t *testing.T) {
	t.Parallel()
	opts := options(t)
	r := repo.Repo{ID: "repo_01", Account: "acme", Name: "a/b", URL: "https://example.org/a/b", Status: repo.Building,
		Image: "img_1"}
	done := repo.Build{ID: "bld_1", Status: repo.Succeeded, Success: true}
	if err := opts.Store.PutRepo(t.Context(), r, done, repo.Build{ID: "bld_2", Status: repo.Running,
		Started: time.Now().UTC()}); err != nil {
		t.Fatal(err)
	}
	m, err := repo.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.Get(t.Context(), "acme", "a/b")
	builds, listErr := m.Builds(t.Context(), "acme", "repo_01", 0)
	if err != nil || listErr != nil || got.Status != repo.Failed || got.Image != "img_1" || len(builds) != 2 ||
		builds[0].Status != repo.Interrupted || builds[0].Ended.IsZero() || !builds[1].Success {
		t.Errorf("%+v, %v\n%+v, %v", got, err, builds, listErr)
	}
	m.Close()
	if _, err := m.Start(t.Context(), "acme", "a/b", repo.Asked); err == nil {
		t.Error("a build was begun after the end")
	}
}

func TestRepositoriesAreFound(t *testing.T) {
	t.Parallel()
	opts := options(t)
	for _, r := range []repo.Repo{{ID: "repo_01a", Account: "acme", Name: "one"},
		{ID: "repo_01b", Account: "acme", Name: "two", URL: "https://example.org/two", Image: "img_gone"},
		{ID: "repo_02", Account: "other", Name: "one"}} {
		if err := opts.Store.PutRepo(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	m, err := repo.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for ref, want := range map[string]errors.Kind{"one": "", "repo_01a": "", "repo_01": errors.Invalid,
		"repo_": errors.NotFound, "repo_02": errors.NotFound, "three": errors.NotFound} {
		if _, err := m.Get(t.Context(), "acme", ref); err == nil != (want == "") || err != nil &&
			errors.KindOf(err) != want {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if found, err := m.List(t.Context(), "acme"); err != nil || len(found) != 2 {
		t.Errorf("%v, %v", found, err)
	}
	if found, ok := m.Find(t.Context(), "acme", "https://example.org/two.git", ""); ok {
		t.Errorf("an image that is gone: %+v", found)
	}
	for _, do := range []func() error{
		func() error { _, err := m.Builds(t.Context(), "acme", "three", 0); return err },
		func() error { _, err := m.Start(t.Context(), "acme", "three", repo.Refresh); return err },
		func() error { _, err := m.Refresh(t.Context(), "acme", "three"); return err },
		func() error { return m.Remove(t.Context(), "acme", "three") },
	} {
		if err := do(); !errors.Is(err, errors.NotFound) {
			t.Error(err)
		}
	}
	if err := m.Remove(t.Context(), "acme", "one"); err != nil {
		t.Error(err)
	}
	if _, err := m.Get(t.Context(), "acme", "one"); !errors.Is(err, errors.NotFound) {
		t.Error(err)
	}
}

func TestOpenNeedsItsParts(t *testing.T) {
	t.Parallel()
	if _, err := repo.Open(t.Context(), repo.Options{}); err == nil {
		t.Error("a Manager without anything")
	}
}

// A schedule leaves a repository that keeps failing alone until it is due.
// mission: B5
func TestRefreshWhenDue(t *testing.T) {
	t.Parallel()
	opts := options(t)
	for _, r := range []repo.Repo{{ID: "repo_01", Account: "acme", Name: "due"},
		{ID: "repo_02", Account: "acme", Name: "later", Failures: 5, Next: time.Now().Add(time.Hour)}} {
		if err := opts.Store.PutRepo(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	m, err := repo.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if b, err := m.RefreshDue(t.Context(), "acme", "later"); b != nil || err != nil {
		t.Errorf("%+v, %v", b, err)
	}
	if _, err := m.RefreshDue(t.Context(), "acme", "due"); errors.KindOf(err) != errors.Unsupported { // of this engine
		t.Errorf("%v", err)
	}
	if _, err := m.RefreshDue(t.Context(), "other", "later"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("%v", err)
	}
}
