package modalapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// Bounds of queues. All but the last two are Modal's. Queues are in memory, and in files for the next server.
const (
	mostValues     = 5000    // of one partition
	largestValue   = 1 << 20 // bytes
	mostPartitions = 100000  // of one queue
	mostQueued     = 256 << 20
	mostQueues     = 10000
)

// queues hold values that programs pass to one another. The server does not interpret them.
type queues struct {
	dir string

	mu    sync.Mutex
	byID  map[string]*queue // guarded by mu; by account and ID
	bytes int64             // guarded by mu; of all values
}

type queue struct {
	path       string
	written    int64 // all from here on guarded by queues.mu; size of the file
	bytes      int64 // total size of its values
	keys       []keyed
	partitions map[string][]queued1
	next       uint64
	heard      time.Time
	made       time.Time
	env, name  string // "" for a queue without a name
	loose      bool
	changed    chan struct{}
}

// keyed identifies a put that a client may repeat.
type keyed struct {
	key string // the client's key, prefixed with the id of the API key
	at  time.Time
}

type queued1 struct {
	id    uint64
	value []byte
}

// find returns the caller's queue with that ID. q.mu is held.
func (q *queues) find(ctx context.Context, id string) (*queue, error) {
	found := q.byID[callerOf(ctx).Account+" "+id]
	if found == nil {
		return nil, missing("Queue", id)
	}
	found.heard = time.Now()
	return found, nil
}

