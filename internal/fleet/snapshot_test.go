package fleet_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Find finds the images of List.
func (i stubImages) Find(ctx context.Context, ref string) (image.Image, error) {
	list, err := i.List(ctx)
	if err != nil {
		return image.Image{}, err
	}
	for _, img := range list {
		if img.ID == ref || slices.Contains(img.Names, ref) {
			return img, nil
		}
	}
	return image.Image{}, errors.Newf(errors.NotFound, "there is no image %q", ref)
}

// Snapshot makes an image whose id is the written text.
func (i stubImages) Snapshot(ctx context.Context, parent image.Image, opts image.SnapshotOptions,
	fill func(io.Writer) error) (image.Image, error) {
	var text strings.Builder
	if err := fill(&text); err != nil {
		return image.Image{}, err
	}
	img := image.Image{ID: "img_" + text.String(), Names: opts.Names, Spec: image.Spec{Parent: parent.ID},
		Snapshot: &image.Snapshot{Path: opts.Path, Lineage: []image.Origin{{Image: parent.ID, Sandbox: opts.Sandbox}}}}
	i.s.mu.Lock()
	if i.s.library {
		i.s.count++
		img.ID += fmt.Sprint(i.s.count)
		i.s.others = append(i.s.others, img)
	}
	i.s.mu.Unlock()
	return img, i.s.called(ctx, "keep")
}

// Keep notes that an image is kept.
func (i stubImages) Keep(_ context.Context, id string) error {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.s.kept = append(i.s.kept, id)
	return nil
}

// Delete deletes an image of a library.
func (i stubImages) Delete(_ context.Context, id string) error {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	if i.s.uses[id] > 0 {
		return errors.Newf(errors.Conflict, "the image %s is in use", id)
	}
	i.s.others = slices.DeleteFunc(i.s.others, func(img image.Image) bool { return img.ID == id })
	return nil
}

func (b *box) Snapshot(ctx context.Context, path string, w io.Writer) error {
	if err := b.s.called(ctx, "snapshot"); err != nil {
		return err
	}
	_, err := io.WriteString(w, "snapshot"+strings.ReplaceAll(path, "/", "-"))
	return err
}

func newSnapshotWorld(t testing.TB) *world {
	w := newWorld(t)
	w.caps.Snapshot = true
	return w
}

// mission: A10
func TestSnapshot(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{Volumes: []spec.Mount{{Name: "data", Path: "/data"}}})
	img, err := f.Snapshot(t.Context(), account, sb.ID, fleet.SnapshotOptions{Name: "team/dev:1", Path: "/work"})
	if err != nil || img.ID != "img_snapshot-work" || img.Names[0] != "team/dev:1" ||
		img.Snapshot.Lineage[0].Sandbox != sb.ID || img.Spec.Parent != baseImage.ID {
		t.Errorf("the snapshot is %+v, %v", img, err)
	}
	if got := w.seen(sb.ID); got != "starting ready snapshotted" {
		t.Errorf("events: %s", got)
	}
	for _, c := range []struct {
		ref  string
		opts fleet.SnapshotOptions
		kind errors.Kind
		word string
	}{
		{"nosuch", fleet.SnapshotOptions{}, errors.NotFound, "nosuch"},
		{sb.ID, fleet.SnapshotOptions{Name: "no spaces"}, errors.Invalid, "letter"},
		{sb.ID, fleet.SnapshotOptions{Path: "relative"}, errors.Invalid, "absolute"},
		{sb.ID, fleet.SnapshotOptions{Path: "/data/below"}, errors.Invalid, "volume data"},
	} {
		_, err := f.Snapshot(t.Context(), account, c.ref, c.opts)
		wantError(t, err, c.kind, c.word)
	}
	w.fail("snapshot", errors.Newf(errors.Exhausted, "the disk is full"))
	_, err = f.Snapshot(t.Context(), account, sb.ID, fleet.SnapshotOptions{})
	wantError(t, err, errors.Exhausted, "disk is full", "snapshot")
	if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
		t.Fatal(err)
	}
	_, err = f.Snapshot(t.Context(), account, sb.ID, fleet.SnapshotOptions{})
	wantError(t, err, errors.Gone)
}

func TestNoSnapshots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	_, err := f.Snapshot(t.Context(), account, sb.ID, fleet.SnapshotOptions{})
	wantError(t, err, errors.Unsupported, "copy")
	_, err = f.Create(t.Context(), account, spec.Request{SnapshotOnEnd: true})
	wantError(t, err, errors.Unsupported, "does not support snapshots")
	_, err = f.Fork(t.Context(), account, sb.ID, fleet.ForkRequest{})
	wantError(t, err, errors.Unsupported)
	_, err = f.Fork(t.Context(), account, "nosuch", fleet.ForkRequest{})
	wantError(t, err, errors.NotFound)
}

// mission: A10
func TestFork(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t)
	f := w.open(t)
	first := create(t, f, spec.Request{Name: "one", Tags: map[string]string{"team": "a"}, Workdir: "/work",
		User: "1000", CPU: 2, Memory: 1 << 30,
		Volumes: []spec.Mount{{Name: "data", Path: "/data"}}, TimeoutSeconds: 7200, IdleTimeoutSeconds: 60,
		Env: map[string]string{"A": "b"}})
	second, err := f.Fork(t.Context(), account, "one",
		fleet.ForkRequest{Name: "two", Env: map[string]string{"C": "d"}})
	if err != nil {
		t.Fatal(err)
	}
	if second.ID == first.ID || second.Image != "img_snapshot" || second.Name != "two" || second.Tags["team"] != "a" ||
		second.Workdir != "/work" || second.User != "1000" ||
		second.Limits != first.Limits || len(second.Volumes) != 1 || second.IdleTimeoutSeconds != 60 {
		t.Errorf("the copy is %+v", second)
	}
	if life := second.Expires.Sub(second.Started).Round(time.Second); life != 2*time.Hour {
		t.Errorf("the copy lives %s", life)
	}
	if spec := w.specs[len(w.specs)-1]; len(spec.Env) != 1 || spec.Env["C"] != "d" {
		t.Errorf("the copy's environment is %v", spec.Env)
	}
	_, err = f.Fork(t.Context(), account, "one", fleet.ForkRequest{Name: "two"})
	wantError(t, err, errors.Conflict, "two")
}

