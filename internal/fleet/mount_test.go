package fleet_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
)

// mountStub records its calls, like s3Stub, and can mount.
type mountStub struct{ *s3Stub }

func (m mountStub) Mount(_ context.Context, j storage.Job, readOnly bool, limit int64) (string, error) {
	if err := m.call("mount", j); err != nil {
		return "", err
	}
	if limit <= 0 || readOnly != (j.Prefix == "ro") {
		return "", errors.Errorf("limit %d, read-only %t", limit, readOnly)
	}
	return "/mounts/" + j.Sandbox, nil
}

func (m mountStub) Quiet(_ context.Context, sandboxID string) {
	_ = m.call("quiet", storage.Job{Sandbox: sandboxID})
}

func (m mountStub) Finish(_ context.Context, sandboxID string) error {
	return m.call("finish", storage.Job{Sandbox: sandboxID})
}

func (m mountStub) Watch(lost func(sandbox, reason string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = lost
}

func (m mountStub) Recover(_ context.Context, lives func(string) bool) error {
	if lives("no sandbox") {
		return errors.Errorf("everything lives")
	}
	return m.call("recover", storage.Job{})
}

func mountWorld(t testing.TB) (*world, *s3Stub) {
	w, s3 := s3World(t)
	w.caps.Dirs, w.opts.Mounts = true, mountStub{s3}
	return w, s3
}

func mountRequest(change func(*spec.S3)) spec.Request {
	s := &spec.S3{Place: places.Place{Bucket: "files", Prefix: "work"}, MountPath: "/data", Mount: true}
	if change != nil {
		change(s)
	}
	return spec.Request{S3: s}
}

// TestMountInTheLifeOfASandbox checks that a mount exists before the sandbox, and ends after it, in whatever way the
// sandbox ends.
// mission: D5
func TestMountInTheLifeOfASandbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s3 := mountWorld(t)
		f := w.open(t)
		want := func(when, calls string) {
			t.Helper()
			synctest.Wait()
			if got := s3.asked(); got != calls {
				t.Errorf("%s: %q, want %q", when, got, calls)
			}
		}
		want("at the start", "recover")
		s3.fails["mount"] = errors.Newf(errors.Unsupported, "no FUSE")
		_, err := f.Create(t.Context(), account, mountRequest(nil))
		wantError(t, err, errors.Unsupported, "no FUSE", "s3 mount")
		delete(s3.fails, "mount")
		want("no FUSE", "check mount")
		w.fail("create", errors.Newf(errors.Unavailable, "no room"))
		s3.fails["finish"] = errors.Errorf("planned")
		_, err = f.Create(t.Context(), account, mountRequest(nil))
		wantError(t, err, errors.Unavailable, "no room")
		delete(s3.fails, "finish")
		want("a create that fails", "check mount finish")
		sb := create(t, f, mountRequest(func(s *spec.S3) { s.Prefix, s.ReadOnly = "ro", true }))
		if m := w.specs[len(w.specs)-1].Mounts; len(m) != 1 ||
			m[0] != (engine.Mount{Dir: "/mounts/" + sb.ID, Path: "/data", ReadOnly: true}) || len(w.volumes) != 0 {
			t.Errorf("the engine gets %+v", m)
		}
		want("created", "check mount")
		if err := f.SyncOnEnd(t.Context(), account, sb.ID, true); err != nil {
			t.Error(err)
		}
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		want("destroyed", "quiet finish")
		sb = create(t, f, mountRequest(nil))
		s3.lost("sbx_other", "not mine")
		s3.lost(sb.ID, "it was killed")
		if got := get(t, f, sb.ID); got.Status != record.Running || got.S3.MountError != "it was killed" {
			t.Errorf("with a mount that is lost it is %s, %+v", got.Status, got.S3)
		}
		s3.fails["finish"] = errors.Newf(errors.Unavailable, "it is kept in /spool.")
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		if sb = get(t, f, sb.ID); sb.Status != record.Terminated || sb.S3.SyncError != "it is kept in /spool" {
			t.Errorf("it is %s, %+v", sb.Status, sb.S3)
		}
		want("what is left", "check mount quiet finish")
		sb = create(t, f, mountRequest(nil))
		w.box(t, sb.ID).die(engine.End{OutOfMemory: true})
		want("out of memory", "check mount quiet finish")
		sb = create(t, f, mountRequest(nil))
		f = w.restart(t, f)
		want("a restart", "check mount recover")
		if got := get(t, f, sb.ID); got.Status != record.Running {
			t.Errorf("it is %s", got.Status)
		}
		s3.fails["recover"] = errors.Errorf("planned")
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := fleet.Open(t.Context(), w.opts); err == nil {
			t.Error("mounts that cannot be taken up are none of its business")
		}
		delete(s3.fails, "recover")
		f = w.open(t)
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMountRequests(t *testing.T) {
	t.Parallel()
	w, _ := mountWorld(t)
	f := w.open(t)
	for words, change := range map[string]func(*spec.S3){
		"only a mount can":        func(s *spec.S3) { s.Mount, s.ReadOnly = false, true },
		"needs a bucket":          func(s *spec.S3) { s.Bucket, s.Prefix = "", "" },
		"neither downloaded":      func(s *spec.S3) { s.Init = true },
		"nor uploaded at the end": func(s *spec.S3) { s.SyncOnTerminate = true },
		"would cover /etc":        func(s *spec.S3) { s.MountPath = "/etc" },
		"invalid mount point":     func(s *spec.S3) { s.MountPath = "data" },
	} {
		_, err := f.Create(t.Context(), account, mountRequest(change))
		wantError(t, err, errors.Invalid, words)
	}
	req := mountRequest(nil)
	req.Volumes = []spec.Mount{{Name: "v", Path: "/data/v"}}
	_, err := f.Create(t.Context(), account, req)
	wantError(t, err, errors.Invalid, "overlap")
	plain, _ := s3World(t)
	_, err = plain.open(t).Create(t.Context(), account, mountRequest(nil))
	wantError(t, err, errors.Unsupported, "cannot mount S3")
}

// TestMountByTheEngine checks that an engine that mounts buckets itself receives them in the spec, also for a copy, and
// that no other component acts.
//
// mission: D5
func TestMountByTheEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s3 := mountWorld(t)
		w.caps.Dirs, w.caps.Buckets, w.caps.Views = false, true, true
		f := w.open(t)
		sb := create(t, f, mountRequest(func(s *spec.S3) { s.Secret, s.ReadOnly = "keys", true }))
		want := engine.Mount{Place: places.Place{Bucket: "files", Prefix: "work", Secret: "keys"}, Path: "/data",
			ReadOnly: true}
		if m := w.specs[len(w.specs)-1].Mounts; len(m) != 1 || m[0] != want || len(w.volumes) != 0 {
			t.Errorf("the engine gets %+v", m)
		}
		s3.lost(sb.ID, "not its affair")
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if sb = get(t, f, sb.ID); sb.Status != record.Terminated || sb.S3.MountError != "" || sb.S3.SyncError != "" {
			t.Errorf("it is %+v", sb)
		}
		if got := s3.asked(); got != "recover check" {
			t.Errorf("asked for: %q", got)
		}
	})
}
