package queues

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/store/records"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

func open(t *testing.T, store records.Store) *Queues {
	t.Helper()
	q, err := Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

var jobs = records.ID{Account: "acc", ID: "qu-jobs"}

func create(t *testing.T, q *Queues, id records.ID, name string) {
	t.Helper()
	if err := q.Create(Queue{ID: id, Environment: "main", Name: name, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, q *Queues, id records.ID, part string, values ...string) {
	t.Helper()
	var data [][]byte
	for _, v := range values {
		data = append(data, []byte(v))
	}
	if err := q.Put(id, []byte(part), data, ""); err != nil {
		t.Fatal(err)
	}
}

func take(t *testing.T, q *Queues, id records.ID, part string, n int) string {
	t.Helper()
	got, err := q.Take(t.Context(), id, []byte(part), n, 0)
	if err != nil {
		t.Fatal(err)
	}
	return joined(got)
}

func joined(values []Value) string {
	var all [][]byte
	for _, v := range values {
		all = append(all, v.Data)
	}
	return string(bytes.Join(all, []byte(" ")))
}

// rows returns how many records the store has of each kind of a queue's records.
func rows(t *testing.T, store records.Store) (queues, values, keys int) {
	t.Helper()
	var counts [3]int
	for i, kind := range []records.Kind{records.Queue, records.QueueValue, records.QueueKey} {
		all, err := store.List(t.Context(), kind)
		if err != nil {
			t.Fatal(err)
		}
		counts[i] = len(all)
	}
	return counts[0], counts[1], counts[2]
}

// TestValuesSurviveRestart checks that a restarted server has the values that were put and not taken, with their
// numbers, and that taken values leave no records.
func TestValuesSurviveRestart(t *testing.T) {
	t.Parallel()
	store, loose := testdb.Open(t).Records(), records.ID{Account: "acc", ID: "qu-xloose"}
	q := open(t, store)
	create(t, q, jobs, "jobs")
	create(t, q, loose, "")
	put(t, q, jobs, "", "a", "b", "c")
	put(t, q, jobs, "part", "x")
	put(t, q, jobs, "gone", "y")
	put(t, q, loose, "", "1")
	if got := take(t, q, jobs, "", 1); got != "a" {
		t.Errorf("the first value is %q", got)
	}
	if err := q.Clear(jobs, []byte("gone"), false); err != nil {
		t.Fatal(err)
	}
	q = open(t, store)
	items, err := q.Next(t.Context(), jobs, nil, 2, 0)
	if err != nil || len(items) != 1 || items[0].Number != 3 {
		t.Errorf("after the second value there is %v, %v", items, err)
	}
	if got := take(t, q, jobs, "", 5) + "," + take(t, q, jobs, "part", 5) + "," + take(t, q, jobs, "gone", 5) + "," +
		take(t, q, loose, "", 5); got != "b c,x,,1" {
		t.Errorf("the next server has %q", got)
	}
	if _, values, _ := rows(t, store); values != 0 || q.bytes != 0 {
		t.Errorf("empty queues have %d records and %d bytes", values, q.bytes)
	}
	q = open(t, store)
	put(t, q, jobs, "", "d")
	if items, err := q.Next(t.Context(), jobs, nil, 5, 0); err != nil || len(items) != 1 || items[0].Number != 6 {
		t.Errorf("numbers begin again after a restart: %v, %v", items, err)
	}
	if err := q.Clear(jobs, nil, true); err != nil {
		t.Fatal(err)
	}
	if n, err := open(t, store).Len(jobs, nil, true); err != nil || n != 0 {
		t.Errorf("a cleared queue has %d values, %v", n, err)
	}
}

// TestQueuesWithoutClients checks that ephemeral queues end with their clients, and named ones do not.
func TestQueuesWithoutClients(t *testing.T) {
	t.Parallel()
	store, loose := testdb.Open(t).Records(), records.ID{Account: "acc", ID: "qu-xloose"}
	q := open(t, store)
	create(t, q, jobs, "jobs")
	create(t, q, loose, "")
	put(t, q, loose, "", "1")
	waiting := make(chan error, 1)
	go func() {
		_, err := q.Take(t.Context(), loose, []byte("other"), 1, time.Hour)
		waiting <- err
	}()
	for range 2 { // the second sweep finds nothing
		q.Sweep(time.Now().Add(2 * EphemeralLife))
	}
	if err := <-waiting; errors.KindOf(err) != errors.NotFound {
		t.Errorf("a client that waits gets %v", err)
	}
	if _, err := q.Get(loose); errors.KindOf(err) != errors.NotFound || q.bytes != 0 {
		t.Errorf("a queue without a client: %v, %d bytes", err, q.bytes)
	}
	if _, err := q.Get(jobs); err != nil {
		t.Errorf("the named queue: %v", err)
	}
	if n, values, _ := rows(t, store); n != 1 || values != 0 {
		t.Errorf("the store has %d queues and %d values", n, values)
	}
}

// TestKeysOfPuts checks that the next server knows recent puts by their keys, and that old keys are removed.
func TestKeysOfPuts(t *testing.T) {
	t.Parallel()
	store := testdb.Open(t).Records()
	q := open(t, store)
	create(t, q, jobs, "jobs")
	for _, key := range []string{"one", "", "two"} {
		if err := q.Put(jobs, nil, [][]byte{[]byte("v")}, key); err != nil {
			t.Fatal(err)
		}
	}
	q = open(t, store)
	known := map[string]bool{}
	for _, p := range q.Puts() {
		known[p.Key] = p.Queue == jobs
	}
	if len(known) != 2 || !known["one"] || !known["two"] {
		t.Errorf("the next server knows %v", known)
	}
	q.Sweep(time.Now().Add(2 * Repeated))
	if _, _, keys := rows(t, store); keys != 0 || len(q.Puts()) != 0 {
		t.Errorf("there are %d records of old keys, and %v", keys, q.Puts())
	}
}

// TestBounds checks the limits of values and queues.
func TestBounds(t *testing.T) {
	t.Parallel()
	q := open(t, testdb.Open(t).Records())
	create(t, q, jobs, "jobs")
	if err := q.Create(Queue{ID: jobs, Name: "jobs"}); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a queue twice: %v", err)
	}
	if err := q.Put(jobs, nil, [][]byte{make([]byte, largestValue+1)}, ""); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a large value: %v", err)
	}
	if err := q.Put(jobs, nil, make([][]byte, mostValues+1), ""); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("too many values: %v", err)
	}
	if err := q.Put(jobs, []byte("empty"), nil, ""); err != nil {
		t.Errorf("no values: %v", err)
	}
	if got, err := q.Get(jobs); err != nil || got.Partitions != 0 || got.Total != 0 {
		t.Errorf("nothing was put, and the queue has %+v, %v", got, err)
	}
	if _, err := q.Len(records.ID{Account: "other", ID: jobs.ID}, nil, true); errors.KindOf(err) != errors.NotFound {
		t.Errorf("another account: %v", err)
	}
}

