package records

import "testing"

func TestRepositories(t *testing.T) {
	t.Parallel()
	old := Session{Repo: "https://example.org/a/b", Branch: "main", Dir: "/workspace/b",
		Base: "abc"} // of an earlier version
	if got := old.Repositories(); len(got) != 1 || got[0].Start != "abc" || got[0].Name() != "b" ||
		got[0].URL != old.Repo {
		t.Errorf("%+v", got)
	}
}
