package event_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/store"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// helperEnv makes this test binary publish until it is killed.
const helperEnv = "HARVEST_EVENT_TEST_HELPER"

func TestMain(m *testing.M) {
	logf.Setup(io.Discard, 0, false)
	if dir := os.Getenv(helperEnv); dir != "" {
		publishForever(dir)
	}
	os.Exit(m.Run())
}

// open starts a Journal, and closes it at the end of the test.
func open(t testing.TB, opts event.Options) *event.Journal {
	t.Helper()
	j := event.Open(t.Context(), opts)
	t.Cleanup(func() { shut(t, j) })
	return j
}

func shut(t testing.TB, j *event.Journal) {
	t.Helper()
	if err := j.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

type number struct {
	N int `json:"n"`
}

// publish publishes events with those numbers, together.
func publish(t testing.TB, j *event.Journal, stream string, numbers ...int) {
	t.Helper()
	drafts := make([]event.Draft, len(numbers))
	for i, n := range numbers {
		drafts[i] = event.Draft{Stream: stream, Type: "test.happened", Data: number{n}}
	}
	if err := j.Publish(t.Context(), drafts...); err != nil {
		t.Fatal(err)
	}
}

func subscribe(t testing.TB, j *event.Journal, stream string, after int64) *event.Reader {
	t.Helper()
	r, err := j.Subscribe(t.Context(), stream, after)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// next returns the result of Next, in words.
func next(t testing.TB, r *event.Reader) string {
	t.Helper()
	batch, err := r.Next(t.Context())
	if errors.Is(err, io.EOF) {
		return "end"
	}
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, e := range batch {
		if e.ID == 0 {
			words = append(words, e.Type+string(e.Data))
			continue
		}
		words = append(words, fmt.Sprint(e.ID))
	}
	return strings.Join(words, " ")
}

func wantNext(t testing.TB, r *event.Reader, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := next(t, r); got != w {
			t.Errorf("next is %q, want %q", got, w)
		}
	}
}

func numbers(from, to int) []int {
	var all []int
	for n := from; n <= to; n++ {
		all = append(all, n)
	}
	return all
}

// mission: F1
func TestReplayAndLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testdb.Open(t).Events()
		j := open(t, event.Options{Store: s})
		publish(t, j, "ses_1", 1, 2)
		publish(t, j, "ses_2", 1)
		r, late := subscribe(t, j, "ses_1", 0), subscribe(t, j, "ses_1", 1)
		wantNext(t, r, "1 2")
		wantNext(t, late, "2")
		publish(t, j, "ses_1", 3)
		publish(t, j, "ses_2", 2)
		time.Sleep(time.Second)
		publish(t, j, "ses_1", 4, 5)
		synctest.Wait()
		wantNext(t, r, "3 4 5")
		wantNext(t, late, "3 4 5")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Next(ctx); !errors.Is(err, errors.Timeout) {
			t.Errorf("nothing to read: %v", err)
		}
		publish(t, j, "ses_1", 6)
		wantNext(t, r, "6") // a Next that ended early costs nothing
		r.Close()
		wantNext(t, r, "end")
		if last, err := j.Last(t.Context(), "ses_2"); err != nil || last != 2 {
			t.Errorf("last %d, %v", last, err)
		}
	})
}

func TestFrame(t *testing.T) {
	t.Parallel()
	j := open(t, event.Options{Store: testdb.Open(t).Events()})
	live, err := j.Tail(t.Context(), "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if err := j.Publish(t.Context(), event.Draft{Stream: "a", Type: "git.pushed", Data: json.RawMessage("{\"a\":\n 1}")}, event.Draft{Stream: "a", Type: "done"}, event.Draft{Stream: "b", Type: "s3.lost"}); err != nil {
		t.Fatal(err)
	}
	const want = "id: 1\nevent: git.pushed\ndata: {\"a\":1}\n\nid: 2\nevent: done\ndata: {}\n\n"
	for name, r := range map[string]*event.Reader{"live": live, "replayed": subscribe(t, j, "a", 0)} {
		batch, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		for _, e := range batch {
			got.Write(e.Frame())
		}
		if got.String() != want {
			t.Errorf("%s: %q", name, got.String())
		}
	}
}