// QueueGetOrCreate implements ModalClient.
func (c *control) QueueGetOrCreate(ctx context.Context,
	req *pb.QueueGetOrCreateRequest) (*pb.QueueGetOrCreateResponse, error) {
	q := &c.s.queues
	loose := req.GetObjectCreationType() == pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL
	id := queueID + looseMark + rand.Text()
	if !loose {
		if err := errors.Join(checkName("Queue", req.GetDeploymentName()),
			checkEnv(req.GetEnvironmentName())); err != nil {
			return nil, err
		}
		id = named(queueID, scoped(req.GetEnvironmentName(), req.GetDeploymentName()))
	}
	q.sweep(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	key := callerOf(ctx).Account + " " + id
	switch {
	case q.byID[key] != nil && req.GetObjectCreationType() ==
		pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
		return nil, withCode(errors.Newf(errors.Conflict, "Queue '%s' already exists", req.GetDeploymentName()),
			alreadyExists)
	case q.byID[key] != nil:
	case !creates(req.GetObjectCreationType()):
		return nil, errors.Newf(errors.NotFound, "Queue '%s' not found", req.GetDeploymentName())
	case len(q.byID) >= mostQueues:
		return nil, errors.Remedy(errors.Newf(errors.Exhausted, "there are %d queues", mostQueues), "Delete some")
	default:
		made := newQueue(filepath.Join(q.dir, callerOf(ctx).Account+"~"+id+queueEnd), loose)
		if !loose {
			made.env, made.name = envOr(req.GetEnvironmentName()), req.GetDeploymentName()
		}
		if err := made.rewrite(); err != nil {
			return nil, errors.Wrapf(err, "keep a queue")
		}
		q.byID[key] = made
	}
	return pb.QueueGetOrCreateResponse_builder{QueueId: id, Metadata: q.byID[key].metadata()}.Build(), nil
}

// drop removes a queue. q.mu is held.
func (q *queues) drop(ctx context.Context, key string) {
	if old := q.byID[key]; old != nil {
		if err := os.Remove(old.path); err != nil {
			logf.Errorf(ctx, "remove the file of a queue: %v", err)
		}
		for _, values := range old.partitions {
			q.count(old, values, -1)
		}
		close(old.changed)
		delete(q.byID, key)
	}
}

func (q *queues) count(of *queue, values []queued1, sign int64) {
	for _, v := range values {
		q.bytes += sign * int64(len(v.value))
		of.bytes += sign * int64(len(v.value))
	}
}

// QueueDelete implements ModalClient.
func (c *control) QueueDelete(ctx context.Context, req *pb.QueueDeleteRequest) (*emptypb.Empty, error) {
	q := &c.s.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, err := q.find(ctx, req.GetQueueId()); err != nil {
		return nil, err
	}
	q.drop(ctx, callerOf(ctx).Account+" "+req.GetQueueId())
	return &emptypb.Empty{}, nil
}

// QueueHeartbeat implements ModalClient.
func (c *control) QueueHeartbeat(ctx context.Context, req *pb.QueueHeartbeatRequest) (*emptypb.Empty, error) {
	q := &c.s.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	_, err := q.find(ctx, req.GetQueueId())
	return &emptypb.Empty{}, err
}

// QueueClear implements ModalClient.
func (c *control) QueueClear(ctx context.Context, req *pb.QueueClearRequest) (*emptypb.Empty, error) {
	q := &c.s.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	found, err := q.find(ctx, req.GetQueueId())
	if err != nil {
		return nil, err
	}
	for name, values := range found.partitions {
		if req.GetAllPartitions() || name == string(req.GetPartitionKey()) {
			q.count(found, values, -1)
			delete(found.partitions, name)
		}
	}
	found.lost(ctx, queueNote{Part: req.GetPartitionKey(), Clear: true, All: req.GetAllPartitions()})
	return &emptypb.Empty{}, nil
}

// QueuePut implements ModalClient. It returns RESOURCE_EXHAUSTED when the queue is full; clients then wait and
// retry.
func (c *control) QueuePut(ctx context.Context, req *pb.QueuePutRequest) (*emptypb.Empty, error) {
	return once1(ctx, c.s, putOf(req.GetQueueId()), func() (*emptypb.Empty, error) { return c.s.queues.put(ctx, req) })
}

// putOf is the name of a put into a queue for once.
func putOf(queue string) string { return "put " + queue }

func (q *queues) put(ctx context.Context, req *pb.QueuePutRequest) (*emptypb.Empty, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	found, err := q.find(ctx, req.GetQueueId())
	if err != nil {
		return nil, err
	}
	name := string(req.GetPartitionKey())
	values := found.partitions[name]
	size := int64(0)
	for _, v := range req.GetValues() {
		if len(v) > largestValue {
			return nil, errors.Newf(errors.Invalid, "a value has %d bytes, a queue takes up to %d",
				len(v), largestValue)
		}
		size += int64(len(v))
	}
	_, known := found.partitions[name]
	if len(values)+len(req.GetValues()) > mostValues || q.bytes+size > mostQueued || !known &&
		len(found.partitions) >= mostPartitions {
		return nil, errors.Newf(errors.Exhausted, "the queue is full")
	}
	if len(req.GetValues()) == 0 {
		return &emptypb.Empty{}, nil
	}
	n := queueNote{Part: req.GetPartitionKey(), Before: found.next, Values: req.GetValues()}
	if c := callerOf(ctx); c.key != "" {
		n.Key, n.At = c.KeyID+" "+c.key, time.Now().UnixMilli()
	}
	if err := found.note(n); err != nil {
		return nil, errors.Wrapf(err, "keep the values of a queue")
	}
	found.noteKey(n)
	for _, v := range req.GetValues() {
		found.next++
		values = append(values, queued1{found.next, bytes.Clone(v)})
	}
	q.count(found, values[len(values)-len(req.GetValues()):], 1)
	found.partitions[name] = values
	close(found.changed)
	found.changed = make(chan struct{})
	return &emptypb.Empty{}, nil
}

// QueueGet implements ModalClient. The answer is empty if no value arrives in time.
func (c *control) QueueGet(ctx context.Context, req *pb.QueueGetRequest) (*pb.QueueGetResponse, error) {
	q := &c.s.queues
	timer := time.NewTimer(wait(req.GetTimeout()))
	defer timer.Stop()
	for {
		q.mu.Lock()
		found, err := q.find(ctx, req.GetQueueId())
		if err != nil {
			q.mu.Unlock()
			return nil, err
		}
		name, changed := string(req.GetPartitionKey()), found.changed
		values := found.partitions[name]
		n := min(len(values), max(1, int(req.GetNValues())))
		if n > 0 {
			taken := values[:n]
			q.count(found, taken, -1)
			if found.partitions[name] = values[n:]; len(values) == n {
				delete(found.partitions, name)
			}
			found.lost(ctx, queueNote{Part: req.GetPartitionKey(), Taken: n})
			q.mu.Unlock()
			var out [][]byte
			for _, v := range taken {
				out = append(out, v.value)
			}
			return pb.QueueGetResponse_builder{Values: out}.Build(), nil
		}
		q.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			return &pb.QueueGetResponse{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.s.ctx.Done():
			return &pb.QueueGetResponse{}, nil
		}
	}
}

// QueueLen implements ModalClient.
func (c *control) QueueLen(ctx context.Context, req *pb.QueueLenRequest) (*pb.QueueLenResponse, error) {
	q := &c.s.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	found, err := q.find(ctx, req.GetQueueId())
	if err != nil {
		return nil, err
	}
	n := 0
	for name, values := range found.partitions {
		if req.GetTotal() || name == string(req.GetPartitionKey()) {
			n += len(values)
		}
	}
	return pb.QueueLenResponse_builder{Len: int32(n)}.Build(), nil
}

// QueueNextItems implements ModalClient. It returns the values after the last one seen and leaves them in the
// queue.
func (c *control) QueueNextItems(ctx context.Context,
	req *pb.QueueNextItemsRequest) (*pb.QueueNextItemsResponse, error) {
	q := &c.s.queues
	last, _ := strconv.ParseUint(strings.TrimSpace(req.GetLastEntryId()), 10, 64)
	timer := time.NewTimer(wait(req.GetItemPollTimeout()))
	defer timer.Stop()
	for {
		q.mu.Lock()
		found, err := q.find(ctx, req.GetQueueId())
		if err != nil {
			q.mu.Unlock()
			return nil, err
		}
		changed := found.changed
		var items []*pb.QueueItem
		for _, v := range found.partitions[string(req.GetPartitionKey())] {
			if v.id > last {
				items = append(items, pb.QueueItem_builder{Value: v.value,
					EntryId: strconv.FormatUint(v.id, 10)}.Build())
			}
		}
		q.mu.Unlock()
		if len(items) > 0 {
			return pb.QueueNextItemsResponse_builder{Items: items}.Build(), nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return &pb.QueueNextItemsResponse{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.s.ctx.Done():
			return &pb.QueueNextItemsResponse{}, nil
		}
	}
}
