package queues

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// Record is the JSON of a queue's record.
type Record struct {
	Environment string    `json:"environment,omitempty"`
	Name        string    `json:"name,omitempty"`
	Created     time.Time `json:"created_at"`
	Last        uint64    `json:"last"` // the number of the last value that was put
}

// Key is the JSON of the record of an idempotency key.
type Key struct {
	Key string    `json:"key"`
	At  time.Time `json:"at"`
}

// key is such a record in memory.
type key struct {
	Key
	number int64
}

// mostKeys is how many puts of a queue the next server can recognize.
const mostKeys = 10_000

// ValueData is the data of a value's record: the length of the partition's name as a varint, the name, and the value.
func ValueData(partition, value []byte) []byte {
	data := binary.AppendUvarint(nil, uint64(len(partition)))
	return append(append(data, partition...), value...)
}

// parseValue reads the output of ValueData.
func parseValue(data []byte) (partition string, value []byte, err error) {
	n, size := binary.Uvarint(data)
	if size <= 0 || n > uint64(len(data)-size) {
		return "", nil, errors.Newf(errors.Internal, "the record of a queue's value is damaged")
	}
	rest := data[size:]
	return string(rest[:n]), rest[n:], nil
}

// Open reads the queues. Heartbeats before are unknown, so they count as now. The end of ctx ends waits.
func Open(ctx context.Context, store records.Store) (*Queues, error) {
	q := &Queues{ctx: ctx, write: context.WithoutCancel(ctx), store: store, byID: map[records.ID]*queue{}}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, load := range []struct {
		kind records.Kind
		add  func(records.Record) error
	}{{records.Queue, q.addQueue}, {records.QueueKey, q.addKey}, {records.QueueValue, q.addValue}} {
		all, err := store.List(ctx, load.kind)
		if err != nil {
			return nil, errors.Wrapf(err, "read the queues")
		}
		for _, r := range all {
			if load.kind != records.Queue && q.byID[r.ID] == nil { // the queue was deleted
				err = store.Delete(ctx, r.Kind, r.ID)
			} else {
				err = load.add(r)
			}
			if err != nil {
				return nil, errors.Wrapf(err, "read the queue %s", r.ID.ID)
			}
		}
	}
	q.sweep(time.Now())
	return q, nil
}

func (q *Queues) addQueue(r records.Record) error {
	var made Record
	if err := json.Unmarshal(r.Data, &made); err != nil {
		return err
	}
	added := newQueue(Queue{ID: r.ID, Environment: made.Environment, Name: made.Name, Created: made.Created})
	added.next = made.Last
	q.byID[r.ID] = added
	return nil
}

func (q *Queues) addKey(r records.Record) error {
	k := key{number: r.Number}
	err := json.Unmarshal(r.Data, &k.Key)
	q.byID[r.ID].keys = append(q.byID[r.ID].keys, k)
	return err
}

func (q *Queues) addValue(r records.Record) error {
	partition, value, err := parseValue(r.Data)
	if err != nil {
		return err
	}
	to, v := q.byID[r.ID], Value{uint64(r.Number), value}
	to.partitions[partition] = append(to.partitions[partition], v)
	q.count([]Value{v}, 1)
	return nil
}

func (q *queue) record() (records.Record, error) {
	data, err := json.Marshal(Record{q.Environment, q.Name, q.Created, q.next})
	return records.Record{Kind: records.Queue, ID: q.ID, Data: data}, err
}

// keep stores a put. q.mu is held.
func (q *Queues) keep(to *queue, partition []byte, values []Value, idempotency string) error {
	next := *to
	next.next += uint64(len(values))
	row, err := next.record()
	if err != nil {
		return err
	}
	rows := []records.Record{row}
	for _, v := range values {
		rows = append(rows, records.Record{Kind: records.QueueValue, ID: to.ID, Number: int64(v.Number),
			Data: ValueData(partition, v.Data)})
	}
	made := key{Key{idempotency, time.Now()}, int64(to.next)}
	if idempotency != "" {
		data, err := json.Marshal(made.Key)
		if err != nil {
			return err
		}
		rows = append(rows, records.Record{Kind: records.QueueKey, ID: to.ID, Number: made.number, Data: data})
	}
	if err := q.store.Put(q.write, rows...); err != nil {
		return err
	}
	if idempotency != "" {
		to.keys = append(to.keys, made)
		q.forgetKeys(to, made.At)
	}
	return nil
}

// forgetKeys removes keys that are older than Repeated, and the oldest above mostKeys. q.mu is held.
func (q *Queues) forgetKeys(of *queue, now time.Time) {
	var old []int64
	for i, k := range of.keys {
		if len(of.keys)-i <= mostKeys && now.Sub(k.At) <= Repeated {
			break
		}
		old = append(old, k.number)
	}
	if len(old) == 0 {
		return
	}
	of.keys = of.keys[len(old):]
	if err := q.store.Delete(q.write, records.QueueKey, of.ID, old...); err != nil {
		logf.Warnf(q.ctx, "remove the old keys of a queue: %v", err) // the next server retries
	}
}

// Puts returns the puts with a key that an earlier server did within Repeated.
func (q *Queues) Puts() []Put {
	q.mu.Lock()
	defer q.mu.Unlock()
	var found []Put
	for id, one := range q.byID {
		for _, k := range one.keys {
			found = append(found, Put{id, k.Key.Key, k.At})
		}
	}
	return found
}
