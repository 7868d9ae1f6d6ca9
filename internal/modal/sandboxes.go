package modal

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// python is the client type of the Python SDK, which uses TLS for "https" on the loopback interface. The other
// SDKs do not.
const python = "1"

// routerURL returns the URL of the router for a client.
func (s *Server) routerURL(ctx context.Context) string {
	if s.opts.URL != "" {
		return s.opts.URL
	}
	c := callerOf(ctx)
	host := c.host
	if host == "" {
		s.mu.Lock()
		host = s.addr.String()
		s.mu.Unlock()
	}
	name, _, err := net.SplitHostPort(host)
	ip := net.ParseIP(name)
	if c.client == python && err == nil && (name == "localhost" || ip != nil && ip.IsLoopback()) {
		return "http://" + host
	}
	return "https://" + host
}

// routerAccess returns the router's URL and a token for the client of a new sandbox.
func (s *Server) routerAccess(ctx context.Context, b *box) (*pb.CommandRouterAccess, error) {
	jwt, err := s.sign(callerOf(ctx), b.id)
	if err != nil {
		return nil, err
	}
	return pb.CommandRouterAccess_builder{Jwt: jwt, Url: s.routerURL(ctx)}.Build(), nil
}

// box returns the caller's sandbox with that ID.
func (s *Server) box(ctx context.Context, id string) (*box, error) {
	ref, err := boxOf(id, sandboxID)
	if err != nil {
		return nil, err
	}
	return s.boxes.get(ctx, callerOf(ctx).Account, ref)
}

// sandbox returns the caller's sandbox with that ID, and its record.
func (s *Server) sandbox(ctx context.Context, id string) (*box, record.Sandbox, error) {
	b, err := s.box(ctx, id)
	if err != nil {
		return nil, record.Sandbox{}, err
	}
	sb, err := s.opts.Fleet.Get(ctx, b.account, b.id)
	return b, sb, err
}

func wait(timeout float32) time.Duration {
	return time.Duration(min(max(float64(timeout), 0), 600) * float64(time.Second))
}

// SandboxWaitV2 implements ModalClient.
func (c *control) SandboxWaitV2(ctx context.Context, req *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	b, sb, err := c.s.sandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	result := b.outcome(ctx, wait(req.GetTimeout()))
	return pb.SandboxWaitResponse_builder{Result: result, Metadata: pb.SandboxHandleMetadata_builder{Result: result,
		AppId: appIDOf(sb.Tags[tagEnv], sb.Tags[tagApp])}.Build()}.Build(), nil
}

// SandboxWait implements ModalClient.
func (c *control) SandboxWait(ctx context.Context, req *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	return c.SandboxWaitV2(ctx, req)
}

// SandboxTerminateV2 implements ModalClient.
func (c *control) SandboxTerminateV2(ctx context.Context,
	req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if result := b.outcome(ctx, 0); result != nil {
		return pb.SandboxTerminateResponse_builder{ExistingResult: result}.Build(), nil
	}
	return &pb.SandboxTerminateResponse{}, b.terminate(ctx)
}

// SandboxTerminate implements ModalClient.
func (c *control) SandboxTerminate(ctx context.Context,
	req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	return c.SandboxTerminateV2(ctx, req)
}

// SandboxGetTaskIdV2 implements ModalClient.
//
//lint:ignore ST1003 the name is the protocol's
func (c *control) SandboxGetTaskIdV2(ctx context.Context,
	req *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	id := b.taskID()
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &id, TaskResult: b.outcome(ctx, 0)}.Build(), nil
}

// SandboxGetTaskId implements ModalClient.
//
//lint:ignore ST1003 the name is the protocol's
func (c *control) SandboxGetTaskId(ctx context.Context,
	req *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	return c.SandboxGetTaskIdV2(ctx, req)
}

// SandboxGetCommandRouterAccess implements ModalClient.
func (c *control) SandboxGetCommandRouterAccess(ctx context.Context,
	req *pb.SandboxGetCommandRouterAccessRequest) (*pb.SandboxGetCommandRouterAccessResponse, error) {
	id, prefix := req.GetSandboxId(), sandboxID
	if req.GetTaskId() != "" {
		id, prefix = req.GetTaskId(), taskID
	}
	jwt, err := c.access(ctx, id, prefix)
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetCommandRouterAccessResponse_builder{Jwt: jwt, Url: c.s.routerURL(ctx)}.Build(), nil
}

// TaskGetCommandRouterAccess implements ModalClient.
func (c *control) TaskGetCommandRouterAccess(ctx context.Context,
	req *pb.TaskGetCommandRouterAccessRequest) (*pb.TaskGetCommandRouterAccessResponse, error) {
	jwt, err := c.access(ctx, req.GetTaskId(), taskID)
	if err != nil {
		return nil, err
	}
	return pb.TaskGetCommandRouterAccessResponse_builder{Jwt: jwt, Url: c.s.routerURL(ctx)}.Build(), nil
}

func (c *control) access(ctx context.Context, id, prefix string) (string, error) {
	ref, err := boxOf(id, prefix)
	if err != nil {
		return "", err
	}
	b, err := c.s.boxes.get(ctx, callerOf(ctx).Account, ref)
	if err != nil {
		return "", err
	}
	return c.s.sign(callerOf(ctx), b.id)
}

