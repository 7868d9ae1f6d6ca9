package transfer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
)

// syncer records its calls, each of which takes a time and may fail.
type syncer struct {
	mu    sync.Mutex
	calls []string // guarded by mu
	takes time.Duration
	err   error
}

func (s *syncer) call(ctx context.Context, name string, j storage.Job) error {
	s.mu.Lock()
	s.calls = append(s.calls, name+" "+j.Sandbox+" "+j.Volume)
	s.mu.Unlock()
	select {
	case <-time.After(s.takes):
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *syncer) Check(ctx context.Context, j storage.Job) error { return s.call(ctx, "check", j) }
func (s *syncer) Fill(ctx context.Context, j storage.Job) error  { return s.call(ctx, "fill", j) }
func (s *syncer) Note(ctx context.Context, j storage.Job) error  { return s.call(ctx, "note", j) }
func (s *syncer) Send(ctx context.Context, j storage.Job) error  { return s.call(ctx, "send", j) }
func (s *syncer) Save(ctx context.Context, j storage.Job) error  { return s.call(ctx, "save", j) }

func (s *syncer) asked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.calls, ", ")
}

// house has a Server, and the record of one sandbox.
type house struct {
	*Server
	syncer syncer
	tasks  sync.WaitGroup

	mu sync.Mutex
	sb record.Sandbox // guarded by mu
}

func newHouse(ctx context.Context) *house {
	h := &house{sb: record.Sandbox{ID: "sbx_1", Account: "acme", Status: record.Running,
		S3: &record.S3Volume{Volume: "v", S3: spec.S3{Place: places.Place{Bucket: "b", Prefix: "p"}, Init: true,
			SyncOnTerminate: true}}}}
	h.Server = &Server{S3: &h.syncer, Context: ctx, Tasks: &h.tasks, Now: time.Now}
	return h
}

func (h *house) record() record.Sandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sb.Clone()
}

func (h *house) files() *Files {
	return h.Of(Sandbox{Record: h.record, Update: func(_ context.Context, change func(*record.S3Volume)) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		change(h.sb.S3)
		return nil
	}})
}

func no() bool { return false }

// TestVolumesAreFilledOneAtATime checks that a volume is filled by one sandbox at a time, that a second sandbox sees
// that the first has filled it, and that another volume does not wait.
func TestVolumesAreFilledOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t.Context())
		h.syncer.takes = time.Minute
		first, second, other := h.files(), h.files(), h.files()
		start := time.Now()
		var wg sync.WaitGroup
		fill := func(f *Files, volume string, byOther func() bool, took time.Duration) {
			wg.Go(func() {
				if err := f.Fill(t.Context(), volume, byOther); err != nil || time.Since(start) != took {
					t.Errorf("%s: %v after %v, want %v", volume, err, time.Since(start), took)
				}
			})
			synctest.Wait()
		}
		creating := h.record()
		creating.Status = record.Creating
		fill(first, "acme/v", no, time.Minute)
		fill(second, "acme/v", func() bool { return first.FilledFor(creating, creating) }, time.Minute)
		fill(other, "acme/w", no, time.Minute)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.files().Fill(short, "acme/v", no); errors.KindOf(err) != errors.Timeout {
			t.Errorf("a sandbox whose creation ends: %v", err)
		}
		wg.Wait()
		if got := h.syncer.asked(); got != "fill sbx_1 v, fill sbx_1 v" {
			t.Errorf("%s", got)
		}
	})
}

