package modal

import (
	"context"
	"crypto/rand"
	"path"
	"slices"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// Prefixes of the names of clients' temporary unnamed volumes, and of the copies for sandboxes.
const (
	looseVolume = "modal-ephemeral-"
	viewVolume  = "modal-view-"
)

// provider returns the account's volumes.
func (s *Server) provider(acc string) volume.Provider { return volume.Of(s.opts.Volumes, owner(acc)) }

// VolumeGetOrCreate implements ModalClient. The version of a volume makes no difference here.
func (c *control) VolumeGetOrCreate(ctx context.Context,
	req *pb.VolumeGetOrCreateRequest) (*pb.VolumeGetOrCreateResponse, error) {
	p := c.s.provider(callerOf(ctx).Account)
	name := ""
	switch req.GetObjectCreationType() {
	case pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL,
		pb.ObjectCreationType_OBJECT_CREATION_TYPE_ANONYMOUS_OWNED_BY_APP:
		made, err := once1(ctx, c.s, "volume", func() (string, error) {
			name := looseVolume + strings.ToLower(rand.Text())
			_, err := p.Create(context.WithoutCancel(ctx), name)
			return name, err
		})
		if err != nil {
			return nil, err
		}
		name = made
		c.s.volumes.alive(callerOf(ctx).Account, name)
	default:
		if err := errors.Join(checkName("Volume", req.GetDeploymentName()),
			checkEnv(req.GetEnvironmentName())); err != nil {
			return nil, err
		}
		name = scoped(req.GetEnvironmentName(), req.GetDeploymentName())
		if err := c.ensureVolume(ctx, p, name, req); err != nil {
			return nil, err
		}
	}
	version := req.GetVersion()
	if version == pb.VolumeFsVersion_VOLUME_FS_VERSION_UNSPECIFIED {
		version = pb.VolumeFsVersion_VOLUME_FS_VERSION_V1
	}
	id, err := c.s.ids.ID(callerOf(ctx).Account, name)
	if err != nil {
		return nil, err
	}
	return pb.VolumeGetOrCreateResponse_builder{
		VolumeId: id, Version: version, Metadata: pb.VolumeMetadata_builder{Version: version,
			Name: req.GetDeploymentName()}.Build(),
	}.Build(), nil
}

func (c *control) ensureVolume(ctx context.Context, p volume.Provider, name string,
	req *pb.VolumeGetOrCreateRequest) error {
	_, err := p.Open(ctx, name)
	switch {
	case err == nil && req.GetObjectCreationType() == pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
		return withCode(errors.Newf(errors.Conflict, "Volume '%s' already exists", req.GetDeploymentName()),
			alreadyExists)
	case errors.KindOf(err) == errors.NotFound && creates(req.GetObjectCreationType()):
		_, err = p.Create(ctx, name)
	case errors.KindOf(err) == errors.NotFound:
		err = errors.Newf(errors.NotFound, "Volume '%s' not found in environment '%s'", req.GetDeploymentName(),
			envOr(req.GetEnvironmentName()))
	}
	return err
}

// VolumeHeartbeat implements ModalClient.
func (c *control) VolumeHeartbeat(ctx context.Context, req *pb.VolumeHeartbeatRequest) (*emptypb.Empty, error) {
	name, err := c.s.ids.Name(callerOf(ctx).Account, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if _, err := c.s.provider(callerOf(ctx).Account).Open(ctx, name); err != nil {
		return nil, missing("Volume", req.GetVolumeId())
	}
	c.s.volumes.alive(callerOf(ctx).Account, name)
	return &emptypb.Empty{}, nil
}

// VolumeDelete implements ModalClient.
func (c *control) VolumeDelete(ctx context.Context, req *pb.VolumeDeleteRequest) (*emptypb.Empty, error) {
	name, err := c.s.ids.Name(callerOf(ctx).Account, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	err = c.s.provider(callerOf(ctx).Account).Delete(ctx, name)
	if errors.KindOf(err) == errors.NotFound {
		return nil, errors.Newf(errors.NotFound, "Volume '%s' not found", name)
	}
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, c.s.ids.Forget(callerOf(ctx).Account, name)
}

// VolumeList implements ModalClient.
func (c *control) VolumeList(ctx context.Context, req *pb.VolumeListRequest) (*pb.VolumeListResponse, error) {
	all, err := c.s.provider(callerOf(ctx).Account).List(ctx)
	if err != nil {
		return nil, err
	}
	prefix := scoped(req.GetEnvironmentName(), "") // "main" has all: a name with a dot may be its own
	all = slices.DeleteFunc(all, func(v volume.Info) bool {
		return !strings.HasPrefix(v.Name, prefix) || strings.HasPrefix(v.Name, viewVolume) ||
			strings.HasPrefix(v.Name, looseVolume)
	})
	asked := req.GetPagination()
	var items []*pb.VolumeListItem
	for _, v := range page(all, asked.GetCreatedBefore(), int(asked.GetMaxObjects()),
		func(v volume.Info) time.Time { return v.Created }) {
		label := strings.TrimPrefix(v.Name, prefix)
		id, err := c.s.ids.ID(callerOf(ctx).Account, v.Name)
		if err != nil {
			return nil, err
		}
		items = append(items, pb.VolumeListItem_builder{
			Label: label, VolumeId: id, CreatedAt: seconds(v.Created),
			Metadata: pb.VolumeMetadata_builder{Version: pb.VolumeFsVersion_VOLUME_FS_VERSION_V1, Name: label,
				CreationInfo: creation(v.Created)}.Build(),
		}.Build())
	}
	return pb.VolumeListResponse_builder{Items: items, EnvironmentName: envOr(req.GetEnvironmentName())}.Build(), nil
}

// subPath validates a path within a volume; "." means all of it.
func subPath(text string) (string, error) {
	clean := path.Clean("/" + text)[1:]
	if strings.Contains(text, "..") || strings.ContainsRune(text, 0) {
		return "", errors.Newf(errors.Invalid, "Invalid sub_path: %.200q", text)
	}
	if clean == "" {
		clean = "."
	}
	return clean, nil
}

// VolumeGetById implements ModalClient.
//
//lint:ignore ST1003 the name is the protocol's
func (c *control) VolumeGetById(ctx context.Context, req *pb.VolumeGetByIdRequest) (*pb.VolumeGetByIdResponse, error) {
	name, err := c.s.ids.Name(callerOf(ctx).Account, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if _, err := c.s.provider(callerOf(ctx).Account).Open(ctx, name); err != nil {
		return nil, missing("Volume", req.GetVolumeId())
	}
	return pb.VolumeGetByIdResponse_builder{VolumeId: req.GetVolumeId(), Metadata: pb.VolumeMetadata_builder{
		Version: pb.VolumeFsVersion_VOLUME_FS_VERSION_V1, Name: name}.Build()}.Build(), nil
}

// VolumeRename implements ModalClient. The volume keeps its ID.
func (c *control) VolumeRename(ctx context.Context, req *pb.VolumeRenameRequest) (*emptypb.Empty, error) {
	acc := callerOf(ctx).Account
	old, err := c.s.ids.Name(callerOf(ctx).Account, req.GetVolumeId())
	if err == nil {
		err = checkName("Volume", req.GetName())
	}
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	if env, _, ok := strings.Cut(old, "."); ok && c.s.hasApps(acc, env) {
		name = scoped(env, name)
	}
	if name == old { // such as a repeated request
		_, err := c.s.provider(acc).Open(ctx, name)
		return &emptypb.Empty{}, err
	}
	p, ok := c.s.provider(acc).(volume.Renamer)
	if !ok {
		return nil, errors.Newf(errors.Unsupported, "volumes cannot be renamed here")
	}
	if err := c.s.volumes.await(ctx); err != nil {
		return nil, err
	}
	l := c.s.volumes.lock(acc, old)
	l.Lock()
	defer l.Unlock()
	for _, b := range c.s.boxes.all() {
		if b.sees(acc, old) {
			err := errors.Newf(errors.Conflict, "Volume '%.100s' is in use by the sandbox %s", old, sandboxOf(b.id))
			return nil, errors.Remedy(err, "end the sandbox first")
		}
	}
	err = c.s.ids.Rename(acc, old, name, func() error { return p.Rename(ctx, old, name) })
	switch errors.KindOf(err) {
	case errors.NotFound:
		err = missing("Volume", req.GetVolumeId())
	case errors.Conflict:
		err = withCode(err, alreadyExists)
	}
	return &emptypb.Empty{}, err
}

// sees reports whether the sandbox has a copy of a volume that may still be committed.
func (b *box) sees(acc, name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.account == acc && slices.ContainsFunc(b.views, func(v *view) bool { return v.Volume == name })
}
