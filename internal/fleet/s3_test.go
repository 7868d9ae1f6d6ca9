package fleet_test

import (
	"context"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
)

// s3Stub records its calls.
type s3Stub struct {
	mu    sync.Mutex
	calls []string          // guarded by mu, like the rest
	fails map[string]error  // by call
	hooks map[string]func() // by call
	lost  func(sandbox, reason string)
}

func (s *s3Stub) call(name string, j storage.Job) error {
	s.mu.Lock()
	s.calls = append(s.calls, name+" "+j.Account+"/"+j.Bucket+"/"+j.Prefix)
	err, hook := s.fails[name], s.hooks[name]
	s.mu.Unlock()
	if hook != nil {
		hook()
	}
	return err
}

func (s *s3Stub) Check(_ context.Context, j storage.Job) error { return s.call("check", j) }
func (s *s3Stub) Fill(_ context.Context, j storage.Job) error  { return s.call("fill", j) }
func (s *s3Stub) Note(_ context.Context, j storage.Job) error  { return s.call("note", j) }
func (s *s3Stub) Send(_ context.Context, j storage.Job) error  { return s.call("send", j) }
func (s *s3Stub) Save(_ context.Context, j storage.Job) error  { return s.call("save", j) }

// asked returns the calls since the last time, one word for each.
func (s *s3Stub) asked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var words []string
	for _, c := range s.calls {
		word, _, _ := strings.Cut(c, " ")
		words = append(words, word)
	}
	s.calls = nil
	return strings.Join(words, " ")
}

func s3World(t testing.TB) (*world, *s3Stub) {
	w, s := newWorld(t), &s3Stub{fails: map[string]error{}, hooks: map[string]func(){}}
	w.opts.S3 = s
	return w, s
}

func s3Request(init, end bool) spec.Request {
	return spec.Request{S3: &spec.S3{Place: places.Place{Bucket: "files", Prefix: "work"}, MountPath: "/work",
		Init:            init,
		SyncOnTerminate: end}}
}

// mission: 1.3, 2.8, 3.1, 3.4, 5.4, 5.5, 5.6
func TestS3InTheLifeOfASandbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s3 := s3World(t)
		f := w.open(t)
		want := func(when, calls string) {
			t.Helper()
			synctest.Wait()
			if got := s3.asked(); got != calls {
				t.Errorf("%s: %q, want %q", when, got, calls)
			}
		}
		destroy := func(sb record.Sandbox) record.Sandbox {
			t.Helper()
			if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
				t.Fatal(err)
			}
			return get(t, f, sb.ID)
		}
		// A fill that fails leaves nothing.
		s3.fails["fill"] = errors.Newf(errors.Unavailable, "S3 is away")
		_, err := f.Create(t.Context(), account, s3Request(true, true))
		wantError(t, err, errors.Unavailable, "the download from S3 failed: S3 is away", "s3 init")
		if len(w.volumes) != 0 {
			t.Errorf("it left the volumes %v", w.volumes)
		}
		delete(s3.fails, "fill")
		want("a fill that fails", "check fill")
		s3.fails["check"] = errors.Newf(errors.NotFound, "there is no secret")
		_, err = f.Create(t.Context(), account, s3Request(true, true))
		wantError(t, err, errors.NotFound, "no secret", "s3")
		delete(s3.fails, "check")
		want("no secret", "check")
		// The download comes before the sandbox is ready, and does not run again while another sandbox uses the volume.
		sb := create(t, f, s3Request(true, true))
		if sb.S3 == nil || !strings.HasPrefix(sb.S3.Volume, "s3-files-") || sb.Volumes[0].Name != sb.S3.Volume ||
			w.specs[0].Mounts[0].Path != "/work" {
			t.Errorf("it is %+v", sb)
		}
		want("created", "check fill")
		beside := create(t, f, s3Request(true, false))
		if beside.S3.Volume != sb.S3.Volume {
			t.Errorf("the same place has the volumes %s and %s", sb.S3.Volume, beside.S3.Volume)
		}
		want("beside it", "check")
		destroy(beside)
		want("the end of one that does not ask for it", "")
		// The end, with and without a requested upload.
		if err := f.SyncOnEnd(t.Context(), account, sb.ID, false); err != nil {
			t.Fatal(err)
		}
		destroy(sb)
		want("its end, with sync=false", "")
		sb = create(t, f, s3Request(false, false))
		if err := f.SyncOnEnd(t.Context(), account, sb.ID, true); err != nil {
			t.Fatal(err)
		}
		s3.fails["save"] = errors.Newf(errors.Unavailable, "S3 is away.")
		if sb = destroy(sb); sb.Status != record.Terminated || sb.S3.SyncError != "S3 is away" {
			t.Errorf("it is %s: %+v", sb.Status, sb.S3)
		}
		want("its end, with sync=true", "check save")
		for range 2 {
			if err := f.Sent(t.Context(), account, sb.ID); err != nil {
				t.Fatal(err)
			}
			if sb = get(t, f, sb.ID); sb.Status != record.Terminated || sb.S3.SyncError != "" {
				t.Errorf("once it was sent it is %s: %+v", sb.Status, sb.S3)
			}
		}
		if err := f.SyncOnEnd(t.Context(), account, sb.ID, true); err != nil {
			t.Errorf("after its end: %v", err)
		}
		// Out of memory: the record is written first.
		s3.fails["note"] = errors.Errorf("planned")
		oom := create(t, f, s3Request(false, true))
		w.box(t, oom.ID).die(engine.End{OutOfMemory: true})
		want("out of memory", "check note save")
		if sb := get(t, f, oom.ID); sb.Status != record.Failed || sb.S3.SyncError != "S3 is away" {
			t.Errorf("out of memory: it is %s: %+v", sb.Status, sb.S3)
		}
		plain := create(t, f, spec.Request{})
		for _, sync := range []bool{true, false} {
			if err := f.SyncOnEnd(t.Context(), account, plain.ID, sync); err != nil {
				t.Errorf("without a place in S3: %v", err)
			}
		}
		wantError(t, f.SyncOnEnd(t.Context(), account, "none", true), errors.NotFound, "none")
		destroy(plain)
	})
}

