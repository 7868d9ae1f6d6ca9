package modal

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/idempotency"
	"github.com/RelevanceAI/harvest/internal/modal/queues"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// openQueues loads the queues of an earlier server, and the puts that must not be repeated.
func (s *Server) openQueues() (err error) {
	if s.queues, err = queues.Open(s.ctx, s.opts.Records); err != nil {
		return err
	}
	for _, p := range s.queues.Puts() {
		s.answers.Keep(p.Queue.Account+" "+strings.Replace(p.Key, " ", " "+putOf(p.Queue.ID)+" ", 1), &emptypb.Empty{},
			p.At.Add(idempotency.Kept))
	}
	return nil
}

// queueOf returns the caller's queue with that ID.
func queueOf(ctx context.Context, id string) records.ID {
	return records.ID{Account: callerOf(ctx).Account, ID: id}
}

func queueMetadata(q queues.Queue) *pb.QueueMetadata {
	return pb.QueueMetadata_builder{Name: q.Name, CreationInfo: creation(q.Created)}.Build()
}

// QueueGetOrCreate implements ModalClient.
func (c *control) QueueGetOrCreate(ctx context.Context,
	req *pb.QueueGetOrCreateRequest) (*pb.QueueGetOrCreateResponse, error) {
	made := queues.Queue{ID: queueOf(ctx, queueID+looseMark+rand.Text()), Created: time.Now()}
	if req.GetObjectCreationType() != pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL {
		if err := errors.Join(checkName("Queue", req.GetDeploymentName()),
			checkEnv(req.GetEnvironmentName())); err != nil {
			return nil, err
		}
		made.ID = queueOf(ctx, named(queueID, scoped(req.GetEnvironmentName(), req.GetDeploymentName())))
		made.Environment, made.Name = envOr(req.GetEnvironmentName()), req.GetDeploymentName()
	}
	found, err := c.s.queues.Get(made.ID)
	if errors.KindOf(err) == errors.NotFound {
		if !creates(req.GetObjectCreationType()) {
			return nil, errors.Newf(errors.NotFound, "Queue '%s' not found", req.GetDeploymentName())
		}
		found, err = made, c.s.queues.Create(made)
		if errors.KindOf(err) == errors.Conflict { // another call has created it
			found, err = c.s.queues.Get(made.ID)
		}
	} else if err == nil && req.GetObjectCreationType() ==
		pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS {
		err = withCode(errors.Newf(errors.Conflict, "Queue '%s' already exists", req.GetDeploymentName()),
			alreadyExists)
	}
	if err != nil {
		return nil, err
	}
	return pb.QueueGetOrCreateResponse_builder{QueueId: found.ID.ID, Metadata: queueMetadata(found)}.Build(), nil
}

// QueueDelete implements ModalClient.
func (c *control) QueueDelete(ctx context.Context, req *pb.QueueDeleteRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, c.s.queues.Delete(queueOf(ctx, req.GetQueueId()))
}

// QueueHeartbeat implements ModalClient.
func (c *control) QueueHeartbeat(ctx context.Context, req *pb.QueueHeartbeatRequest) (*emptypb.Empty, error) {
	_, err := c.s.queues.Get(queueOf(ctx, req.GetQueueId()))
	return &emptypb.Empty{}, err
}

// QueueClear implements ModalClient.
func (c *control) QueueClear(ctx context.Context, req *pb.QueueClearRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, c.s.queues.Clear(queueOf(ctx, req.GetQueueId()), req.GetPartitionKey(),
		req.GetAllPartitions())
}

// QueuePut implements ModalClient. It returns RESOURCE_EXHAUSTED when the queue is full; clients then wait and
// retry.
func (c *control) QueuePut(ctx context.Context, req *pb.QueuePutRequest) (*emptypb.Empty, error) {
	key := ""
	if caller := callerOf(ctx); caller.key != "" {
		key = caller.KeyID + " " + caller.key
	}
	return once1(ctx, c.s, putOf(req.GetQueueId()), func() (*emptypb.Empty, error) {
		return &emptypb.Empty{}, c.s.queues.Put(queueOf(ctx, req.GetQueueId()), req.GetPartitionKey(), req.GetValues(),
			key)
	})
}

