package fleet_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// mission: A6
func TestNamesFindTheLatestSandbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		get := func(f *fleet.Fleet, want record.Sandbox, status record.Status) {
			t.Helper()
			sb, err := f.Get(t.Context(), account, "web")
			if err != nil || sb.ID != want.ID || sb.Status != status || status.Ended() && sb.Reason == "" {
				t.Errorf("%s is %s, %s (%s), %v; want %s", "web", sb.ID, sb.Status, sb.Reason, err, want.ID)
			}
		}
		_, err := f.Get(t.Context(), account, "web")
		wantError(t, err, errors.NotFound, `sandbox "web": not found`,
			`list sandboxes, including ended ones, with "harvest sandbox ls --all"`)
		first := create(t, f, spec.Request{Name: "web"})
		get(f, first, record.Running)
		if err := f.Destroy(t.Context(), account, "web"); err != nil {
			t.Fatal(err)
		}
		get(f, first, record.Terminated)
		if _, err := f.Exec(t.Context(), account, "web",
			fleet.ExecRequest{Args: []string{"run"}}); errors.KindOf(err) != errors.Gone {
			t.Errorf("a command in it: %v", err)
		}
		if err := f.Destroy(t.Context(), account, "web"); err != nil {
			t.Errorf("destroy it once more: %v", err)
		}
		if _, err := f.Get(t.Context(), "other", "web"); errors.KindOf(err) != errors.NotFound {
			t.Errorf("another account finds it: %v", err)
		}
		time.Sleep(time.Second)
		second := create(t, f, spec.Request{Name: "web"})
		get(f, second, record.Running)
		if err := f.Destroy(t.Context(), account, second.ID); err != nil {
			t.Fatal(err)
		}
		get(f, second, record.Terminated)
	})
}
