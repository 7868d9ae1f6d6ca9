package modalapi

import (
	"context"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
)

// metadata describes a queue to clients. q.mu of its queues is held.
func (q *queue) metadata() *pb.QueueMetadata {
	return pb.QueueMetadata_builder{Name: q.name, CreationInfo: creation(q.made)}.Build()
}

// listedQueue is a queue at the time of a list.
type listedQueue struct {
	id                string
	name              string
	made              time.Time
	partitions, total int
	metadata          *pb.QueueMetadata
}

// ofEnv returns the named queues of an account in an environment, or in all if env is "".
func (q *queues) ofEnv(account, env string) []listedQueue {
	q.mu.Lock()
	defer q.mu.Unlock()
	var found []listedQueue
	for key, one := range q.byID {
		id, ours := strings.CutPrefix(key, account+" ")
		if !ours || one.loose || env != "" && one.env != env {
			continue
		}
		l := listedQueue{id: id, name: one.name, made: one.made, partitions: len(one.partitions),
			metadata: one.metadata()}
		for _, values := range one.partitions {
			l.total += len(values)
		}
		found = append(found, l)
	}
	return found
}

// envs returns the environments that have queues.
func (q *queues) envs(account string) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var found []string
	for key, one := range q.byID {
		if strings.HasPrefix(key, account+" ") && !one.loose {
			found = append(found, one.env)
		}
	}
	return found
}

// dropEnv removes the queues of an environment.
func (q *queues) dropEnv(ctx context.Context, account, env string) {
	for _, l := range q.ofEnv(account, env) {
		q.mu.Lock()
		q.drop(ctx, account+" "+l.id)
		q.mu.Unlock()
	}
}

// QueueList implements ModalClient.
func (c *control) QueueList(ctx context.Context, req *pb.QueueListRequest) (*pb.QueueListResponse, error) {
	env := envOr(req.GetEnvironmentName())
	asked := req.GetPagination()
	var items []*pb.QueueListResponse_QueueInfo
	for _, l := range page(c.s.queues.ofEnv(callerOf(ctx).Account, env), asked.GetCreatedBefore(),
		int(asked.GetMaxObjects()), func(l listedQueue) time.Time { return l.made }) {
		total := l.total
		if limit := int(req.GetTotalSizeLimit()); limit > 0 {
			total = min(total, limit+1) // clients show "more than the limit"
		}
		items = append(items, pb.QueueListResponse_QueueInfo_builder{Name: l.name, QueueId: l.id,
			CreatedAt: seconds(l.made), NumPartitions: int32(l.partitions), TotalSize: int32(total),
			Metadata: l.metadata}.Build())
	}
	return pb.QueueListResponse_builder{Queues: items, EnvironmentName: env}.Build(), nil
}

// QueueGetById implements ModalClient.
//
//lint:ignore ST1003 the name is the protocol's
func (c *control) QueueGetById(ctx context.Context, req *pb.QueueGetByIdRequest) (*pb.QueueGetByIdResponse, error) {
	q := &c.s.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	found, err := q.find(ctx, req.GetQueueId())
	if err != nil {
		return nil, err
	}
	return pb.QueueGetByIdResponse_builder{QueueId: req.GetQueueId(), Metadata: found.metadata()}.Build(), nil
}
