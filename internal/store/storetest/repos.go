package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/repo"
)

// RunRepos runs the suite of repo.Store. open returns a new, empty store.
func RunRepos(t *testing.T, open func(t *testing.T) repo.Store) {
	for name, check := range map[string]func(*testing.T, repo.Store){
		"a record comes back as it was put":     repoRoundTrip,
		"names are unique within an account":    repoNames,
		"builds come back, the newest first":    repoBuilds,
		"a deleted record takes its builds":     repoDelete,
		"a missing record is NotFound":          repoMissing,
		"a history is shortened from its begin": repoTrim,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

// FullRepo returns a record with every field set.
func FullRepo(id, account, name string) repo.Repo {
	install, on, none := "make deps", true, []string{}
	plan := repo.Plan{Projects: []repo.Project{{Dir: ".", Manager: "npm", Lock: "package-lock.json",
		Install: "npm ci"}}, Override: repo.Override{Build: &install}}
	return repo.Repo{
		ID: id, Account: account, Name: name, URL: "https://example.org/a/b", Branch: "main", Dir: "/workspace/b",
		Recipe: repo.Recipe{Install: &install, Root: true, LimitSeconds: 5, Sandbox: spec.Request{Image: "agent",
			Secrets: []string{"s"}}, Parts: repo.Parts{Submodules: &on, LFS: &on, Groups: &none}},
		Left:   []repo.Gap{{What: "python", Why: "w"}},
		Status: repo.Failed, Reason: "r", Image: "img_1", Commit: "abc", Default: "main", Plan: plan,
		Locks: map[string]string{"a": "b"}, RecipeDigest: "sha256:1",
		Built: day, Whole: day, Checked: day.Add(time.Minute), Used: day, Created: day, Retired: []string{"img_0"},
	}
}

func putRepo(t *testing.T, s repo.Store, r repo.Repo, builds ...repo.Build) {
	t.Helper()
	if err := s.PutRepo(t.Context(), r, builds...); err != nil {
		t.Fatal(err)
	}
}

func repoRoundTrip(t *testing.T, s repo.Store) {
	want := FullRepo("repo_1", "acme", "a/b")
	for range 2 {
		putRepo(t, s, want)
		got, err := s.Repo(t.Context(), "repo_1")
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
		want = repo.Repo{ID: "repo_1", Account: "acme", Name: "c", Status: repo.New}
	}
}

func repoNames(t *testing.T, s repo.Store) {
	putRepo(t, s, FullRepo("repo_1", "acme", "b"))
	putRepo(t, s, FullRepo("repo_2", "acme", "a"))
	putRepo(t, s, FullRepo("repo_3", "other", "b"))
	if err := s.PutRepo(t.Context(), FullRepo("repo_4", "acme", "b")); !errors.Is(err, errors.Conflict) {
		t.Errorf("a name that is taken: %v", err)
	}
	for account, want := range map[string]string{"acme": "[repo_2 repo_1]", "other": "[repo_3]",
		"": "[repo_2 repo_1 repo_3]", "nobody": "[]"} {
		list, err := s.Repos(t.Context(), account)
		ids := []string{}
		for _, r := range list {
			ids = append(ids, r.ID)
		}
		if got := fmt.Sprint(ids); err != nil || got != want {
			t.Errorf("%q: %s, %v", account, got, err)
		}
	}
}

// fullBuild returns a build with every field set.
func fullBuild(id, of string) repo.Build {
	return repo.Build{
		ID: id, Repo: of, Cause: repo.Refresh, Mode: repo.Whole, Status: repo.Broken, Stage: "install", Error: "e",
		Kind: "invalid", Left: []repo.Gap{{What: "lfs", Why: "w"}}, Python: "3.11.2",
		Remedy: "r", Output: "o\n\x01", Commit: "c",
		From: "img_0", Image: "img_1", RecipeDigest: "sha256:2", Locks: map[string]string{"a": "b"},
		Plan: repo.Plan{Projects: []repo.Project{{Dir: "."}}}, Node: "22",
		Steps: []repo.Ran{{Stage: "install", Command: "npm ci", Code: 1, Seconds: 2.5}}, Started: day,
		Ended: day.Add(time.Minute), Seconds: 60,
	}
}

func repoBuilds(t *testing.T, s repo.Store) {
	r := FullRepo("repo_1", "acme", "b")
	first := fullBuild("bld_1", "repo_1")
	first.Status = repo.Running
	putRepo(t, s, r, first)
	putRepo(t, s, r, fullBuild("bld_2", "repo_1"), fullBuild("bld_1", "repo_1"))
	putRepo(t, s, FullRepo("repo_2", "acme", "c"), fullBuild("bld_3", "repo_2"))
	got, err := s.Builds(t.Context(), "repo_1", 0)
	if diff := cmp.Diff([]repo.Build{fullBuild("bld_2", "repo_1"), fullBuild("bld_1", "repo_1")},
		got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if got, err := s.Builds(t.Context(), "repo_1", 1); err != nil || len(got) != 1 || got[0].ID != "bld_2" {
		t.Errorf("the newest: %v, %v", got, err)
	}
}

func repoDelete(t *testing.T, s repo.Store) {
	putRepo(t, s, FullRepo("repo_1", "acme", "b"), fullBuild("bld_1", "repo_1"))
	if err := s.DeleteRepo(t.Context(), "repo_1"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Builds(t.Context(), "repo_1", 0); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	putRepo(t, s, FullRepo("repo_2", "acme", "b")) // the name is available again
}

func repoMissing(t *testing.T, s repo.Store) {
	_, get := s.Repo(t.Context(), "repo_x")
	for _, err := range []error{get, s.DeleteRepo(t.Context(), "repo_x")} {
		if !errors.Is(err, errors.NotFound) {
			t.Error(err)
		}
	}
}

func repoTrim(t *testing.T, s repo.Store) {
	r := FullRepo("repo_1", "acme", "b")
	for i := range 5 {
		putRepo(t, s, r, fullBuild(fmt.Sprintf("bld_%d", i), r.ID))
	}
	for _, keep := range []int{9, 2} {
		if err := s.TrimBuilds(t.Context(), r.ID, keep); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Builds(t.Context(), r.ID, 0); err != nil || len(got) != min(keep, 5) || got[0].ID != "bld_4" {
			t.Errorf("keep %d: %v, %v", keep, got, err)
		}
	}
}
