package storage

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// unsentStore is a Store in memory.
type unsentStore struct {
	mu  sync.Mutex
	all map[string]Unsent // guarded by mu
	bad error             // guarded by mu; the error of every call
}

func (s *unsentStore) Put(_ context.Context, u Unsent) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad == nil {
		s.all[u.Sandbox] = u
	}
	return s.bad
}

// fail makes every call return err, or succeed if err is nil.
func (s *unsentStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad = err
}

func (s *unsentStore) List(context.Context) ([]Unsent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.all)), s.bad
}

func (s *unsentStore) Delete(_ context.Context, sandbox string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, sandbox)
	return s.bad
}

// life is a home with the parts for volumes of sandboxes, and with a proxy before S3 that can refuse everything.
type life struct {
	*home
	store *unsentStore
	away  atomic.Bool
	full  atomic.Bool // S3 has no space for objects called large
	slow  sync.Map    // prefixes in the bucket; requests for them are answered once their channel is closed
	told  chan Told
	place places.Place
}

func newLife(t *testing.T) *life {
	t.Helper()
	l := &life{store: &unsentStore{all: map[string]Unsent{}}, told: make(chan Told, 1000)}
	l.home = newHome(t, func(o *Options) {
		behind, err := url.Parse(o.Server.Endpoint)
		must(t, err)
		proxy := httputil.NewSingleHostReverseProxy(behind)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			l.slow.Range(func(prefix, answer any) bool {
				if strings.Contains(r.URL.String(), prefix.(string)) {
					select {
					case <-answer.(chan struct{}):
					case <-r.Context().Done():
					}
				}
				return true
			})
			if l.away.Load() {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			if l.full.Load() && r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/large") {
				w.WriteHeader(http.StatusInsufficientStorage)
				return
			}
			proxy.ServeHTTP(w, r)
		})}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { server.Close() })
		o.Server.Endpoint = "http://" + listener.Addr().String()
		o.Store, o.Tell = l.store, func(told Told) { l.told <- told }
		o.Open = func(ctx context.Context, _, name string) (volume.Volume, error) { return l.volumes.Open(ctx, name) }
	})
	l.set(t, "acme", DefaultSecret, s3test.SecretKey)
	l.place = places.Place{Bucket: l.bucket, Prefix: "work"}
	return l
}

func (l *life) job(sandbox, volume string) Job {
	return Job{Sandbox: sandbox, Account: "acme", Volume: volume, Place: l.place}
}

func (l *life) unsent() int {
	all, _ := l.store.List(context.Background())
	return len(all)
}

// next returns the next report.
func (l *life) next(t *testing.T) Told {
	t.Helper()
	select {
	case told := <-l.told:
		return told
	case <-time.After(3 * time.Minute):
		t.Fatal("nothing is told")
	}
	return Told{}
}

// last returns the latest report, and discards earlier ones.
func (l *life) last() (told Told) {
	for {
		select {
		case told = <-l.told:
		default:
			return told
		}
	}
}