// TestFilledFor checks in which cases the changes of another sandbox in a volume are newer than the bucket.
func TestFilledFor(t *testing.T) {
	t.Parallel()
	h := newHouse(t.Context())
	mine := h.record()
	for name, c := range map[string]struct {
		change func(*record.Sandbox)
		want   bool
	}{
		"it runs":                   {func(*record.Sandbox) {}, true},
		"it is lost":                {func(sb *record.Sandbox) { sb.Status = record.Lost }, true},
		"it is still being created": {func(sb *record.Sandbox) { sb.Status = record.Creating }, false},
		"no S3":                     {func(sb *record.Sandbox) { sb.S3 = nil }, false},
		"it did not ask for that":   {func(sb *record.Sandbox) { sb.S3.Init = false }, false},
		"another account":           {func(sb *record.Sandbox) { sb.Account = "other" }, false},
		"another volume":            {func(sb *record.Sandbox) { sb.S3.Volume = "w" }, false},
		"another bucket":            {func(sb *record.Sandbox) { sb.S3.Bucket = "c" }, false},
		"another prefix":            {func(sb *record.Sandbox) { sb.S3.Prefix = "q" }, false},
	} {
		theirs := h.record()
		c.change(&theirs)
		if got := h.files().FilledFor(theirs, mine); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestFailedFillNamesTheVolume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t.Context())
		h.syncer.err = errors.Newf(errors.Denied, "access denied")
		f := h.files()
		err := f.Fill(t.Context(), "acme/v", no)
		if !errors.Is(err, errors.Denied) ||
			errors.Message(err) != "volume v: the download from S3 failed: access denied" {
			t.Errorf("%v", err)
		}
		creating := h.record()
		creating.Status = record.Creating
		if f.FilledFor(creating, creating) {
			t.Error("it counts as filled")
		}
	})
}

// TestSendDue checks that a volume is sent at intervals that begin when the sandbox is first seen, and that a transfer
// that lasts longer delays the next one.
func TestSendDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t.Context())
		h.syncer.takes = 25 * time.Second
		f, sb := h.files(), h.record()
		start := time.Now()
		var mu sync.Mutex
		var log []string // guarded by mu
		say := func(text string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, fmt.Sprintf(text, args...))
		}
		look := func() {
			next := f.SendDue(time.Now(), sb, func() { say("again at %v", time.Since(start)) })
			say("%v next %v", time.Since(start), next)
		}
		look() // it has no interval
		sb.S3.SyncEverySeconds = 10
		look()
		time.Sleep(4 * time.Second)
		look()
		time.Sleep(6 * time.Second)
		look() // sends
		time.Sleep(15 * time.Second)
		look() // still sends
		time.Sleep(11 * time.Second)
		look()
		sb.Status = record.Stopping
		time.Sleep(time.Minute)
		look()
		h.tasks.Wait()
		const want = "0s next 0s,0s next 10s,4s next 6s,10s next 0s,25s next 0s,again at 35s,36s next 9s,1m36s next 0s"
		if got := strings.Join(log, ","); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if got := h.syncer.asked(); got != "send sbx_1 v" {
			t.Errorf("asked: %s", got)
		}
	})
}

// TestEnd checks that the volume of a sandbox that ends is noted and sent only on request, that a failure is in the
// record, and that the transfer stops when the server closes.
func TestEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change    func(*house, *record.Sandbox)
		asked     string
		syncError string
	}{
		"on request":     {func(*house, *record.Sandbox) {}, "note sbx_1 v, save sbx_1 v", ""},
		"not on request": {func(_ *house, sb *record.Sandbox) { sb.S3.SyncOnTerminate = false }, "", ""},
		"a mount":        {func(_ *house, sb *record.Sandbox) { sb.S3.Mount = true }, "", ""},
		"no S3":          {func(_ *house, sb *record.Sandbox) { sb.S3 = nil }, "", ""},
		"no server":      {func(h *house, _ *record.Sandbox) { h.S3 = nil }, "", ""},
		"a failure": {func(h *house, _ *record.Sandbox) { h.syncer.err = errors.Newf(errors.Denied, "not allowed.") },
			"note sbx_1 v, save sbx_1 v", "not allowed"},
		"a spare": {func(_ *house, sb *record.Sandbox) { sb.Owner = "owner" }, "note sbx_1 v, save sbx_1 v", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t.Context())
				c.change(h, &h.sb)
				f := h.files()
				f.NoteEnd(t.Context())
				f.End(t.Context())
				if got := h.syncer.asked(); got != c.asked {
					t.Errorf("asked %q, want %q", got, c.asked)
				}
				if sb := h.record(); sb.S3 != nil && sb.S3.SyncError != c.syncError {
					t.Errorf("the record has %q, want %q", sb.S3.SyncError, c.syncError)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		h := newHouse(ctx)
		h.syncer.takes = time.Hour
		time.AfterFunc(time.Minute, stop)
		start := time.Now()
		h.files().End(t.Context())
		if took := time.Since(start); took != time.Minute {
			t.Errorf("it ended %v after the beginning, although the server closed", took)
		}
	})
}
