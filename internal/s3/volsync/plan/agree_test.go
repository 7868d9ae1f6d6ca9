package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// TestAgreementAlongPaths checks the actions that leave an Agreement, and their order.
// mission: D2
func TestAgreementAlongPaths(t *testing.T) {
	t.Parallel()
	// Directories end with a slash. A ? marks an action that may change later.
	cases := map[string]struct{ in, want string }{
		"deleted":           {"a delete remote,q/ delete remote,q/f delete remote,z keep", ""},
		"kept beneath":      {"q/ delete remote,q/f download,z keep", "q/ download,q/f download,z keep"},
		"kept here":         {"q/ delete local,q/f upload,z keep", "q/ upload,q/f upload,z keep"},
		"unreadable here":   {"q/ delete local,q/f skip", "q/ upload,q/f skip"},
		"foreign key there": {"q/ delete remote,q/f skip", ""},
		"unsure":            {"q/ delete remote,q/f? download", ""},
		"only the path": {"q/ delete remote,q/a/ delete remote,q/a/f delete remote," +
			"q/b/ delete remote,q/b/f keep,r/ delete remote",
			"q/ download,q/a/ delete remote,q/a/f delete remote,q/b/ download,q/b/f keep,r/ delete remote"},
		"a similar name": {"q/ delete remote,q/f delete remote,q0 download", ""},
		"a directory":    {"q/ delete remote,q/d/ download", "q/ download,q/d/ download"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			g := Agreement{Do: func(a Action) error { got = append(got, shown(a)); return nil }}
			for part := range strings.SplitSeq(c.in, ",") {
				path, op, _ := strings.Cut(part, " ")
				a := Action{Op: Op(op), Kind: tree.File}
				path, a.Unsure = strings.CutSuffix(path, "?")
				path, dir := strings.CutSuffix(path, "/")
				if a.Path = path; dir {
					a.Kind = tree.Dir
				}
				if err := g.Add(a); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.Flush(); err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				c.want = strings.ReplaceAll(c.in, "?", "")
			}
			if text := strings.Join(got, ","); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
		})
	}
}

// TestAgreementIsLimited checks that an Agreement holds a limited number of actions, and releases the deletion of a
// directory about which it does not know enough through Open.
// mission: D2
func TestAgreementIsLimited(t *testing.T) {
	t.Parallel()
	var got []string
	most := 0
	g := Agreement{Open: func(a *Action) { a.Op = Keep }}
	g.Do = func(a Action) error {
		got = append(got, shown(a))
		return nil
	}
	all := []Action{{Op: DeleteRemote, Path: "q", Kind: tree.Dir}}
	for i := range 3 * agreeActions {
		all = append(all, Action{Op: DeleteRemote, Path: fmt.Sprintf("q/%06d", i), Kind: tree.File})
	}
	for _, a := range all {
		if err := g.Add(a); err != nil {
			t.Fatal(err)
		}
		most = max(most, len(g.held))
	}
	if err := g.Flush(); err != nil {
		t.Fatal(err)
	}
	if most > agreeActions || len(got) != len(all) || got[0] != "q/ keep" || !slices.IsSorted(got) {
		t.Errorf("at most %d were held, %d of %d left, the first %q", most, len(got), len(all), got[0])
	}
}

func shown(a Action) string {
	if a.Kind == tree.Dir {
		return a.Path + "/ " + string(a.Op)
	}
	return a.Path + " " + string(a.Op)
}
