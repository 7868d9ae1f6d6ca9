package modal

import (
	"context"
	"slices"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/modal/apps"
)

// AppGetLifecycle implements ModalClient.
func (c *control) AppGetLifecycle(ctx context.Context,
	req *pb.AppGetLifecycleRequest) (*pb.AppGetLifecycleResponse, error) {
	a, err := c.s.apps.Get(callerOf(ctx).Account, req.GetAppId())
	if err != nil {
		return nil, err
	}
	return pb.AppGetLifecycleResponse_builder{Lifecycle: lifecycleOf(a)}.Build(), nil
}

// AppGetInfo implements ModalClient.
func (c *control) AppGetInfo(ctx context.Context, req *pb.AppGetInfoRequest) (*pb.AppGetInfoResponse, error) {
	a, err := c.s.apps.Get(callerOf(ctx).Account, req.GetAppId())
	if err != nil {
		return nil, err
	}
	return pb.AppGetInfoResponse_builder{Info: appMetadata(a)}.Build(), nil
}

// AppGetLayout implements ModalClient. The layout is empty: apps have neither functions nor classes here.
func (c *control) AppGetLayout(ctx context.Context, req *pb.AppGetLayoutRequest) (*pb.AppGetLayoutResponse, error) {
	if _, err := c.s.apps.Get(callerOf(ctx).Account, req.GetAppId()); err != nil {
		return nil, err
	}
	return pb.AppGetLayoutResponse_builder{AppLayout: &pb.AppLayout{}}.Build(), nil
}

// AppGetTags implements ModalClient.
func (c *control) AppGetTags(ctx context.Context, req *pb.AppGetTagsRequest) (*pb.AppGetTagsResponse, error) {
	a, err := c.s.apps.Get(callerOf(ctx).Account, req.GetAppId())
	if err != nil {
		return nil, err
	}
	return pb.AppGetTagsResponse_builder{Tags: a.Tags}.Build(), nil
}

// AppSetTags implements ModalClient.
func (c *control) AppSetTags(ctx context.Context, req *pb.AppSetTagsRequest) (*emptypb.Empty, error) {
	_, err := c.s.apps.Change(callerOf(ctx).Account, req.GetAppId(), func(a apps.App) (apps.App, error) {
		a.Tags = req.GetTags()
		return a, nil
	})
	return &emptypb.Empty{}, err
}

// AppDeploymentHistory implements ModalClient. The newest deployment comes first.
func (c *control) AppDeploymentHistory(ctx context.Context,
	req *pb.AppDeploymentHistoryRequest) (*pb.AppDeploymentHistoryResponse, error) {
	a, err := c.s.apps.Get(callerOf(ctx).Account, req.GetAppId())
	if err != nil {
		return nil, err
	}
	var items []*pb.AppDeploymentHistory
	for _, v := range slices.Backward(a.Versions) {
		item := pb.AppDeploymentHistory_builder{AppId: a.ID, Version: v.Number, ClientVersion: v.Client,
			DeployedAt: seconds(v.At), DeployedBy: v.By, Tag: v.Tag}
		if len(v.Commit) > 0 {
			item.CommitInfo = &pb.CommitInfo{}
			if err := proto.Unmarshal(v.Commit, item.CommitInfo); err != nil {
				return nil, errors.Wrapf(err, "decode the commit of a deployment")
			}
		}
		items = append(items, item.Build())
	}
	return pb.AppDeploymentHistoryResponse_builder{AppDeploymentHistories: items,
		ProductionAppVersion: a.Last().Number}.Build(), nil
}

// A task is a running sandbox, without its sidecars.

// TaskList implements ModalClient.
func (c *control) TaskList(ctx context.Context, req *pb.TaskListRequest) (*pb.TaskListResponse, error) {
	acc, tags := callerOf(ctx).Account, map[string]string{}
	if id := req.GetAppId(); id != "" {
		if _, err := c.s.apps.Get(acc, id); err != nil {
			return nil, err
		}
		var err error
		if tags, err = appTags(id); err != nil {
			return nil, err
		}
	}
	if env := req.GetEnvironmentName(); env != "" {
		tags[tagEnv] = env
	}
	found, err := c.s.opts.Fleet.List(ctx, acc, record.Filter{Tags: tags})
	if err != nil {
		return nil, err
	}
	var tasks []*pb.TaskStats
	for _, sb := range found {
		if sb.Tags[tagApp] == "" || sb.Tags[tagSidecar] != "" {
			continue
		}
		id := appIDOf(sb.Tags[tagEnv], sb.Tags[tagApp])
		label := sb.Tags[tagApp]
		if a, err := c.s.apps.Get(acc, id); err == nil {
			label = a.Label()
		}
		tasks = append(tasks, pb.TaskStats_builder{TaskId: taskIDOf(sb), AppId: id, AppDescription: label,
			StartedAt: secondsOrZero(sb.Started), EnqueuedAt: seconds(sb.Created)}.Build())
	}
	return pb.TaskListResponse_builder{Tasks: tasks}.Build(), nil
}

// task returns the caller's sandbox with a task's ID. Modal's command line also passes the ID of the sandbox.
func (c *control) task(ctx context.Context, id string) (*box, error) {
	ref, err := boxOf(id, taskID)
	if err != nil {
		if ref, err = boxOf(id, sandboxID); err != nil {
			return nil, missing("Task", id)
		}
	}
	return c.s.boxes.get(ctx, callerOf(ctx).Account, ref)
}

// TaskGetInfo implements ModalClient.
func (c *control) TaskGetInfo(ctx context.Context, req *pb.TaskGetInfoRequest) (*pb.TaskGetInfoResponse, error) {
	b, err := c.task(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	sb, err := c.s.opts.Fleet.Get(ctx, b.account, b.id)
	if err != nil {
		return nil, err
	}
	return pb.TaskGetInfoResponse_builder{AppId: appIDOf(sb.Tags[tagEnv], sb.Tags[tagApp]),
		Info: pb.TaskInfo_builder{Id: b.taskID(), SandboxId: b.sandboxID(), EnqueuedAt: seconds(sb.Created),
			StartedAt: secondsOrZero(sb.Started), FinishedAt: secondsOrZero(sb.Ended), Result: b.outcome(ctx,
				0)}.Build(),
	}.Build(), nil
}

// ContainerStop implements ModalClient. It terminates the sandbox.
func (c *control) ContainerStop(ctx context.Context, req *pb.ContainerStopRequest) (*pb.ContainerStopResponse, error) {
	b, err := c.task(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return &pb.ContainerStopResponse{}, b.terminate(ctx)
}