// mission: 2.8, 3.1, 3.6, 5.4, D2
func TestFillAndSave(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	from, to := l.volume(t, "from", "a", "b"), l.volume(t, "to")
	must(t, l.Check(t.Context(), l.job("one", "from")))
	must(t, l.Fill(t.Context(), l.job("one", "from"))) // empty
	if told := l.next(t); told.Direction != plan.Down || told.Err != nil || told.Result.Stats.Files != 0 {
		t.Errorf("an empty place: %+v", told)
	}
	must(t, syscall.Mkfifo(filepath.Join(dirOf(from), "pipe"), 0o600))
	must(t, l.Save(t.Context(), l.job("one", "from")))
	if told := l.next(t); told.Direction != plan.Up || told.Result.Stats.Files != 2 ||
		told.Result.Stats.Failed != 0 || len(told.Result.Stats.Ignored) != 1 || told.Sandbox != "one" {
		t.Errorf("sent: %+v", told)
	}
	if l.unsent() != 0 {
		t.Error("what was sent is still to be sent")
	}
	must(t, l.Fill(t.Context(), l.job("two", "to")))
	if data, err := os.ReadFile(filepath.Join(dirOf(to), "a")); string(data) != "a" {
		t.Errorf("filled: %q, %v", data, err)
	}
	// A part is not a workspace.
	damaged := filepath.Join(s3test.Dir(l.bucket), "work", "dir")
	must(t, os.MkdirAll(damaged, 0o755))
	must(t, os.WriteFile(filepath.Join(damaged, "x"), []byte("new"), 0o644))
	must(t, os.WriteFile(filepath.Join(dirOf(to), "dir"), nil, 0o644))
	_ = l.next(t)
	if err := l.Fill(t.Context(), l.job("two", "to")); err == nil ||
		!strings.Contains(errors.Message(err), "could not be copied") {
		t.Errorf("a file in the way: %v", err)
	}
	if err := l.Check(t.Context(), Job{Account: "nobody", Volume: "from", Place: l.place}); !errors.Is(err,
		errors.NotFound) {
		t.Errorf("without a secret: %v", err)
	}
	if err := l.Fill(t.Context(), l.job("two", "none")); !errors.Is(err, errors.NotFound) {
		t.Errorf("without a volume: %v", err)
	}
}

// TestSendNow checks that an upload from a volume in use is reported if there was something to do, and is left to the
// next time if S3 is down or another sync is in progress.
// mission: 2.8
func TestSendNow(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	vol := l.volume(t, "data", "a")
	job := l.job("one", "data")
	must(t, l.Send(t.Context(), job))
	if told := l.next(t); told.Direction != plan.Up || told.Result.Stats.Files != 1 || told.Err != nil {
		t.Errorf("sent: %+v", told)
	}
	must(t, l.Send(t.Context(), job)) // nothing has changed
	l.away.Store(true)
	must(t, os.WriteFile(filepath.Join(dirOf(vol), "b"), nil, 0o644))
	if err := l.Send(t.Context(), job); err == nil || l.unsent() != 0 {
		t.Errorf("while S3 refuses: %v, %d are unsent", err, l.unsent())
	}
	if told := l.next(t); told.Err == nil || !told.Retry.IsZero() {
		t.Errorf("while S3 refuses: %+v", told)
	}
	l.away.Store(false)
	_, release, err := l.hold(t.Context(), vol, false)
	must(t, err)
	must(t, l.Send(t.Context(), job)) // another sync does it
	release()
	must(t, l.Send(t.Context(), job))
	if told := l.next(t); told.Result.Stats.Files != 1 {
		t.Errorf("sent after all: %+v", told)
	}
	if err := l.Send(t.Context(), l.job("one", "none")); !errors.Is(err, errors.NotFound) {
		t.Errorf("without a volume: %v", err)
	}
	if told := l.next(t); told.Err == nil || len(l.told) != 0 {
		t.Errorf("without a volume: %+v, and %d more", told, len(l.told))
	}
}