// TestUnwritableStore checks that a put that cannot be recorded is refused, that taken values still reach their
// receiver, and that a queue that cannot be removed stays.
func TestUnwritableStore(t *testing.T) {
	t.Parallel()
	store := &storetest.Unwritable{Store: testdb.Open(t).Records()}
	q := open(t, store)
	create(t, q, jobs, "jobs")
	put(t, q, jobs, "", "a")
	store.Err = errors.Newf(errors.Exhausted, "the disk is full")
	if err := q.Put(jobs, nil, [][]byte{[]byte("b")}, "key"); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("put: %v", err)
	}
	if err := q.Create(Queue{ID: records.ID{Account: "acc", ID: "qu-2"}}); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("create: %v", err)
	}
	if err := q.Delete(jobs); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("delete: %v", err)
	}
	if got := take(t, q, jobs, "", 5); got != "a" {
		t.Errorf("there is %q", got)
	}
}

// TestLeftovers checks that values of a queue whose deletion was interrupted do not return with a new queue, and that a
// damaged value is an error.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	store := testdb.Open(t).Records()
	left := records.Record{Kind: records.QueueValue, ID: jobs, Number: 1, Data: ValueData(nil, []byte("old"))}
	if err := store.Put(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	q := open(t, store)
	create(t, q, jobs, "jobs")
	if got := take(t, open(t, store), jobs, "", 5); got != "" {
		t.Errorf("a new queue has %q", got)
	}
	for _, data := range []string{"", "\x05abc", strings.Repeat("\xff", 11)} {
		left.Data = []byte(data)
		if err := store.Put(t.Context(), left); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), store); errors.KindOf(err) != errors.Internal {
			t.Errorf("the value %q: %v", data, err)
		}
	}
}
