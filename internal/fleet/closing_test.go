package fleet_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// TestCreateDuringClose creates and removes a sandbox while the Fleet is closed, and afterwards.
func TestCreateDuringClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.CloseWhileUsed(t, func() (use, end func()) {
		opts := w.opts
		opts.Engine, opts.Store = w.stub, w.store
		f, err := fleet.Open(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			sb, err := f.Create(t.Context(), account, spec.Request{})
			if err == nil {
				err = f.Destroy(t.Context(), account, sb.ID)
			}
			if err != nil && !errors.Is(err, errors.Unavailable) {
				t.Error(err)
			}
		}, func() { _ = f.Close(t.Context()) }
	})
}