// TestSendLater checks that a failed upload is retried, by a later process too, and before the volume is filled again.
// mission: 5.4, 5.5, A8
func TestSendLater(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	vol := l.volume(t, "data", "a")
	l.away.Store(true)
	job := l.job("one", "data")
	err := l.Save(t.Context(), job)
	if err == nil || errors.StageOf(err) != "s3 sync" {
		t.Errorf("while S3 refuses: %v", err)
	}
	if told := l.next(t); told.Err == nil || told.Retry.IsZero() || l.unsent() != 1 {
		t.Errorf("while S3 refuses: %+v", told)
	}
	if err := l.Fill(t.Context(), l.job("two", "data")); err == nil ||
		!strings.Contains(errors.Message(err), "files of sandbox one") {
		t.Errorf("filled over what is unsent: %v", err)
	}
	_ = l.next(t)
	// The first look of a process is for everything, then again and again.
	l.Start(t.Context())
	if told := l.next(t); told.Err == nil {
		t.Errorf("the first attempt of a process: %+v", told)
	}
	l.away.Store(false)
	for told := l.next(t); told.Err != nil; told = l.next(t) {
	}
	l.Stop()
	if data, err := os.ReadFile(filepath.Join(s3test.Dir(l.bucket), "work", "a")); string(data) != "a" ||
		l.unsent() != 0 {
		t.Errorf("sent: %q, %v; %d are unsent", data, err, l.unsent())
	}
	// Unsent changes are uploaded first, so that they are not lost.
	must(t, os.WriteFile(filepath.Join(dirOf(vol), "a"), []byte("newer"), 0o644))
	must(t, l.Note(t.Context(), job))
	must(t, l.Fill(t.Context(), l.job("two", "data")))
	if data, _ := os.ReadFile(filepath.Join(dirOf(vol), "a")); string(data) != "newer" || l.unsent() != 0 {
		t.Errorf("filled: %q, %d are unsent", data, l.unsent())
	}
	// The end of a process does not change the list of unsent volumes.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Save(ctx, job); err == nil || l.unsent() != 1 {
		t.Errorf("canceled: %v, %d are unsent", err, l.unsent())
	}
	// A removed volume is not waited for.
	must(t, os.RemoveAll(filepath.Dir(dirOf(vol))))
	if err := l.Save(t.Context(), job); !errors.Is(err, errors.NotFound) || l.unsent() != 0 {
		t.Errorf("a volume that is gone: %v, %d are unsent", err, l.unsent())
	}
	l.store.fail(errors.Errorf("planned"))
	for what, err := range map[string]error{"Note": l.Note(t.Context(), job), "Save": l.Save(t.Context(), job),
		"Fill": l.Fill(t.Context(), job)} {
		if err == nil {
			t.Errorf("%s without records succeeded", what)
		}
	}
	if nap := l.sendDue(t.Context(), true); nap != time.Minute {
		t.Errorf("without records it looks again after %s", nap)
	}
}

// Files that S3 refuses are tried again, as all of a volume is while S3 is away.
// mission: 2.8, 5.4
func TestSaveRefusedFiles(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	vol := l.volume(t, "data", "a", "large")
	must(t, syscall.Mkfifo(filepath.Join(dirOf(vol), "pipe"), 0o600)) // which no S3 takes
	there := func(name string) string {
		data, _ := os.ReadFile(filepath.Join(s3test.Dir(l.bucket), "work", name))
		return string(data)
	}
	l.full.Store(true)
	if err := l.Save(t.Context(), l.job("one", "data")); !errors.Is(err, errors.Unavailable) ||
		!strings.Contains(errors.Message(err), `1 files could not be copied, such as "large"`) ||
		errors.RemedyOf(err) == "" {
		t.Errorf("S3 is full: %v", err)
	}
	if told := l.next(t); told.Err == nil || told.Retry.IsZero() || told.Result.Stats.Files != 1 || l.unsent() != 1 ||
		there("a") != "a" {
		t.Errorf("S3 is full: %+v, %d are unsent", told, l.unsent())
	}
	if res, err := l.Sync(t.Context(), "acme", vol, Request{Place: l.place, Sync: up}); err != nil ||
		res.Stats.Failed != 1 {
		t.Errorf("by hand: %s, %v", res.Stats, err)
	}
	if err := l.Delete(t.Context(), "acme", l.volumes, "data", false); !errors.Is(err, errors.Conflict) {
		t.Errorf("a volume with files that S3 does not have: %v", err)
	}
	l.full.Store(false)
	l.Start(t.Context())
	for told := l.next(t); told.Err != nil; told = l.next(t) {
	}
	l.Stop()
	if l.unsent() != 0 || there("large") != "large" {
		t.Errorf("%d are unsent, and the file is %q", l.unsent(), there("large"))
	}
}

