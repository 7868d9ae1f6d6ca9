package modal

import (
	"context"
	"strconv"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// A sidecar is a separate sandbox of the Fleet that ends with its main sandbox, and shares a private network with it.

// sidecars returns the sidecars of b, newest first, including ended ones if all is true.
func (b *box) sidecars(ctx context.Context, all bool) ([]record.Sandbox, error) {
	return b.s.opts.Fleet.List(ctx, b.account, record.Filter{Tags: map[string]string{tagSidecar: b.id}, All: all})
}

// container returns the id of the sandbox with a container's ID: "" is the main one.
func (b *box) container(ctx context.Context, id string) (string, error) {
	if id == "" {
		return b.id, nil
	}
	ref, err := boxOf(id, containerID)
	if err != nil {
		return "", err
	}
	if ref == b.id {
		return ref, nil
	}
	sb, err := b.s.opts.Fleet.Get(ctx, b.account, ref)
	if err != nil || sb.Tags[tagSidecar] != b.id {
		return "", missing("Container", id)
	}
	return ref, nil
}

// endSidecars ends the sidecars of an ended sandbox and reports whether all have ended.
func (s *Server) endSidecars(ctx context.Context, b *box) bool {
	found, err := b.sidecars(ctx, false)
	if err != nil {
		logf.Errorf(ctx, "look for the sidecars of %s: %v", b.id, err)
	}
	ended := err == nil
	for _, sb := range found {
		if err := s.opts.Fleet.Destroy(ctx, b.account, sb.ID); err != nil {
			logf.Errorf(ctx, "end the sidecar %s: %v", sb.ID, err)
			ended = false
		}
	}
	return ended
}

// SandboxContainerCreateV2 implements ModalClient.
func (c *control) SandboxContainerCreateV2(ctx context.Context,
	req *pb.SandboxContainerCreateV2Request) (*pb.SandboxContainerCreateV2Response, error) {
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	sources := req.GetSecretSources()
	if m := req.GetEphemeralSecrets().GetContents(); len(m) > 0 {
		sources = append(sources[:len(sources):len(sources)],
			pb.SecretSource_builder{Env: pb.StringMap_builder{Contents: m}.Build()}.Build())
	}
	made, err := c.s.addSidecar(ctx, b, req.GetContainerName(), plan{def: req.GetDefinition(), sources: sources})
	if err != nil {
		return nil, err
	}
	return pb.SandboxContainerCreateV2Response_builder{ContainerId: containerID + ulidOf(made.id),
		ContainerName: req.GetContainerName()}.Build(), nil
}

// TaskContainerCreate implements TaskCommandRouter.
func (r *router) TaskContainerCreate(ctx context.Context,
	req *pb.TaskContainerCreateRequest) (*pb.TaskContainerCreateResponse, error) {
	b, err := r.box(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	dir := req.GetWorkdir()
	def := pb.Sandbox_builder{
		ImageId: req.GetImageId(), EntrypointArgs: req.GetArgs(), Workdir: &dir, SecretIds: req.GetSecretIds(),
		VolumeMounts:  req.GetVolumeMounts(),
		NetworkAccess: req.GetNetworkAccess(), PtyInfo: req.GetPtyInfo(),
		EnvironmentVariables: pb.StringMap_builder{Contents: req.GetEnv()}.Build(),
	}.Build()
	made, err := r.s.addSidecar(ctx, b, req.GetContainerName(), plan{def: def, sources: req.GetSecretSources()})
	if err != nil {
		return nil, err
	}
	return pb.TaskContainerCreateResponse_builder{ContainerId: containerID + ulidOf(made.id),
		ContainerName: req.GetContainerName()}.Build(), nil
}

// addSidecar creates a sidecar, once for each idempotency key.
func (s *Server) addSidecar(ctx context.Context, b *box, name string, p plan) (*box, error) {
	return s.makeOnce(ctx, "sidecar "+b.id, func(ctx context.Context, _, key string) (*box, error) {
		p.key, p.main = key, b
		return s.makeSidecar(ctx, b, name, p)
	})
}

// makeSidecar creates a sidecar. Its name is free again after its end.
func (s *Server) makeSidecar(ctx context.Context, b *box, name string, p plan) (*box, error) {
	if err := checkName("container", name); err != nil {
		return nil, err
	}
	if name == mainSandbox {
		return nil, errors.Newf(errors.Invalid, "the name %q is reserved for the Sandbox's main container", mainSandbox)
	}
	if p.def == nil {
		return nil, errors.Newf(errors.Invalid, "the sidecar has no definition")
	}
	s.naming.Lock()
	defer s.naming.Unlock()
	parent, err := s.opts.Fleet.Get(ctx, b.account, b.id)
	if err != nil {
		return nil, err
	}
	if parent.Status != record.Running {
		return nil, withCode(errors.Newf(errors.Gone, "the sandbox has ended"), notFound)
	}
	running, err := b.sidecars(ctx, false)
	if err != nil {
		return nil, err
	}
	for _, sb := range running {
		if sb.Tags[tagName] == name && sb.Status != record.Stopping {
			return nil, withCode(errors.Newf(errors.Conflict, "Container with name '%s' already exists", name),
				alreadyExists)
		}
	}
	if blockedBy(p.def) {
		return nil, errors.Remedy(errors.Newf(errors.Invalid,
			"the network of a sidecar cannot be blocked, since it reaches the sandbox through it"),
			"allow no targets instead: an empty list of CIDRs")
	}
	number, err := freeNumber(running)
	if err != nil {
		return nil, err
	}
	req, err := request(p.def)
	if err != nil {
		return nil, err
	}
	req.TimeoutSeconds = limitOf(parent).Seconds()
	req.Tags = map[string]string{tagSidecar: b.id, tagName: name, tagNumber: strconv.Itoa(number)}
	if p.key != "" {
		req.Tags[tagKey] = p.key
	}
	return s.open(ctx, b.account, p, req)
}

// containerInfo describes a sidecar to clients.
func (s *Server) containerInfo(ctx context.Context, sb record.Sandbox) (*pb.TaskContainerInfo, error) {
	b, err := s.boxes.get(ctx, sb.Account, sb.ID)
	if err != nil {
		return nil, err
	}
	result, status := b.outcome(ctx, 0), "running"
	if result != nil {
		status = "terminated"
	}
	return pb.TaskContainerInfo_builder{ContainerId: containerID + ulidOf(sb.ID), ContainerName: sb.Tags[tagName],
		Status: status, Result: result}.Build(), nil
}

// TaskContainerList implements TaskCommandRouter.
func (r *router) TaskContainerList(ctx context.Context,
	req *pb.TaskContainerListRequest) (*pb.TaskContainerListResponse, error) {
	b, err := r.box(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	found, err := r.s.infos(ctx, b, req.GetIncludeTerminated())
	return pb.TaskContainerListResponse_builder{Containers: found}.Build(), err
}

// infos describes the sidecars of b, newest first.
func (s *Server) infos(ctx context.Context, b *box, all bool) ([]*pb.TaskContainerInfo, error) {
	found, err := b.sidecars(ctx, all)
	if err != nil {
		return nil, err
	}
	var list []*pb.TaskContainerInfo
	for _, sb := range found {
		info, err := s.containerInfo(ctx, sb)
		if err != nil {
			return nil, err
		}
		if all || info.GetResult() == nil {
			list = append(list, info)
		}
	}
	return list, nil
}

// TaskContainerGet implements TaskCommandRouter.
func (r *router) TaskContainerGet(ctx context.Context,
	req *pb.TaskContainerGetRequest) (*pb.TaskContainerGetResponse, error) {
	b, err := r.box(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	found, err := r.s.infos(ctx, b, req.GetIncludeTerminated())
	if err != nil {
		return nil, err
	}
	for _, info := range found {
		if info.GetContainerName() == req.GetContainerName() {
			return pb.TaskContainerGetResponse_builder{Container: info}.Build(), nil
		}
	}
	return nil, missing("Container", req.GetContainerName())
}

// TaskContainerWait implements TaskCommandRouter.
func (r *router) TaskContainerWait(ctx context.Context,
	req *pb.TaskContainerWaitRequest) (*pb.TaskContainerWaitResponse, error) {
	b, err := r.target(ctx, req.GetTaskId(), req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return pb.TaskContainerWaitResponse_builder{Result: b.outcome(ctx, wait(req.GetTimeout()))}.Build(), nil
}

// TaskContainerTerminate implements TaskCommandRouter.
func (r *router) TaskContainerTerminate(ctx context.Context,
	req *pb.TaskContainerTerminateRequest) (*pb.TaskContainerTerminateResponse, error) {
	b, err := r.target(ctx, req.GetTaskId(), req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &pb.TaskContainerTerminateResponse{}, b.terminate(ctx)
}

// terminate ends a sandbox at its client's request. It is idempotent.
func (b *box) terminate(ctx context.Context) error {
	if b.outcome(ctx, 0) != nil {
		return nil
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.write(ctx, note{Stopped: true})
	return b.s.opts.Fleet.Destroy(context.WithoutCancel(ctx), b.account, b.id)
}
