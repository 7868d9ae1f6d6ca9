package fleet_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/refresh"
)

// mission: B5, C2
func TestRefresh(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	if _, err := h.Volumes().Create(t.Context(), refresh.StateVolume); err != nil {
		t.Fatal(err)
	}
	root := h.Volumes().(*volume.Local).Path(refresh.StateVolume)
	outside := filepath.Join(t.TempDir(), "outside")
	write := func(path string, age time.Duration) {
		t.Helper()
		at := time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("12345"), 0o644),
			os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	const day = 24 * time.Hour
	old, fresh, elsewhere := filepath.Join(root, ".cache/pip/a/old"), filepath.Join(root, ".cache/pip/fresh"),
		filepath.Join(root, "workspace/old")
	write(old, 8*day)
	write(fresh, 6*day)
	write(elsewhere, 99*day)
	write(outside, 99*day)
	if err := os.Symlink(outside, filepath.Join(root, ".cache/link")); err != nil {
		t.Fatal(err)
	}
	report, err := refresh.Refresh{Fleet: h.fleet, Images: h.Images(), Account: "personal"}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report.Status != "success" || !report.ImageRebuilt || !report.Verified || report.ImageID == "" ||
		!strings.HasPrefix(report.Python, "3.") ||
		report.CacheFiles != 1 || report.CacheBytes != 5 || report.Timestamp.IsZero() || report.Seconds <= 0 {
		t.Errorf("%+v", report)
	}
	for path, want := range map[string]bool{
		old: false, filepath.Dir(old): false, fresh: true, elsewhere: true, outside: true,
		filepath.Join(root, "checkpoints"): true, filepath.Join(root, "sessions"): true,
	} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %t", path, err == nil)
		}
	}
	text, err := json.Marshal(report)
	if err != nil || !strings.Contains(string(text), `"status":"success"`) ||
		!strings.Contains(string(text), `"image_rebuilt":true`) {
		t.Errorf("%s, %v", text, err)
	}
	if all, err := h.fleet.List(t.Context(), "", record.Filter{}); err != nil || len(all) != 0 {
		t.Errorf("sandboxes are left: %v, %v", all, err)
	}
}

// mission: B5, A9
func TestRefreshFails(t *testing.T) {
	t.Parallel()
	boom := errors.Newf(errors.Unavailable, "boom")
	t.Run("image", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.fail("build", boom)
		report, err := refresh.Refresh{Fleet: w.open(t), Images: w.stub.Images(), Account: account}.Run(t.Context())
		wantError(t, err, errors.Unavailable, "boom", "| image")
		if report.Status != "failed" || report.ImageRebuilt || report.Verified {
			t.Errorf("%+v", report)
		}
	})
	t.Run("sandbox", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.fail("create", boom)
		report, err := refresh.Refresh{Fleet: w.open(t), Images: w.stub.Images(), Account: account}.Run(t.Context())
		wantError(t, err, errors.Unavailable, "boom")
		if report.Status != "failed" || !report.ImageRebuilt || report.Verified || len(w.refs()) != 0 {
			t.Errorf("%+v, left %v", report, w.refs())
		}
	})
	t.Run("program", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.caps.Volumes = false
		f := w.open(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w.stub.mu.Lock()
		w.hooks["start"] = func() {
			go func() { // as soon as there is a command, it fails
				for _, ref := range w.refs() {
					endCommands(t, w, ref)
				}
			}()
		}
		w.stub.mu.Unlock()
		report, err := refresh.Refresh{Fleet: f, Images: w.stub.Images(), Account: account, Image: "base"}.Run(ctx)
		wantError(t, err, errors.Unavailable, "ended with 3", "| verify")
		if report.Status != "failed" || !report.ImageRebuilt || report.Verified ||
			!strings.Contains(report.CacheKept, "no volumes") || len(w.refs()) != 0 {
			t.Errorf("%+v, left %v", report, w.refs())
		}
	})
}

// endCommands waits for a command in the box, and makes it fail.
func endCommands(t *testing.T, w *world, ref string) {
	for t.Context().Err() == nil {
		w.stub.mu.Lock()
		procs := maps.Clone(w.boxes[ref].procs)
		for _, p := range procs {
			p.finish(engine.Exit{Code: 3})
		}
		w.stub.mu.Unlock()
		if len(procs) > 0 {
			return
		}
		runtime.Gosched()
	}
}