// putOf is the name of a put into a queue for once.
func putOf(queue string) string { return "put " + queue }

// QueueGet implements ModalClient. The answer is empty if no value arrives in time.
func (c *control) QueueGet(ctx context.Context, req *pb.QueueGetRequest) (*pb.QueueGetResponse, error) {
	taken, err := c.s.queues.Take(ctx, queueOf(ctx, req.GetQueueId()), req.GetPartitionKey(), int(req.GetNValues()),
		wait(req.GetTimeout()))
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, v := range taken {
		out = append(out, v.Data)
	}
	return pb.QueueGetResponse_builder{Values: out}.Build(), nil
}

// QueueLen implements ModalClient.
func (c *control) QueueLen(ctx context.Context, req *pb.QueueLenRequest) (*pb.QueueLenResponse, error) {
	n, err := c.s.queues.Len(queueOf(ctx, req.GetQueueId()), req.GetPartitionKey(), req.GetTotal())
	if err != nil {
		return nil, err
	}
	return pb.QueueLenResponse_builder{Len: int32(n)}.Build(), nil
}

// QueueNextItems implements ModalClient. It returns the values after the last one seen and leaves them in the
// queue.
func (c *control) QueueNextItems(ctx context.Context,
	req *pb.QueueNextItemsRequest) (*pb.QueueNextItemsResponse, error) {
	last, _ := strconv.ParseUint(strings.TrimSpace(req.GetLastEntryId()), 10, 64)
	values, err := c.s.queues.Next(ctx, queueOf(ctx, req.GetQueueId()), req.GetPartitionKey(), last,
		wait(req.GetItemPollTimeout()))
	if err != nil {
		return nil, err
	}
	var items []*pb.QueueItem
	for _, v := range values {
		items = append(items, pb.QueueItem_builder{Value: v.Data, EntryId: strconv.FormatUint(v.Number, 10)}.Build())
	}
	return pb.QueueNextItemsResponse_builder{Items: items}.Build(), nil
}

// QueueList implements ModalClient.
func (c *control) QueueList(ctx context.Context, req *pb.QueueListRequest) (*pb.QueueListResponse, error) {
	env := envOr(req.GetEnvironmentName())
	asked := req.GetPagination()
	var items []*pb.QueueListResponse_QueueInfo
	for _, q := range page(c.s.queues.List(callerOf(ctx).Account, env), asked.GetCreatedBefore(),
		int(asked.GetMaxObjects()), func(q queues.Queue) time.Time { return q.Created }) {
		total := q.Total
		if limit := int(req.GetTotalSizeLimit()); limit > 0 {
			total = min(total, limit+1) // clients show "more than the limit"
		}
		items = append(items, pb.QueueListResponse_QueueInfo_builder{Name: q.Name, QueueId: q.ID.ID,
			CreatedAt: seconds(q.Created), NumPartitions: int32(q.Partitions), TotalSize: int32(total),
			Metadata: queueMetadata(q)}.Build())
	}
	return pb.QueueListResponse_builder{Queues: items, EnvironmentName: env}.Build(), nil
}

// QueueGetById implements ModalClient.
//
//lint:ignore ST1003 the name is the protocol's
func (c *control) QueueGetById(ctx context.Context, req *pb.QueueGetByIdRequest) (*pb.QueueGetByIdResponse, error) {
	found, err := c.s.queues.Get(queueOf(ctx, req.GetQueueId()))
	if err != nil {
		return nil, err
	}
	return pb.QueueGetByIdResponse_builder{QueueId: req.GetQueueId(), Metadata: queueMetadata(found)}.Build(), nil
}
