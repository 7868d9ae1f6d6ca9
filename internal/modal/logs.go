package modal

import (
	"context"
	"slices"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/RelevanceAI/harvest/client/errors"
)

// logLine is a line of the output of a sandbox's own command.
type logLine struct {
	of   *box
	at   time.Time
	fd   pb.FileDescriptor
	text string
}

// mostLog is how many bytes from the end of a stream are searched for logs.
const mostLog = 8 << 20

// lines returns the matching lines of b's own command, oldest first.
func (b *box) lines(ctx context.Context, source pb.FileDescriptor, search string, since,
	until *timestamppb.Timestamp) ([]logLine, error) {
	if b.main == nil {
		return nil, nil
	}
	var all []logLine
	for fd, s := range map[pb.FileDescriptor]*spool{pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT: b.main.out,
		pb.FileDescriptor_FILE_DESCRIPTOR_STDERR: b.main.err} {
		if source != pb.FileDescriptor_FILE_DESCRIPTOR_UNSPECIFIED && source != fd {
			continue
		}
		data, start, err := s.kept(ctx, mostLog)
		if err != nil {
			return nil, err
		}
		for offset := 0; offset < len(data); {
			end := len(data)
			if i := slices.Index(data[offset:], '\n'); i >= 0 {
				end = offset + i + 1
			}
			text := strings.ToValidUTF8(string(data[offset:end]), "\ufffd")
			all = append(all, logLine{b, s.at(start + int64(offset)), fd, text})
			offset = end
		}
	}
	all = slices.DeleteFunc(all, func(l logLine) bool {
		return since != nil && l.at.Before(since.AsTime()) || until != nil && !l.at.Before(until.AsTime()) ||
			search != "" && !strings.Contains(l.text, search)
	})
	slices.SortStableFunc(all, func(a, b logLine) int { return a.at.Compare(b.at) })
	return all, nil
}

// mostFetched bounds the bytes of lines in one answer.
const mostFetched = 32 << 20

// AppFetchLogs implements ModalClient. It returns the last lines up to the limit, oldest first, in a batch for each
// sequence of lines of one sandbox.
func (c *control) AppFetchLogs(ctx context.Context, req *pb.AppFetchLogsRequest) (*pb.AppFetchLogsResponse, error) {
	if req.GetFunctionId() != "" || req.GetFunctionCallId() != "" || req.GetParametrizedFunctionId() != "" {
		return nil, errors.Newf(errors.Unsupported, "%s", lacking("FunctionCall"))
	}
	lines, err := c.linesOf(ctx, logQuery{req.GetAppId(), req.GetSandboxId(), req.GetTaskId()},
		func(b *box) ([]logLine, error) {
			return b.lines(ctx, req.GetSource(), req.GetSearchText(), req.GetSince(), req.GetUntil())
		})
	if err != nil {
		return nil, err
	}
	if limit := int(req.GetLimit()); limit > 0 && len(lines) > limit {
		lines = lines[len(lines)-limit:]
	}
	size := 0
	for i, l := range slices.Backward(lines) {
		if size += len(l.text); size > mostFetched {
			lines = lines[i+1:]
			break
		}
	}
	var batches []*pb.TaskLogsBatch
	var of *box
	for _, l := range lines {
		if l.of != of {
			of = l.of
			batches = append(batches, pb.TaskLogsBatch_builder{TaskId: of.taskID(),
				SandboxId: of.sandboxID()}.Build())
		}
		batch := batches[len(batches)-1]
		batch.SetItems(append(batch.GetItems(), pb.TaskLogs_builder{Data: l.text, FileDescriptor: l.fd,
			Timestamp: seconds(l.at), TimestampNs: uint64(l.at.UnixNano())}.Build()))
	}
	return pb.AppFetchLogsResponse_builder{Batches: batches}.Build(), nil
}

// logQuery names the sandboxes whose logs are wanted: one by its ID or its task's, or all of an app.
type logQuery struct{ app, sandbox, task string }

// linesOf returns the lines of the sandboxes of a query, oldest first.
func (c *control) linesOf(ctx context.Context, q logQuery, read func(*box) ([]logLine, error)) ([]logLine, error) {
	if q.sandbox != "" || q.task != "" {
		b, err := c.loggedBox(ctx, q.sandbox, q.task)
		if err != nil {
			return nil, err
		}
		return read(b)
	}
	acc := callerOf(ctx).Account
	if _, err := c.s.apps.Get(acc, q.app); err != nil {
		return nil, err
	}
	found, err := c.s.sandboxesOf(ctx, acc, q.app, true)
	if err != nil {
		return nil, err
	}
	var all []logLine
	for _, sb := range found {
		if sb.Status.Ended() && time.Since(sb.Ended) > remembered {
			continue
		}
		b, err := c.s.boxes.get(ctx, acc, sb.ID)
		if errors.KindOf(err) == errors.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines, err := read(b)
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	slices.SortStableFunc(all, func(a, b logLine) int { return a.at.Compare(b.at) })
	return all, nil
}

func (c *control) loggedBox(ctx context.Context, id, task string) (*box, error) {
	if id == "" && task != "" {
		ref, err := boxOf(task, taskID)
		if err != nil {
			return nil, err
		}
		return c.s.boxes.get(ctx, callerOf(ctx).Account, ref)
	}
	return c.s.box(ctx, id)
}

// AppCountLogs implements ModalClient.
func (c *control) AppCountLogs(ctx context.Context, req *pb.AppCountLogsRequest) (*pb.AppCountLogsResponse, error) {
	if req.GetFunctionId() != "" || req.GetFunctionCallId() != "" || req.GetParametrizedFunctionId() != "" {
		return nil, errors.Newf(errors.Unsupported, "%s", lacking("FunctionCall"))
	}
	lines, err := c.linesOf(ctx, logQuery{req.GetAppId(), req.GetSandboxId(), req.GetTaskId()},
		func(b *box) ([]logLine, error) {
			return b.lines(ctx, req.GetSource(), req.GetSearchText(), req.GetSince(), req.GetUntil())
		})
	if err != nil {
		return nil, err
	}
	width := time.Duration(max(1, req.GetBucketSecs())) * time.Second
	var buckets []*pb.AppCountLogsResponse_LogBucket
	var last time.Time
	for _, l := range lines {
		begin := l.at.Truncate(width)
		if len(buckets) == 0 || !begin.Equal(last) {
			buckets = append(buckets,
				pb.AppCountLogsResponse_LogBucket_builder{BucketStartAt: timestamppb.New(begin)}.Build())
			last = begin
		}
		bucket := buckets[len(buckets)-1]
		if l.fd == pb.FileDescriptor_FILE_DESCRIPTOR_STDERR {
			bucket.SetStderrLogs(bucket.GetStderrLogs() + 1)
		} else {
			bucket.SetStdoutLogs(bucket.GetStdoutLogs() + 1)
		}
	}
	return pb.AppCountLogsResponse_builder{AppId: req.GetAppId(), Buckets: buckets}.Build(), nil
}
