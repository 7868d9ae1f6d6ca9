package fleet_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/build"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
)

// buildAccount is the account that owns the sandboxes of builds.
const buildAccount = "harvest-build"

// mission: B2
func TestBuildsRunInSandboxes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.caps.Snapshot = true
	w.opts.Quotas = reserve.Quotas{Sandboxes: 1}
	f := w.open(t)
	create(t, f, spec.Request{}) // the quota of accounts does not concern builds
	m, err := build.New(f, w.stub.Volumes()).Start(t.Context(), dockerfile.Setup{
		Image: "base", Network: "default", Title: "RUN true",
		Mounts: []dockerfile.Mount{{Volume: "c", Path: "/c"}}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := f.List(t.Context(), buildAccount, record.Filter{})
	if err != nil || len(list) != 1 || list[0].Limits.CPU != 8 || list[0].Limits.Memory != 8<<30 ||
		list[0].Volumes[0].Name != "c" {
		t.Fatalf("got %+v, %v", list, err)
	}
	if own, err := f.List(t.Context(), account, record.Filter{}); err != nil || len(own) != 1 {
		t.Errorf("an account sees sandboxes of builds: %+v, %v", own, err)
	}
	var out bytes.Buffer
	code, err := m.Run(t.Context(), dockerfile.Command{Args: []string{"echo", "hello"}, Dir: "/", Stdout: &out,
		Stderr: io.Discard})
	if err != nil || code != 0 || !strings.Contains(out.String(), "hello") {
		t.Errorf("got %d, %v, %q", code, err, &out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	if _, err := m.Run(ctx, dockerfile.Command{Args: []string{"run"}, Dir: "/", Stdout: io.Discard,
		Stderr: io.Discard}); errors.KindOf(err) != errors.Canceled {
		t.Errorf("a command that is given up: %v", err)
	}
	if _, err := m.Run(t.Context(), dockerfile.Command{Dir: "/"}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("no command: %v", err)
	}
	if err := m.CopyIn(t.Context(), "/x", strings.NewReader("")); err != nil {
		t.Errorf("copy: %v", err)
	}
	if err := m.Snapshot(t.Context(), io.Discard); err != nil {
		t.Errorf("snapshot: %v", err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := m.Snapshot(t.Context(), io.Discard); err == nil {
		t.Error("a machine that has ended has a snapshot")
	}
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

// Volumes of builds are found and removed by builds only.
//
// mission: B2
func TestVolumesOfBuilds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.caps.Snapshot = true
	f := w.open(t)
	builds := build.New(f, w.stub.Volumes())
	m, err := builds.Start(t.Context(), dockerfile.Setup{Image: "base", Network: "none",
		Mounts: []dockerfile.Mount{{Volume: "c", Path: "/c"}}})
	if err != nil {
		t.Fatal(err)
	}
	create(t, f, spec.Request{Volumes: []spec.Mount{{Name: "mine", Path: "/mine"}}})
	if all, err := builds.Volumes(t.Context()); err != nil || len(all) != 1 || all[0].Name != "c" {
		t.Errorf("got %+v, %v", all, err)
	}
	if err := builds.RemoveVolume(t.Context(), "mine"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("an account's volume: %v", err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := builds.RemoveVolume(t.Context(), "c"); err != nil {
		t.Error(err)
	}
	if all, err := builds.Volumes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("got %+v, %v", all, err)
	}
	w.caps.Volumes = false
	builds = build.New(w.open(t), w.stub.Volumes())
	if all, err := builds.Volumes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("without volumes: %+v, %v", all, err)
	}
	if err := builds.RemoveVolume(t.Context(), "c"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("without volumes: %v", err)
	}
}

func TestBuildsNeedSnapshots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.caps.Snapshot, w.caps.Network, w.caps.Limits = false, false, nil
	f := w.open(t)
	_, err := build.New(f, w.stub.Volumes()).Start(t.Context(), dockerfile.Setup{Image: "base", Network: "default"})
	wantError(t, err, errors.Unsupported, "cannot build images")
	w.caps.Snapshot = true
	f = w.open(t)
	m, err := build.New(f, w.stub.Volumes()).Start(t.Context(), dockerfile.Setup{Image: "base", Network: "default"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestBuildsEndWithTheServer checks that the next server removes the sandboxes of builds that have no client any
// longer.
func TestBuildsEndWithTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.caps.Snapshot = true
		f := w.open(t)
		kept := create(t, f, spec.Request{})
		if _, err := build.New(f, w.stub.Volumes()).Start(t.Context(),
			dockerfile.Setup{Image: "base", Network: "none"}); err != nil {
			t.Fatal(err)
		}
		f = w.restart(t, f)
		synctest.Wait()
		if list, err := f.List(t.Context(), buildAccount, record.Filter{}); err != nil || len(list) != 0 {
			t.Errorf("left: %+v, %v", list, err)
		}
		if got := get(t, f, kept.ID); got.Status != record.Running {
			t.Errorf("another sandbox is %s", got.Status)
		}
	})
}