// SandboxListV2 implements ModalClient.
func (c *control) SandboxListV2(ctx context.Context, req *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	tags, err := tagsOf(req.GetTags())
	if err != nil {
		return nil, err
	}
	if id := req.GetAppId(); id != "" {
		own, err := appTags(id)
		if err != nil {
			return nil, err
		}
		maps.Copy(tags, own)
	} else if req.GetEnvironmentName() != "" {
		tags[tagEnv] = req.GetEnvironmentName()
	}
	all, err := c.s.opts.Fleet.List(ctx, callerOf(ctx).Account,
		record.Filter{Tags: tags, All: req.GetIncludeFinished()})
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(sb record.Sandbox) bool {
		return sb.Tags[tagApp] == "" || sb.Tags[tagSidecar] != "" || sb.Status == record.Creating ||
			sb.Status == record.Stopping
	})
	var list []*pb.SandboxInfo
	for _, sb := range page(all, req.GetBeforeTimestamp(), pageSize,
		func(sb record.Sandbox) time.Time { return sb.Created }) {
		list = append(list, infoOf(sb))
	}
	return pb.SandboxListResponse_builder{Sandboxes: list}.Build(), nil
}

// SandboxList implements ModalClient.
func (c *control) SandboxList(ctx context.Context, req *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	return c.SandboxListV2(ctx, req)
}

func infoOf(sb record.Sandbox) *pb.SandboxInfo {
	idle := uint32(sb.IdleTimeoutSeconds)
	return pb.SandboxInfo_builder{
		Id: sandboxIDOf(sb), CreatedAt: seconds(sb.Created), AppId: appIDOf(sb.Tags[tagEnv], sb.Tags[tagApp]),
		Tags: shownTags(sb.Tags), Name: sb.Tags[tagName],
		TimeoutSecs: uint32(sb.Expires.Sub(sb.Started).Seconds()), IdleTimeoutSecs: &idle,
		TaskInfo: pb.TaskInfo_builder{Id: taskIDOf(sb), StartedAt: seconds(sb.Started),
			EnqueuedAt: seconds(sb.Created)}.Build(),
	}.Build()
}

// SandboxGetFromNameV2 implements ModalClient.
func (c *control) SandboxGetFromNameV2(ctx context.Context,
	req *pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse, error) {
	tags := map[string]string{tagApp: req.GetAppName(), tagEnv: envOr(req.GetEnvironmentName()),
		tagName: req.GetSandboxName()}
	all, err := c.s.opts.Fleet.List(ctx, callerOf(ctx).Account,
		record.Filter{Tags: tags, All: req.GetIncludeTerminated()})
	if err != nil {
		return nil, err
	}
	for _, sb := range all { // newest first
		if sb.Status != record.Stopping || req.GetIncludeTerminated() {
			return pb.SandboxGetFromNameResponse_builder{
				SandboxId: sandboxIDOf(sb), Metadata: pb.SandboxHandleMetadata_builder{AppId: appIDOf(sb.Tags[tagEnv],
					sb.Tags[tagApp])}.Build(),
			}.Build(), nil
		}
	}
	return nil, errors.Newf(errors.NotFound, "Sandbox with name '%.80s' not found in app '%.80s'", req.GetSandboxName(),
		req.GetAppName())
}

// SandboxGetFromName implements ModalClient.
func (c *control) SandboxGetFromName(ctx context.Context,
	req *pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse, error) {
	return c.SandboxGetFromNameV2(ctx, req)
}

// SandboxTagsSetV2 implements ModalClient. The tags replace the existing ones.
func (c *control) SandboxTagsSetV2(ctx context.Context, req *pb.SandboxTagsSetRequest) (*emptypb.Empty, error) {
	tags, err := tagsOf(req.GetTags())
	if err != nil {
		return nil, err
	}
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	_, err = c.s.opts.Fleet.SetTags(ctx, b.account, b.id, func(now map[string]string) error {
		for name := range now {
			if !strings.HasPrefix(name, ownTag) {
				delete(now, name)
			}
		}
		for name, value := range tags {
			now[name] = value
		}
		return nil
	})
	return &emptypb.Empty{}, err
}

// SandboxTagsSet implements ModalClient.
func (c *control) SandboxTagsSet(ctx context.Context, req *pb.SandboxTagsSetRequest) (*emptypb.Empty, error) {
	return c.SandboxTagsSetV2(ctx, req)
}

// SandboxTagsGetV2 implements ModalClient.
func (c *control) SandboxTagsGetV2(ctx context.Context,
	req *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	_, sb, err := c.s.sandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxTagsGetResponse_builder{Tags: shownTags(sb.Tags)}.Build(), nil
}

// SandboxTagsGet implements ModalClient.
func (c *control) SandboxTagsGet(ctx context.Context,
	req *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	return c.SandboxTagsGetV2(ctx, req)
}

// SandboxSetName implements ModalClient.
func (c *control) SandboxSetName(ctx context.Context,
	req *pb.SandboxSetNameRequest) (*pb.SandboxSetNameResponse, error) {
	if err := checkName("Sandbox", req.GetName()); err != nil {
		return nil, err
	}
	b, sb, err := c.s.sandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	c.s.naming.Lock()
	defer c.s.naming.Unlock()
	if err := c.s.free(ctx, b.account, sb.Tags[tagEnv], sb.Tags[tagApp], req.GetName(), sb.ID); err != nil {
		return nil, err
	}
	_, err = c.s.opts.Fleet.SetTags(ctx, b.account, b.id, func(tags map[string]string) error {
		tags[tagName] = req.GetName()
		return nil
	})
	return &pb.SandboxSetNameResponse{}, err
}

// owner returns the mark of an account's volumes and images.
func owner(acc string) string { return account.Owner(acc) }
