// Package queues holds Modal's queues: values that programs of an account pass to one another. Values are in memory,
// and in a store of records for the next server. They are opaque.
package queues

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// Bounds of queues. All but the last two are Modal's.
const (
	mostValues     = 5000    // of one partition
	largestValue   = 1 << 20 // bytes
	mostPartitions = 100000  // of one queue
	mostQueued     = 256 << 20
	mostQueues     = 10000
)

// Repeated is how long a put with an idempotency key is recognized. Clients retry for some seconds.
const Repeated = 10 * time.Minute

// EphemeralLife is how long a queue without a name exists after its client's last heartbeat. Clients send one every
// 300 s.
const EphemeralLife = 15 * time.Minute

// Queue describes a queue.
type Queue struct {
	records.ID
	Environment string // the prefix of the environment; "" for an ephemeral queue
	Name        string // "" for an ephemeral queue
	Created     time.Time
	Partitions  int // that have values
	Total       int // number of values
}

// Ephemeral reports whether the queue ends with its client.
func (q Queue) Ephemeral() bool { return q.Name == "" }

// Value is a value in a queue. Number is its position, which increases within the queue.
type Value struct {
	Number uint64
	Data   []byte
}

// Put is a put with an idempotency key.
type Put struct {
	Queue records.ID
	Key   string
	At    time.Time
}

// Queues holds the queues of all accounts. Its methods may be called concurrently. Methods that name a queue return
// NotFound if the account has none with that ID.
type Queues struct {
	ctx   context.Context // of waits
	write context.Context // of changes, which neither a client that hangs up nor the end of ctx cancels
	store records.Store

	mu    sync.Mutex
	byID  map[records.ID]*queue // guarded by mu
	bytes int64                 // guarded by mu; of all values
}

// queue is a queue with its values. Its fields are guarded by Queues.mu.
type queue struct {
	Queue
	keys       []key
	partitions map[string][]Value
	next       uint64 // the number of the last value
	heard      time.Time
	changed    chan struct{} // closed at the next put, and at the end of the queue
}

// notFound is the error for a queue that the account does not have.
func notFound(id string) error { return errors.Newf(errors.NotFound, "Queue '%.100s' not found", id) }

// find returns the queue with that ID. q.mu is held.
func (q *Queues) find(id records.ID) (*queue, error) {
	found := q.byID[id]
	if found == nil {
		return nil, notFound(id.ID)
	}
	found.heard = time.Now()
	return found, nil
}

// Create adds a queue. Conflict if its ID exists, Exhausted if there are too many.
func (q *Queues) Create(made Queue) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep(time.Now())
	if q.byID[made.ID] != nil {
		return errors.Newf(errors.Conflict, "Queue '%.100s' already exists", made.Name)
	}
	if len(q.byID) >= mostQueues {
		return errors.Remedy(errors.Newf(errors.Exhausted, "there are %d queues", mostQueues), "delete some")
	}
	added := newQueue(made)
	row, err := added.record()
	if err == nil {
		err = q.store.Put(q.write, row)
	}
	if err != nil {
		return errors.Wrapf(err, "keep a queue")
	}
	q.byID[made.ID] = added
	return nil
}

func newQueue(made Queue) *queue {
	return &queue{Queue: made, partitions: map[string][]Value{}, heard: time.Now(), changed: make(chan struct{})}
}

// describe returns the queue with its numbers.
func (q *queue) describe() Queue {
	described := q.Queue
	described.Partitions = len(q.partitions)
	for _, values := range q.partitions {
		described.Total += len(values)
	}
	return described
}

// Get returns a queue. It counts as a heartbeat of the client.
func (q *Queues) Get(id records.ID) (Queue, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	found, err := q.find(id)
	if err != nil {
		return Queue{}, err
	}
	return found.describe(), nil
}

// List returns the named queues of an account in an environment, or in all if environment is "".
func (q *Queues) List(account, environment string) []Queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	var found []Queue
	for id, one := range q.byID {
		if id.Account == account && !one.Ephemeral() && (environment == "" || one.Environment == environment) {
			found = append(found, one.describe())
		}
	}
	return found
}

// Delete removes a queue.
func (q *Queues) Delete(id records.ID) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, err := q.find(id); err != nil {
		return err
	}
	return q.drop(id)
}

// drop removes a queue. Values whose removal fails are removed by the next server. q.mu is held.
func (q *Queues) drop(id records.ID) error {
	old := q.byID[id]
	if err := q.store.Delete(q.write, records.Queue, id); err != nil {
		return errors.Wrapf(err, "delete a queue")
	}
	for _, kind := range []records.Kind{records.QueueValue, records.QueueKey} {
		if err := q.store.Delete(q.write, kind, id); err != nil {
			logf.Errorf(q.ctx, "remove records of a deleted queue: %v", err)
		}
	}
	for _, values := range old.partitions {
		q.count(values, -1)
	}
	close(old.changed)
	delete(q.byID, id)
	return nil
}