// TestSaveWithoutRecords checks that a volume is uploaded even if the record that it is unsent cannot be written, as on
// a full disk, and that the record is written once that works.
// mission: 2.8, 5.5
func TestSaveWithoutRecords(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	vol := l.volume(t, "data", "a")
	l.store.fail(errors.Errorf("planned"))
	must(t, l.Save(t.Context(), l.job("one", "data")))
	if data, err := os.ReadFile(filepath.Join(s3test.Dir(l.bucket), "work", "a")); string(data) != "a" {
		t.Errorf("sent: %q, %v", data, err)
	}
	if told := l.next(t); told.Err != nil {
		t.Errorf("sent: %+v", told)
	}
	l.away.Store(true)
	if err := l.Save(t.Context(), l.job("one", "data")); err == nil {
		t.Error("S3 refuses, and it was sent")
	}
	if told := l.next(t); told.Err == nil || !told.Retry.IsZero() {
		t.Errorf("a retry that nobody knows of: %+v", told)
	}
	_, release, err := l.hold(t.Context(), vol, false)
	must(t, err)
	saved := make(chan error)
	go func() { saved <- l.Save(t.Context(), l.job("one", "data")) }()
	for !l.isSending("one") {
		time.Sleep(time.Millisecond)
	}
	l.store.fail(nil)
	release()
	if err := <-saved; err == nil || l.unsent() != 1 {
		t.Errorf("S3 refuses: %v, %d are unsent", err, l.unsent())
	}
}

// TestSendBesideSlow checks that a slow upload does not delay other volumes.
// mission: 5.4
func TestSendBesideSlow(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.volume(t, "large", "a")
	l.volume(t, "small", "a")
	large, small := l.job("one", "large"), l.job("two", "small")
	large.Prefix = "much"
	answer := make(chan struct{})
	l.slow.Store("much", answer)
	must(t, l.Note(t.Context(), large))
	l.Start(t.Context())
	l.away.Store(true)
	if err := l.Save(t.Context(), small); err == nil {
		t.Error("S3 refuses, and it was sent")
	}
	l.away.Store(false)
	told := l.next(t)
	for told.Sandbox == "two" && told.Err != nil {
		told = l.next(t)
	}
	if told.Sandbox != "two" {
		t.Errorf("before the volume of the sandbox two was tried again: %+v", told)
	}
	close(answer)
	for told := l.next(t); told.Err != nil; told = l.next(t) {
	}
	l.Stop()
	if l.unsent() != 0 {
		t.Errorf("%d are unsent", l.unsent())
	}
}