// TestS3IsFilledOnce checks that one of two sandboxes that are created at the same time fills the volume, and that the
// other waits for it.
// mission: 5.6
func TestS3IsFilledOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s3 := s3World(t)
		f := w.open(t)
		filling := make(chan struct{})
		s3.hooks["fill"] = func() { <-filling }
		var g sync.WaitGroup
		for range 2 {
			g.Go(func() {
				if _, err := f.Create(t.Context(), account, s3Request(true, false)); err != nil {
					t.Error(err)
				}
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		g.Go(func() {
			synctest.Wait()
			cancel()
			close(filling)
		})
		_, err := f.Create(ctx, account, s3Request(true, false))
		wantError(t, err, errors.Canceled)
		g.Wait()
		if n := strings.Count(s3.asked(), "fill"); n > 2 || n == 0 {
			t.Errorf("it was filled %d times", n)
		}
	})
}

// TestS3EverySoOften checks that a running sandbox's volume is uploaded at intervals, also after a failure and by the
// next server, and not after the sandbox's end.
// mission: 2.8
func TestS3EverySoOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s3 := s3World(t)
		f := w.open(t)
		want := func(when, calls string) {
			t.Helper()
			synctest.Wait()
			if got := s3.asked(); got != calls {
				t.Errorf("%s: %q, want %q", when, got, calls)
			}
		}
		req := s3Request(false, true)
		req.S3.SyncEverySeconds = 300
		sb := create(t, f, req)
		want("created", "check")
		time.Sleep(301 * time.Second)
		want("after five minutes", "send")
		// An upload that takes longer than the interval is not started twice.
		release := make(chan struct{})
		s3.mu.Lock()
		s3.hooks["send"] = func() { <-release }
		s3.fails["send"] = errors.Newf(errors.Unavailable, "S3 is away")
		s3.mu.Unlock()
		time.Sleep(20 * time.Minute)
		want("while it takes long", "send")
		close(release)
		s3.mu.Lock()
		s3.hooks["send"] = nil
		s3.mu.Unlock()
		time.Sleep(301 * time.Second)
		want("after a failure", "send")
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		want("without a server", "")
		f = w.open(t)
		time.Sleep(301 * time.Second)
		want("with the next one", "send")
		if got := get(t, f, sb.ID); got.S3.SyncEverySeconds != 300 {
			t.Errorf("its record says %+v", got.S3)
		}
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		want("its end", "save")
		time.Sleep(time.Hour)
		want("after its end", "")
	})
}