// count adds the size of values to that of all, or subtracts it if sign is -1.
func (q *Queues) count(values []Value, sign int64) {
	for _, v := range values {
		q.bytes += sign * int64(len(v.Data))
	}
}

// Sweep removes the ephemeral queues whose clients have sent no heartbeat for EphemeralLife, and old idempotency keys.
func (q *Queues) Sweep(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep(now)
}

func (q *Queues) sweep(now time.Time) {
	for id, one := range q.byID {
		if !one.Ephemeral() || now.Sub(one.heard) <= EphemeralLife {
			q.forgetKeys(one, now)
			continue
		}
		if err := q.drop(id); err != nil {
			logf.Errorf(q.ctx, "remove a queue without a client: %v", err) // the next sweep retries
		}
	}
}

// Clear removes the values of a partition, or of all partitions.
func (q *Queues) Clear(id records.ID, partition []byte, all bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	found, err := q.find(id)
	if err != nil {
		return err
	}
	for name := range maps.Clone(found.partitions) {
		if all || name == string(partition) {
			q.take(found, name, len(found.partitions[name]))
		}
	}
	return nil
}

// Put adds values to a partition. A key identifies the put for Puts of the next server; it may be "". Exhausted if the
// queue is full: clients then wait and retry.
func (q *Queues) Put(id records.ID, partition []byte, values [][]byte, key string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	found, err := q.find(id)
	if err != nil {
		return err
	}
	size := int64(0)
	for _, v := range values {
		if len(v) > largestValue {
			return errors.Newf(errors.Invalid, "a value has %d bytes, a queue takes up to %d", len(v), largestValue)
		}
		size += int64(len(v))
	}
	before, known := found.partitions[string(partition)]
	if len(before)+len(values) > mostValues || q.bytes+size > mostQueued || !known &&
		len(found.partitions) >= mostPartitions {
		return errors.Newf(errors.Exhausted, "the queue is full")
	}
	if len(values) == 0 {
		return nil
	}
	added := make([]Value, len(values))
	for i, v := range values {
		added[i] = Value{found.next + uint64(i) + 1, bytes.Clone(v)}
	}
	if err := q.keep(found, partition, added, key); err != nil {
		return errors.Wrapf(err, "keep the values of a queue")
	}
	found.next += uint64(len(values))
	q.count(added, 1)
	found.partitions[string(partition)] = append(before, added...)
	close(found.changed)
	found.changed = make(chan struct{})
	return nil
}

// take removes the first n values of a partition and returns them. Best effort: if the removal cannot be recorded, the
// values still reach their receiver, and a later server delivers them again. q.mu is held.
func (q *Queues) take(from *queue, partition string, n int) []Value {
	values := from.partitions[partition]
	taken := values[:n]
	if from.partitions[partition] = values[n:]; len(values) == n {
		delete(from.partitions, partition)
	}
	q.count(taken, -1)
	numbers := make([]int64, n)
	for i, v := range taken {
		numbers[i] = int64(v.Number)
	}
	if err := q.store.Delete(q.write, records.QueueValue, from.ID, numbers...); err != nil {
		logf.Errorf(q.ctx, "record the values taken from a queue: %v", err)
	}
	return taken
}

// Take removes up to n values, at least one, of a partition, and waits for the first one until ctx ends or the time is
// over. It returns nothing if the time was over.
func (q *Queues) Take(ctx context.Context, id records.ID, partition []byte, n int,
	wait time.Duration) ([]Value, error) {
	return q.await(ctx, id, wait, func(found *queue) []Value {
		if has := len(found.partitions[string(partition)]); has > 0 {
			return q.take(found, string(partition), min(has, max(1, n)))
		}
		return nil
	})
}

// Next returns the values of a partition after a number, without removing them, and waits as Take does.
func (q *Queues) Next(ctx context.Context, id records.ID, partition []byte, after uint64,
	wait time.Duration) ([]Value, error) {
	return q.await(ctx, id, wait, func(found *queue) []Value {
		values := found.partitions[string(partition)]
		at := slices.IndexFunc(values, func(v Value) bool { return v.Number > after })
		if at < 0 {
			return nil
		}
		return slices.Clone(values[at:])
	})
}

// await calls look, with q.mu held, until it returns values.
func (q *Queues) await(ctx context.Context, id records.ID, wait time.Duration,
	look func(*queue) []Value) ([]Value, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		q.mu.Lock()
		found, err := q.find(id)
		if err != nil {
			q.mu.Unlock()
			return nil, err
		}
		values, changed := look(found), found.changed
		q.mu.Unlock()
		if len(values) > 0 {
			return values, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.ctx.Done():
			return nil, nil
		}
	}
}

// Len returns the number of values of a partition, or of all partitions.
func (q *Queues) Len(id records.ID, partition []byte, total bool) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	found, err := q.find(id)
	if err != nil {
		return 0, err
	}
	if total {
		return found.describe().Total, nil
	}
	return len(found.partitions[string(partition)]), nil
}