// TestAppendNext checks that AppendNext appends the frames of the events that Next would return to the buffer, and lets
// its caller do other work in between.
func TestAppendNext(t *testing.T) {
	t.Parallel()
	j := open(t, event.Options{Store: testdb.Open(t).Events()})
	publish(t, j, "a", 1, 2)
	r := subscribe(t, j, "a", 0)
	beat := make(chan time.Time, 1)
	want := func(want string, n int) {
		t.Helper()
		buf, got, err := r.AppendNext(t.Context(), []byte("before "), beat)
		if err != nil || string(buf) != "before "+want || got != n {
			t.Fatalf("%q, %d, %v; want %q, %d", buf, got, err, want, n)
		}
	}
	first, err := subscribe(t, j, "a", 0).Next(t.Context())
	if err != nil || len(first) != 2 {
		t.Fatal(first, err)
	}
	want(string(first[0].Frame())+string(first[1].Frame()), 2)
	beat <- time.Now()
	want("", 0)
	live := subscribe(t, j, "a", 2)
	publish(t, j, "a", 3)
	third, err := live.Next(t.Context())
	if err != nil || len(third) != 1 {
		t.Fatal(third, err)
	}
	want(string(third[0].Frame()), 1)
	publish(t, j, "a", 4)
	if next(t, live); third[0] == nil || third[0].ID != 3 {
		t.Error("what Next has returned changes with the next call")
	}
	shut(t, j)
	want(fmt.Sprintf("id: 4\nevent: %s\ndata: %s\n\n", third[0].Type, strings.Replace(string(third[0].Data), "3", "4", 1)), 1)
	if buf, n, err := r.AppendNext(t.Context(), nil, beat); len(buf) != 0 || n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %q, %d, %v", buf, n, err)
	}
}

func TestAfterAndTail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := open(t, event.Options{Store: testdb.Open(t).Events()})
		publish(t, j, "a", numbers(1, 5)...)
		for n, want := range map[int]string{2: "4 5", 5: "1 2 3 4 5", 99: "1 2 3 4 5"} {
			r, err := j.Tail(t.Context(), "a", n)
			if err != nil {
				t.Fatal(err)
			}
			wantNext(t, r, want)
			r.Close()
		}
		for _, n := range []int{0, -1} {
			r, err := j.Tail(t.Context(), "a", n)
			if err != nil {
				t.Fatal(err)
			}
			publish(t, j, "a", 6)
			if got := next(t, r); strings.Contains(got, " ") {
				t.Errorf("a tail of %d has %s", n, got)
			}
			r.Close()
			r.Close()
		}
		for _, after := range []int64{8, -1} {
			_, err := j.Subscribe(t.Context(), "a", after)
			if !errors.Is(err, errors.Invalid) || !strings.Contains(errors.Message(err), "7 events") || errors.RemedyOf(err) == "" {
				t.Errorf("after %d: %v", after, err)
			}
		}
	})
}

func TestSlowReaderIsTold(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]event.Options{"count": {Window: 4}, "bytes": {WindowBytes: 4 * len("id: 1\nevent: test.happened\ndata: {\"n\":1}\n\n")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				opts.Store = testdb.Open(t).Events()
				j := open(t, opts)
				slow, quick := subscribe(t, j, "a", 0), subscribe(t, j, "a", 0)
				publish(t, j, "a", 1)
				wantNext(t, slow, "1")
				for n := 2; n <= 9; n++ {
					publish(t, j, "a", n)
					time.Sleep(time.Second)
					wantNext(t, quick, map[bool]string{true: "1 2", false: fmt.Sprint(n)}[n == 2])
				}
				wantNext(t, slow, `stream.lagged{"after":1,"first":6}`, "end", "end")
				again := subscribe(t, j, "a", 1)
				wantNext(t, again, "2 3 4 5 6 7 8 9")
			})
		})
	}
}

