package store

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/repo"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

func TestReposConformance(t *testing.T) {
	t.Parallel()
	storetest.RunRepos(t, func(t *testing.T) repo.Store { return open(t, filepath.Join(t.TempDir(), "db")).Repos() })
}

func TestReposErrors(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	for _, statement := range []string{"INSERT INTO repos VALUES ('repo_1', 'acme', 'a', 'no JSON')",
		"INSERT INTO repo_builds VALUES ('bld_1', 'repo_1', 'no JSON')"} {
		if _, err := db.write.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	s := db.Repos()
	_, err := s.Repo(t.Context(), "repo_1")
	check(t, errors.Message(err), "damaged")
	_, err = s.Builds(t.Context(), "repo_1", 0)
	check(t, errors.Message(err), "damaged")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, get := s.Repo(t.Context(), "repo_1")
	_, list := s.Repos(t.Context(), "")
	_, builds := s.Builds(t.Context(), "repo_1", 0)
	for what, err := range map[string]error{
		"PutRepo": s.PutRepo(t.Context(), repo.Repo{}), "Repo": get, "Repos": list, "Builds": builds,
		"DeleteRepo": s.DeleteRepo(t.Context(), "repo_1"), "TrimBuilds": s.TrimBuilds(t.Context(), "repo_1", 1),
	} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}