// TestDeleteUnsent checks that a volume with files that are not yet in S3 is deleted only by force, and is not uploaded
// after that.
// mission: 2.8, 5.4
func TestDeleteUnsent(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.volume(t, "data", "a")
	l.volume(t, "other", "a")
	del := func(name string, force bool) error { return l.Delete(t.Context(), "acme", l.volumes, name, force) }
	refused := func(what string, err error, words ...string) {
		t.Helper()
		if !errors.Is(err, errors.Conflict) || errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v; remedy %q", what, err, errors.RemedyOf(err))
		}
		for _, w := range words {
			if !strings.Contains(errors.Message(err)+"\n"+errors.RemedyOf(err), w) {
				t.Errorf("%s: %v (%s) does not say %q", what, err, errors.RemedyOf(err), w)
			}
		}
		if _, err := l.volumes.Open(t.Context(), "data"); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must(t, l.Note(t.Context(), l.job("one", "data")))
	refused("noted", del("data", false), "the sandbox one left",
		"harvest volume sync data s3://"+l.bucket+"/work", "force")
	l.away.Store(true)
	if err := l.Save(t.Context(), l.job("one", "data")); err == nil {
		t.Error("S3 refuses, and it was sent")
	}
	refused("unsent", del("data", false), "the sandbox one left")
	refused("unsent, past the Manager", l.volumes.Delete(t.Context(), "data"))
	must(t, del("other", false))
	// A later process knows it from the beginning.
	vol, err := l.volumes.Open(t.Context(), "data")
	must(t, err)
	volumes, err := volume.OpenDir(filepath.Dir(filepath.Dir(dirOf(vol))))
	must(t, err)
	opts := l.opts
	opts.Open = func(ctx context.Context, _, name string) (volume.Volume, error) { return volumes.Open(ctx, name) }
	later := New(opts)
	later.Start(t.Context())
	refused("a later process", later.Delete(t.Context(), "acme", volumes, "data", false), "the sandbox one left")
	refused("a later process, past the Manager", volumes.Delete(t.Context(), "data"))
	later.Stop()
	must(t, volumes.Close())
	// A sandbox uses the volume: it cannot be deleted, not even by force, and is still unsent.
	release, err := vol.(volume.Directory).Use("a sandbox")
	must(t, err)
	refused("in use", del("data", true), "a sandbox")
	release()
	refused("no longer in use", del("data", false), "the sandbox one left")
	refused("no longer in use, past the Manager", l.volumes.Delete(t.Context(), "data"))
	// After a manual upload the volume may be deleted. Uploads to other places, or of a part, do not count.
	l.away.Store(false)
	elsewhere, part := l.place, up
	elsewhere.Prefix, part.Only = "elsewhere", "a"
	for what, r := range map[string]Request{"another place": {Place: elsewhere, Sync: up},
		"down": {Place: l.place, Sync: down}, "a part": {Place: l.place, Sync: part},
		"a dry run": {Place: l.place, Sync: s3sync.Options{Direction: plan.Up, DryRun: true}},
		"a version": {Place: l.place, Versioned: true, Sync: up}} {
		l.sync(t, "acme", vol, r)
		refused(what, del("data", false), "the sandbox one left")
	}
	l.sync(t, "acme", vol, Request{Place: l.place, Sync: up})
	if told := l.last(); told.Sandbox != "one" || told.Err != nil || told.Direction != plan.Up || l.unsent() != 0 {
		t.Errorf("sent by hand: %+v, %d are unsent", told, l.unsent())
	}
	must(t, del("data", false))
	if err := del("data", false); !errors.Is(err, errors.NotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	// By force, while an attempt is under way that will fail.
	vol = l.volume(t, "data", "a")
	l.away.Store(true)
	free, err := l.turn(t.Context(), vol.(volume.Directory), "data", false)
	must(t, err)
	saved, deleted := make(chan error), make(chan error)
	go func() { saved <- l.Save(t.Context(), l.job("one", "data")) }()
	for l.unsent() == 0 {
		time.Sleep(time.Millisecond)
	}
	go func() { deleted <- del("data", true) }()
	free()
	must(t, <-deleted)
	if err := <-saved; err == nil {
		t.Error("a volume that is gone was sent")
	}
	if l.unsent() != 0 {
		t.Errorf("%d are unsent of a volume that is gone", l.unsent())
	}
	must(t, l.volumes.Delete(t.Context(), l.volume(t, "data").Name())) // nothing is left of the earlier one
}

// TestSyncsTakeTurns checks that one of two syncs of a volume waits for the other.
func TestSyncsTakeTurns(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	vol := l.volume(t, "data", "a")
	_, release, err := l.hold(t.Context(), vol, false)
	must(t, err)
	if _, _, err := l.hold(t.Context(), vol, false); !errors.Is(err, errors.Conflict) {
		t.Errorf("at the same time: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := l.hold(ctx, vol, true); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits: %v", err)
	}
	began, done := make(chan struct{}), make(chan error, 1)
	go func() {
		close(began)
		done <- l.Save(t.Context(), l.job("one", "data"))
	}()
	<-began
	select {
	case err := <-done:
		t.Errorf("it did not wait: %v", err)
	case <-time.After(300 * time.Millisecond): // a caller that does not wait has ended by then
	}
	release()
	must(t, <-done)
}

// TestRecordsOfEarlierVersions checks that a record is read whose place has capital names.
func TestRecordsOfEarlierVersions(t *testing.T) {
	var u Unsent
	old := `{"sandbox": "sbx_1", "volume": "v", "Bucket": "b", "Prefix": "p", "Secret": "s"}`
	err := json.Unmarshal([]byte(old), &u)
	if want := (places.Place{Bucket: "b", Prefix: "p", Secret: "s"}); err != nil || u.Place != want || u.Volume != "v" {
		t.Errorf("read as %+v, %v", u, err)
	}
}
