package modal

import (
	"context"
	"strings"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/modal/apps"
)

// ImageGetByTag implements ModalClient. It finds images by their published names and by the names given with
// Harvest's command line.
func (c *control) ImageGetByTag(ctx context.Context, req *pb.ImageGetByTagRequest) (*pb.ImageGetByTagResponse, error) {
	acc := callerOf(ctx).Account
	images := c.s.images(acc)
	var err error
	for _, name := range []string{scoped(req.GetEnvironmentName(), req.GetTag()), req.GetTag(),
		strings.TrimSuffix(req.GetTag(), ":latest")} {
		var img image.Image
		if img, err = images.Find(ctx, name); err == nil {
			id := plainImage(img.ID)
			return pb.ImageGetByTagResponse_builder{ImageId: id}.Build(), c.s.apps.Undelete(acc, id)
		}
		if errors.KindOf(err) != errors.NotFound && errors.KindOf(err) != errors.Invalid {
			return nil, err
		}
	}
	return nil, errors.Newf(errors.NotFound, "Image '%.100s' not found", req.GetTag())
}

// ImagePublish implements ModalClient.
func (c *control) ImagePublish(ctx context.Context, req *pb.ImagePublishRequest) (*pb.ImagePublishResponse, error) {
	acc := callerOf(ctx).Account
	img, err := c.s.findImage(ctx, acc, req.GetImageId())
	if err != nil {
		return nil, err
	}
	if img.Snapshot != nil {
		err := errors.Newf(errors.Unsupported, "this server does not publish snapshots under a name")
		return nil, errors.Remedy(err, "keep the snapshot's ID, or name it with: harvest sandbox snapshot --name")
	}
	name := scoped(req.GetEnvironmentName(), req.GetTag())
	if err := image.CheckName(name); err != nil {
		return nil, err
	}
	// The image exists: only its name is new.
	if _, err := c.s.images(acc).Build(ctx, img.Spec, image.BuildOptions{Names: []string{name}}); err != nil {
		return nil, err
	}
	return pb.ImagePublishResponse_builder{ImageId: req.GetImageId(),
		RevisionId: "re-" + strings.TrimPrefix(req.GetImageId(), imageID)}.Build(), nil
}

// A proxy is the outgoing address of a sandbox. Here it is this machine's own address, whatever the proxy's
// name.

// ProxyCreate implements ModalClient.
func (c *control) ProxyCreate(ctx context.Context, req *pb.ProxyCreateRequest) (*pb.ProxyCreateResponse, error) {
	if err := errors.Join(checkName("Proxy", req.GetName()), checkEnv(req.GetEnvironmentName())); err != nil {
		return nil, err
	}
	made := namedApp(callerOf(ctx).Account, req.GetEnvironmentName(), req.GetName())
	made.ID, made.Proxy = named(proxyID, made.Env+"/"+made.Name), true
	if _, err := c.s.apps.Ensure(made, true); err != nil {
		return nil, err
	}
	return pb.ProxyCreateResponse_builder{Proxy: proxyOf(made)}.Build(), nil
}

func proxyOf(made apps.App) *pb.Proxy {
	return pb.Proxy_builder{Name: made.Name, EnvironmentName: made.Env, ProxyId: named(proxyID, made.Env+"/"+made.Name),
		CreatedAt: seconds(made.Created)}.Build()
}

// ProxyGet implements ModalClient.
func (c *control) ProxyGet(ctx context.Context, req *pb.ProxyGetRequest) (*pb.ProxyGetResponse, error) {
	for _, made := range c.s.apps.List(callerOf(ctx).Account, true) {
		if made.Name == req.GetName() && made.Env == envOr(req.GetEnvironmentName()) {
			return pb.ProxyGetResponse_builder{Proxy: proxyOf(made)}.Build(), nil
		}
	}
	return nil, errors.Newf(errors.NotFound, "Proxy '%.80s' not found", req.GetName())
}

// ProxyList implements ModalClient.
func (c *control) ProxyList(ctx context.Context, _ *emptypb.Empty) (*pb.ProxyListResponse, error) {
	var list []*pb.Proxy
	for _, made := range c.s.apps.List(callerOf(ctx).Account, true) {
		list = append(list, proxyOf(made))
	}
	return pb.ProxyListResponse_builder{Proxies: list}.Build(), nil
}