// TestLongHistoryIsNoLag checks that a reader that has never caught up is not slow: it reads the earlier events.
func TestLongHistoryIsNoLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := open(t, event.Options{Store: testdb.Open(t).Events(), Window: 4})
		publish(t, j, "a", numbers(1, 300)...)
		r := subscribe(t, j, "a", 0)
		first := next(t, r)
		publish(t, j, "a", numbers(301, 600)...)
		time.Sleep(time.Second)
		got := first
		for range 2 {
			got += " " + next(t, r)
		}
		if got != strings.Trim(fmt.Sprint(numbers(1, 600)), "[]") {
			t.Errorf("got %s", got)
		}
	})
}

func TestPrunedEventsAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := open(t, event.Options{Store: testdb.Open(t).Events()})
		publish(t, j, "a", 1, 2)
		time.Sleep(time.Hour)
		publish(t, j, "a", 3)
		if n, err := j.Prune(t.Context(), "", time.Now().Add(-time.Minute)); err != nil || n != 2 {
			t.Errorf("%d pruned, %v", n, err)
		}
		wantNext(t, subscribe(t, j, "a", 0), `stream.pruned{"after":0,"first":3} 3`)
		wantNext(t, subscribe(t, j, "a", 2), "3")
		if _, err := j.Prune(t.Context(), "a", time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		r := subscribe(t, j, "a", 1)
		wantNext(t, r, `stream.pruned{"after":1,"first":4}`)
		publish(t, j, "a", 4)
		wantNext(t, r, "4")
	})
}

func TestCloseDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testdb.Open(t).Events()
		j := open(t, event.Options{Store: s})
		r := subscribe(t, j, "a", 0)
		for n := range 100 {
			j.Post(t.Context(), event.Draft{Stream: "a", Type: "x", Data: number{n}})
		}
		shut(t, j)
		got := 0
		for e, err := range r.All(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got++
			if e.ID != int64(got) || string(e.Data) != fmt.Sprintf(`{"n":%d}`, got-1) {
				t.Errorf("event %d: %d %s", got, e.ID, e.Data)
			}
		}
		if got != 100 {
			t.Errorf("%d events", got)
		}
		if err := j.Publish(t.Context(), event.Draft{Stream: "a", Type: "x"}); !errors.Is(err, errors.Unavailable) {
			t.Errorf("publish after Close: %v", err)
		}
		j.Post(t.Context(), event.Draft{Stream: "a", Type: "x"}) // is logged
		late, err := j.Tail(t.Context(), "a", 1)
		if err != nil {
			t.Fatal(err)
		}
		wantNext(t, late, "100", "end")
		again := open(t, event.Options{Store: s})
		publish(t, again, "a", 1)
		wantNext(t, subscribe(t, again, "a", 100), "101")
	})
}

func TestAllEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := open(t, event.Options{Store: testdb.Open(t).Events()})
		publish(t, j, "a", 1, 2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		for e, err := range subscribe(t, j, "a", 0).All(ctx) {
			if err != nil {
				got = append(got, string(errors.KindOf(err)))
				continue
			}
			got = append(got, fmt.Sprint(e.ID))
			if e.ID == 2 {
				cancel()
			}
		}
		if fmt.Sprint(got) != "[1 2 canceled]" {
			t.Errorf("%v", got)
		}
		for range subscribe(t, j, "a", 0).All(t.Context()) {
			break
		}
	})
}