// TestS3OfWhatIsGone checks that the volume of a lost sandbox is uploaded, by the same server or by the next one, which
// also resumes an interrupted end. The upload is recorded before the record says that the sandbox ended.
// mission: 2.8, 5.4, A8
func TestS3OfWhatIsGone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		sync   bool
		status record.Status // as left by a server that died; "" if the server continues
		there  bool          // the engine still has the sandbox
		calls  string
	}{
		{"it vanishes", true, "", false, "note save"},
		{"it vanishes, and asked for nothing", false, "", false, ""},
		{"it ran when the server died", true, record.Running, false, "note save"},
		{"it ran when the server died, and asked for nothing", false, record.Running, false, ""},
		{"it was lost when the server died", true, record.Lost, false, "note save"},
		{"it was stopping when the server died", true, record.Stopping, false, "save"},
		{"it was stopping and is still there", true, record.Stopping, true, "save"},
		{"it was stopping, and asked for nothing", false, record.Stopping, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, s3 := s3World(t)
				f := w.open(t)
				sb := create(t, f, s3Request(false, c.sync))
				_ = s3.asked()
				stored := func() record.Sandbox {
					t.Helper()
					r, err := w.store.Get(t.Context(), sb.ID)
					if err != nil {
						t.Error(err)
					}
					return r
				}
				s3.mu.Lock()
				s3.hooks["note"] = func() {
					if r := stored(); r.Status.Ended() {
						t.Errorf("it is %s before it is written down what is to be sent", r.Status)
					}
				}
				s3.fails["save"] = errors.Newf(errors.Unavailable, "S3 is away")
				s3.mu.Unlock()
				box := w.box(t, sb.ID)
				if c.status != "" {
					if err := f.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
					left := stored()
					left.Status = c.status
					if err := w.store.Put(t.Context(), left); err != nil {
						t.Fatal(err)
					}
				}
				if !c.there {
					box.vanish()
				}
				if c.status != "" {
					f = w.open(t)
				}
				time.Sleep(time.Second) // for the watcher
				synctest.Wait()
				if got := s3.asked(); got != c.calls {
					t.Errorf("%q, want %q", got, c.calls)
				}
				why := map[bool]string{true: "S3 is away"}[c.sync]
				if got := get(t, f, sb.ID); got.Status != record.Terminated || got.S3.SyncError != why ||
					stored().S3.SyncError != why || len(w.refs()) > 0 {
					t.Errorf("it is %s: %+v; the engine has %v", got.Status, got.S3, w.refs())
				}
			})
		})
	}
}

// mission: 1.3, 6.8
func TestS3Requests(t *testing.T) {
	t.Parallel()
	w, _ := s3World(t)
	f := w.open(t)
	data := []spec.Mount{{Name: "data", Path: "/data"}}
	for words, req := range map[string]spec.Request{
		"no bucket":      {S3: &spec.S3{MountPath: "/work", Place: places.Place{Prefix: "x"}}, Volumes: data},
		"no volume at":   {S3: &spec.S3{MountPath: "/work"}},
		"invalid bucket": {S3: &spec.S3{Place: places.Place{Bucket: "s3://x"}, MountPath: "/work"}},
		"invalid prefix": {S3: &spec.S3{Place: places.Place{Bucket: "files", Prefix: "a\nb"}, MountPath: "/work"}},
		"s3: 4": {S3: &spec.S3{Place: places.Place{Bucket: "files"}, MountPath: "/data",
			SyncEverySeconds: 4}},
		"s3: NaN": {S3: &spec.S3{Place: places.Place{Bucket: "files"}, MountPath: "/data",
			SyncEverySeconds: math.NaN()}},
		"s3: 86401": {S3: &spec.S3{Place: places.Place{Bucket: "files"}, MountPath: "/data",
			SyncEverySeconds: 86401}},
		"secret":              {S3: &spec.S3{Place: places.Place{Bucket: "files", Secret: "a b"}, MountPath: "/work"}},
		"invalid mount point": {S3: &spec.S3{Place: places.Place{Bucket: "files"}}},
		"would cover /etc":    {S3: &spec.S3{Place: places.Place{Bucket: "files"}, MountPath: "/etc"}},
		"overlap": {S3: &spec.S3{Place: places.Place{Bucket: "files"}, MountPath: "/data/x"},
			Volumes: data},
	} {
		_, err := f.Create(t.Context(), account, req)
		wantError(t, err, errors.Invalid, words)
	}
	sb := create(t, f, spec.Request{S3: &spec.S3{MountPath: "/data"}, Volumes: data})
	if sb.S3.Volume != "data" || len(sb.Volumes) != 1 {
		t.Errorf("it is %+v", sb)
	}
	// Volumes that are not on this machine, as at Modal, are refused, and no volume is created.
	far, s3 := s3World(t)
	far.caps.Views = true
	f = far.open(t)
	for _, req := range []spec.Request{s3Request(true, false), s3Request(false, true),
		{S3: &spec.S3{MountPath: "/data", SyncEverySeconds: 60}, Volumes: data}} {
		_, err := f.Create(t.Context(), account, req)
		wantError(t, err, errors.Unsupported, "cannot be synchronized with S3", "the engine stub",
			"copy the files in and out")
	}
	if calls := s3.asked(); calls != "" || len(far.volumes) > 0 || len(far.specs) > 0 {
		t.Errorf("refused, and asked for %q; there are the volumes %v and the sandboxes %v", calls,
			far.volumes, far.specs)
	}
	_, err := newWorld(t).open(t).Create(t.Context(), account, s3Request(true, true))
	wantError(t, err, errors.Unsupported, "does not support S3")
}
