package modalapi

import (
	"context"
	"slices"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/RelevanceAI/harvest/errors"
)

// logLine is a line of the output of a sandbox's own command.
type logLine struct {
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
			all = append(all, logLine{s.at(start + int64(offset)), fd, string(data[offset:end])})
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

// AppFetchLogs implements ModalClient, for sandboxes. It returns the last lines up to the limit.
func (c *control) AppFetchLogs(ctx context.Context, req *pb.AppFetchLogsRequest) (*pb.AppFetchLogsResponse, error) {
	b, err := c.loggedBox(ctx, req.GetSandboxId(), req.GetTaskId())
	if err != nil {
		return nil, err
	}
	lines, err := b.lines(ctx, req.GetSource(), req.GetSearchText(), req.GetSince(), req.GetUntil())
	if err != nil {
		return nil, err
	}
	if limit := int(req.GetLimit()); limit > 0 && len(lines) > limit {
		lines = lines[len(lines)-limit:]
	}
	var items []*pb.TaskLogs
	for _, l := range lines {
		items = append(items, pb.TaskLogs_builder{Data: l.text, FileDescriptor: l.fd, Timestamp: seconds(l.at),
			TimestampNs: uint64(l.at.UnixNano())}.Build())
	}
	if len(items) == 0 {
		return &pb.AppFetchLogsResponse{}, nil
	}
	return pb.AppFetchLogsResponse_builder{Batches: []*pb.TaskLogsBatch{
		pb.TaskLogsBatch_builder{TaskId: taskOf(b.id), SandboxId: sandboxOf(b.id), Items: items}.Build(),
	}}.Build(), nil
}

func (c *control) loggedBox(ctx context.Context, id, task string) (*box, error) {
	if id == "" && task != "" {
		ref, err := boxOf(task, taskID)
		if err != nil {
			return nil, err
		}
		return c.s.boxes.get(ctx, callerOf(ctx).Account, ref)
	}
	if id == "" {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "there are logs of sandboxes only"), "Name a sandbox")
	}
	return c.s.box(ctx, id)
}

// AppCountLogs implements ModalClient, for sandboxes.
func (c *control) AppCountLogs(ctx context.Context, req *pb.AppCountLogsRequest) (*pb.AppCountLogsResponse, error) {
	b, err := c.loggedBox(ctx, req.GetSandboxId(), req.GetTaskId())
	if err != nil {
		return nil, err
	}
	lines, err := b.lines(ctx, req.GetSource(), req.GetSearchText(), req.GetSince(), req.GetUntil())
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