// mission: F6
func TestSecretsAreHiddenBeforeAnythingIsStored(t *testing.T) {
	t.Parallel()
	const value = `event"canary<77a1`
	defer logf.Redact(value, "stdout", "event-canary/b31c", "9876543210")()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	j := event.Open(t.Context(), event.Options{Store: db.Events()})
	if err := j.Publish(t.Context(),
		event.Draft{Stream: "a", Type: "stdout", Data: map[string]any{"stdout": "x " + value, "list": []any{value, 1.50, nil, true}, "in": map[string]string{"k": value}}},
		event.Draft{Stream: "a", Type: "x", Data: json.RawMessage(`{"t":"event-\u0063anary\/b31c","n":9876543210,"big":12345678901234567890}`)},
	); err != nil {
		t.Fatal(err)
	}
	r := subscribe(t, j, "a", 0)
	shut(t, j)
	var got []string
	for e, err := range r.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(e.Data))
	}
	want := `[{"in":{"k":"[redacted]"},"list":["[redacted]",1.5,null,true],"stdout":"x [redacted]"} {"big":12345678901234567890,"n":9876543210,"t":"[redacted]"}]`
	if fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || bytes.Contains(data, []byte("canary")) {
			t.Errorf("%s has the value, %v", file, err)
		}
	}
}

func TestBadDrafts(t *testing.T) {
	t.Parallel()
	j := open(t, event.Options{Store: testdb.Open(t).Events()})
	for name, d := range map[string]event.Draft{
		"no stream":   {Type: "x"},
		"odd stream":  {Stream: "a\nb", Type: "x"},
		"no type":     {Stream: "a"},
		"odd type":    {Stream: "a", Type: "x\ndata: y"},
		"no JSON":     {Stream: "a", Type: "x", Data: func() {}},
		"broken JSON": {Stream: "a", Type: "x", Data: json.RawMessage("{")},
		"too large":   {Stream: "a", Type: "x", Data: strings.Repeat("x", event.MaxData)},
	} {
		if err := j.Publish(t.Context(), event.Draft{Stream: "a", Type: "x"}, d); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if err := j.Publish(t.Context(), make([]event.Draft, event.MaxDrafts+1)...); err == nil {
		t.Error("too many are accepted")
	}
	if err := j.Publish(t.Context()); err != nil {
		t.Errorf("nothing at all: %v", err)
	}
	j.Post(t.Context())
	if last, err := j.Last(t.Context(), "a"); err != nil || last != 0 {
		t.Errorf("last is %d, %v: a part was published", last, err)
	}
}

// faulty is a Store that fails on demand, before or after it has performed the operation.
type faulty struct {
	event.Store
	mu            sync.Mutex
	before, after error         // guarded by mu
	block         chan struct{} // guarded by mu; Append waits for it
}

func (f *faulty) set(before, after error, block chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after, f.block = before, after, block
}

func (f *faulty) get() (block chan struct{}, before, after error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.block, f.before, f.after
}

func (f *faulty) Append(ctx context.Context, events []*event.Event) error {
	block, before, after := f.get()
	if block != nil {
		<-block
	}
	if before != nil {
		return before
	}
	return errors.Join(f.Store.Append(ctx, events), after)
}

func (f *faulty) Last(ctx context.Context, stream string) (int64, error) {
	if _, before, _ := f.get(); before != nil {
		return 0, before
	}
	return f.Store.Last(ctx, stream)
}

func (f *faulty) Read(ctx context.Context, stream string, after int64, limit int) ([]*event.Event, error) {
	if _, before, _ := f.get(); before != nil {
		return nil, before
	}
	return f.Store.Read(ctx, stream, after, limit)
}

func TestStoreFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full := errors.Newf(errors.Exhausted, "the disk is full")
		s := &faulty{Store: testdb.Open(t).Events()}
		j := open(t, event.Options{Store: s})
		live := subscribe(t, j, "a", 0)
		publish(t, j, "a", 1)
		wantNext(t, live, "1")
		draft := event.Draft{Stream: "a", Type: "x"}
		s.set(full, nil, nil)
		if err := j.Publish(t.Context(), draft); !errors.Is(err, errors.Exhausted) {
			t.Errorf("publish: %v", err)
		}
		j.Post(t.Context(), draft) // is logged
		_, err := j.Subscribe(t.Context(), "b", 0)
		if !errors.Is(err, errors.Exhausted) {
			t.Errorf("subscribe: %v", err)
		}
		synctest.Wait()
		s.set(nil, nil, nil)
		publish(t, j, "a", 2)
		wantNext(t, live, "2") // the failures used up no id
		// The events are persisted despite the error: no id is used twice, and readers must not miss these events.
		s.set(nil, full, nil)
		if err := j.Publish(t.Context(), draft, draft); !errors.Is(err, errors.Exhausted) {
			t.Errorf("publish: %v", err)
		}
		s.set(nil, nil, nil)
		late := subscribe(t, j, "a", 2)
		wantNext(t, late, "3 4")
		publish(t, j, "a", 5)
		time.Sleep(time.Second)
		wantNext(t, late, "5")
		wantNext(t, live, `stream.lagged{"after":2,"first":5}`, "end")
		s.set(full, nil, nil)
		r, err := j.Tail(t.Context(), "a", 3)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := r.Next(t.Context()); !errors.Is(err, errors.Exhausted) {
			t.Errorf("next: %v", err)
		}
	})
}

func TestPublishDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: testdb.Open(t).Events()}
		block := make(chan struct{})
		s.set(nil, nil, block)
		j := event.Open(t.Context(), event.Options{Store: s})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		draft := event.Draft{Stream: "a", Type: "x"}
		if err := j.Publish(ctx, draft); !errors.Is(err, errors.Timeout) {
			t.Errorf("publish: %v", err)
		}
		for range 1000 { // more than may wait
			if err := j.Publish(ctx, draft); !errors.Is(err, errors.Timeout) {
				t.Fatalf("publish: %v", err)
			}
		}
		if err := j.Close(ctx); !errors.Is(err, errors.Timeout) {
			t.Errorf("close: %v", err)
		}
		close(block)
		shut(t, j)
	})
}

// TestEventsGoOutInGroups checks that 1,000 events a second for 500 readers go out in groups, and that no group waits
// long.
func TestEventsGoOutInGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := open(t, event.Options{Store: testdb.Open(t).Events()})
		const readers, events = 500, 1000
		var mu sync.Mutex
		calls, slowest := 0, time.Duration(0)
		atOnce := map[time.Time]int{} // how many readers were woken at a moment, but for the first event's
		var wg sync.WaitGroup
		for range readers {
			r := subscribe(t, j, "a", 0)
			wg.Go(func() {
				for after := int64(0); after < events; {
					batch, err := r.Next(t.Context())
					if err != nil || batch[0].ID != after+1 {
						t.Errorf("after %d comes %v, %v", after, batch[0].ID, err)
						return
					}
					after = batch[len(batch)-1].ID
					mu.Lock()
					calls++
					if after > 1 {
						atOnce[time.Now()]++
					}
					slowest = max(slowest, time.Since(batch[0].Time))
					mu.Unlock()
				}
			})
		}
		for n := range events {
			publish(t, j, "a", n)
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		if per := calls / readers; per > 250 || per < 100 {
			t.Errorf("each reader was woken %d times for %d events", per, events)
		}
		if slowest > 6*time.Millisecond {
			t.Errorf("an event waited %s", slowest)
		}
		for at, n := range atOnce {
			if n > readers/4 {
				t.Errorf("%d of %d readers are woken in the same moment, %s", n, readers, at)
			}
		}
	})
}

