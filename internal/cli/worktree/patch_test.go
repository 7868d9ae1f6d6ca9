package worktree

import (
	"strings"
	"testing"
)

// TestPatchSize checks that files and lines are counted as git counts them.
func TestPatchSize(t *testing.T) {
	t.Parallel()
	w := newTwin(t)
	w.change()
	w.write(w.agent, map[string]string{"odd": "diff --git a/x b/x\n--- a/x\n@@ -1 +1 @@\n" + strings.Repeat("long ",
		50_000), "text": "-- \n++ \n"})
	files, added, removed, err := PatchSize(strings.NewReader(string(w.patch())))
	if err != nil || files != 8 || added != 8 || removed != 11 {
		t.Errorf("%d files, +%d -%d, %v\n%s", files, added, removed, err,
			w.git(w.agent, "diff", "--cached", "--numstat", "origin/main"))
	}
}