// TestForkOfASession checks that a copy of a session's sandbox gets no key that the session hides from its commands.
// The session does not treat the copy as its own, since it would destroy it. The same holds after a restart and for a
// copy of the copy.
func TestForkOfASession(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t)
	withSecrets(t, w, map[string]secret.Pairs{"one": {"MODEL_KEY": "fork-secret-model", "OTHER": "fork-secret-other"}})
	f := w.open(t)
	create(t, f, spec.Request{Name: "first", Secrets: []string{"one"}, Withhold: []string{"MODEL_KEY"},
		Ports: []int{8080},
		Tags:  map[string]string{"harvest.session": "ses_1", "team": "a"},
		Env:   map[string]string{"TOKEN": "of the session"}})
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f = w.open(t)
	for _, names := range [][2]string{{"first", "second"}, {"second", "third"}} {
		made, err := f.Fork(t.Context(), account, names[0], fleet.ForkRequest{Name: names[1]})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"OTHER": "fork-secret-other"}, w.specs[len(w.specs)-1].Env); diff != "" {
			t.Errorf("environment of the %s (-want +got):\n%s", names[1], diff)
		}
		if !maps.Equal(made.Tags, map[string]string{"team": "a"}) || !slices.Equal(made.Secrets, []string{"one"}) ||
			!slices.Equal(made.Ports, []int{8080}) {
			t.Errorf("the %s has tags %v, secrets %v, ports %v", names[1], made.Tags, made.Secrets, made.Ports)
		}
	}
	if of, err := f.Get(t.Context(), account, "first"); err != nil || of.Tags["harvest.session"] != "ses_1" {
		t.Errorf("the first one is %+v, %v", of, err)
	}
}

// mission: A5
// mission: A10
func TestSnapshotOnEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		req    spec.Request
		end    func(t *testing.T, w *world, f *fleet.Fleet, id string)
		events string
		status record.Status
	}{
		"by request": {spec.Request{}, func(t *testing.T, _ *world, f *fleet.Fleet, id string) {
			if err := f.Destroy(t.Context(), account, id); err != nil {
				t.Error(err)
			}
		}, "starting ready snapshotted terminated", record.Terminated},
		"lifetime": {spec.Request{TimeoutSeconds: 60}, func(*testing.T, *world, *fleet.Fleet, string) {},
			"starting ready snapshotted terminated", record.Terminated},
		"idle time": {spec.Request{IdleTimeoutSeconds: 60}, func(*testing.T, *world, *fleet.Fleet, string) {},
			"starting ready snapshotted terminated", record.Terminated},
		"memory": {spec.Request{}, func(t *testing.T, w *world, _ *fleet.Fleet, id string) {
			w.box(t, id).die(engine.End{OutOfMemory: true})
		}, "starting ready snapshotted oom failed", record.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newSnapshotWorld(t)
				f := w.open(t)
				c.req.SnapshotOnEnd = true
				sb := create(t, f, c.req)
				if !w.specs[0].KeepOnOOM || !sb.SnapshotOnEnd {
					t.Errorf("the sandbox is %+v", sb)
				}
				c.end(t, w, f, sb.ID)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				got := w.wantEnd(t, f, sb.ID, c.status, "", c.events)
				if got.SnapshotID != "img_snapshot" || got.SnapshotError != "" {
					t.Errorf("its record names the snapshot %q, %q", got.SnapshotID, got.SnapshotError)
				}
			})
		})
	}
}

// TestSnapshotOnEndFails checks that a failed snapshot is reported, and that the sandbox's resources are released all
// the same.
//
// mission: A8
func TestSnapshotOnEndFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newSnapshotWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{SnapshotOnEnd: true})
		w.fail("snapshot", errors.Newf(errors.Exhausted, "the disk is full"))
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		got := w.wantEnd(t, f, sb.ID, record.Terminated, "", "starting ready terminated")
		if got.SnapshotID != "" || got.SnapshotError != "the disk is full" {
			t.Errorf("its record says %q, %q", got.SnapshotID, got.SnapshotError)
		}

		stuck := create(t, f, spec.Request{SnapshotOnEnd: true})
		unblock := w.block("snapshot")
		defer unblock()
		if err := f.Destroy(t.Context(), account, stuck.ID); err != nil { // after some minutes of synthetic time
			t.Fatal(err)
		}
		if got := get(t, f, stuck.ID); got.SnapshotError == "" {
			t.Errorf("its record says nothing of the snapshot that never ended: %+v", got)
		}
	})
}

// TestSnapshotOnEndAfterACrash checks that the next server takes the snapshot if a server ended while taking it.
func TestSnapshotOnEndAfterACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newSnapshotWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{SnapshotOnEnd: true})
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		sb.Status = record.Stopping
		if err := w.store.Put(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		f = w.open(t)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Terminated || got.SnapshotID != "img_snapshot" {
			t.Errorf("after the crash: %+v", got)
		}
	})
}