// mission: E10
func TestNothingLostNothingTwice(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	const readers, perLife, lives = 20, 400, 3
	var seen [readers]int64
	for life := range lives {
		db, err := store.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		j := event.Open(t.Context(), event.Options{Store: db.Events(), Window: 32})
		var wg sync.WaitGroup
		for i := range readers {
			wg.Go(func() { seen[i] = follow(t, j, seen[i], int64(i), int64((life+1)*perLife)) })
		}
		for n := 0; n < perLife; n += 1 + n%7 {
			publish(t, j, "a", numbers(n, min(n+n%7, perLife-1))...)
		}
		// The last life is read to its end. The others are cut off at some point.
		if life == lives-1 {
			wg.Wait()
		}
		shut(t, j)
		wg.Wait()
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, last := range seen {
		if last != lives*perLife {
			t.Errorf("reader %d has %d events of %d", i, last, lives*perLife)
		}
	}
}

// follow reads up to an id, through reconnects, and returns the last id. Each reader has its own pace and forgets a
// different part.
func follow(t *testing.T, j *event.Journal, after, seed, until int64) int64 {
	for after < until {
		r, err := j.Subscribe(t.Context(), "a", after)
		if err != nil {
			t.Errorf("subscribe after %d: %v", after, err)
			return after
		}
		for patience := 3 + (after*7+seed)%40; patience > 0 && after < until; patience-- {
			batch, err := r.Next(t.Context())
			if errors.Is(err, io.EOF) {
				patience = 1
				if len(batch) == 0 && j.Publish(t.Context(), event.Draft{Stream: "other", Type: "x"}) != nil {
					r.Close()
					return after // the journal is closed
				}
				continue
			}
			if err != nil {
				t.Errorf("next: %v", err)
			}
			for _, e := range batch {
				if e.Type == event.Lagged {
					continue
				}
				if e.ID != after+1 {
					t.Errorf("event %d comes after %d", e.ID, after)
				}
				after = e.ID
				if (e.ID+seed)%11 == 0 {
					break // the connection is cut within a group
				}
			}
			if (after+seed)%11 == 0 {
				break
			}
		}
		r.Close()
	}
	return after
}

func TestManyComeAndGo(t *testing.T) {
	t.Parallel()
	j := open(t, event.Options{Store: testdb.Open(t).Events()})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				stream := fmt.Sprintf("s%d", (w*i)%5)
				publish(t, j, stream, i)
				r, err := j.Tail(t.Context(), stream, 1)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := r.Next(t.Context()); err != nil {
					t.Error(err)
				}
				r.Close()
			}
		})
	}
	wg.Wait()
}

// publishForever publishes and prints the number of each event once it is reported as persisted.
func publishForever(dir string) {
	ctx := context.Background()
	db, err := store.Open(ctx, filepath.Join(dir, "db"))
	if err != nil {
		panic(err)
	}
	j := event.Open(ctx, event.Options{Store: db.Events()})
	last, err := j.Last(ctx, "a")
	if err != nil {
		panic(err)
	}
	for n := last + 1; ; n++ {
		if err := j.Publish(ctx, event.Draft{Stream: "a", Type: "x", Data: number{int(n)}}); err != nil {
			panic(err)
		}
		fmt.Println(n)
	}
}

func TestKilledWhilePublishing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	said := 0
	for life := range 4 {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), helperEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if _, err := fmt.Sscan(lines.Text(), &said); err != nil {
				t.Fatal(err)
			}
			if n == 30+17*life {
				if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the helper was not killed")
		}
	}
	db, err := store.Open(t.Context(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	j := event.Open(t.Context(), event.Options{Store: db.Events()})
	r := subscribe(t, j, "a", 0)
	shut(t, j)
	n := 0
	for e, err := range r.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if e.ID != int64(n) || string(e.Data) != fmt.Sprintf(`{"n":%d}`, n) {
			t.Fatalf("event %d is %d %s", n, e.ID, e.Data)
		}
	}
	if n < said {
		t.Errorf("%d events, %d were said to be persisted", n, said)
	}
}
