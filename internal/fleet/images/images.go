// Package images finds the images of sandboxes, and makes images of their files.
package images

import (
	"context"
	"io"
	"path"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Images are the images of an engine.
type Images struct {
	Engine  engine.Engine
	Secrets *secret.Vault // with logins for registries; may be nil
}

// Find returns the image of a plan. owner is the account of the sandbox, and holder the Holder of its record. A missing
// image is built, if it is the base image, or pulled from its registry.
func (i Images) Find(ctx context.Context, owner, holder string, p spec.Plan) (image.Image, error) {
	images := image.Of(i.Engine.Images(), account.Owner(holder))
	if owner == record.BuildAccount { // its images belong to the account that builds
		images = i.Engine.Images()
	}
	opts := image.BuildOptions{Progress: p.Progress, Credentials: i.Credentials(holder, "")}
	var img image.Image
	var err error
	if len(p.Commands) > 0 {
		img, err = images.Build(ctx, image.Spec{Base: p.Image, Commands: p.Commands}, opts)
	} else if img, err = images.Find(ctx, p.Image); errors.Is(err, errors.NotFound) {
		img, err = images.Build(ctx, image.Spec{Base: p.Image}, opts)
	}
	if errors.Is(err, errors.NotFound) {
		err = errors.Remedy(err, "name an image that \"harvest image ls\" lists, or one of a registry")
	}
	return img, err
}

// Credentials returns a function that looks up an account's login for a registry, in the secret with this name or, if
// it is "", in all secrets of the account. The user's Docker configuration is for the personal account only.
func (i Images) Credentials(owner, name string) func(context.Context, string) (image.Credential, error) {
	return func(ctx context.Context, host string) (image.Credential, error) {
		nobody := image.Credential{Anonymous: owner != account.Personal}
		if i.Secrets == nil {
			return nobody, nil
		}
		login, ok, err := i.Secrets.Registry(ctx, owner, name, host)
		switch {
		case err != nil:
			return image.Credential{}, err
		case ok:
			return image.Credential{User: login.User, Password: string(login.Password)}, nil
		case name != "":
			err := errors.Newf(errors.Invalid, "secret %s: no credentials for the registry %s", name, host)
			return image.Credential{}, errors.Remedy(err,
				"give it REGISTRY_SERVER=%s, REGISTRY_USERNAME and REGISTRY_PASSWORD", host)
		}
		return nobody, nil
	}
}

// Snapshot creates an image of the files of sb, which runs as box. name names the image, and only files below dir are
// included; both may be "".
func (i Images) Snapshot(ctx context.Context, sb record.Sandbox, box engine.Sandbox, name,
	dir string) (image.Image, error) {
	opts := image.SnapshotOptions{Path: dir}
	if name != "" {
		opts.Names = []string{name}
	}
	return i.snapshot(ctx, sb, box, opts)
}

// Suspend creates an image of the files of sb for its suspension.
func (i Images) Suspend(ctx context.Context, sb record.Sandbox, box engine.Sandbox) (image.Image, error) {
	return i.snapshot(ctx, sb, box, image.SnapshotOptions{Suspension: true})
}

func (i Images) snapshot(ctx context.Context, sb record.Sandbox, box engine.Sandbox,
	made image.SnapshotOptions) (image.Image, error) {
	imager, makes := box.(engine.Imager)
	source, ok := box.(engine.Snapshotter)
	keeper, keeps := i.Engine.Images().(image.Snapshotter)
	if !makes && !(ok && keeps) {
		return image.Image{}, errors.Newf(errors.Unsupported,
			"the engine %s does not support snapshots on this machine", i.Engine.Name())
	}
	for _, m := range sb.Volumes {
		if made.Path != "" && spec.Within(m.Path, path.Clean(made.Path)) {
			err := errors.Newf(errors.Invalid, "%.200q is on the volume %s, which is not part of snapshots", made.Path,
				m.Name)
			return image.Image{}, errors.Remedy(err, "name a directory outside of volumes; volumes outlive the sandbox")
		}
	}
	parent, err := i.Engine.Images().Find(ctx, sb.ImageID)
	if err != nil {
		return image.Image{}, errors.Wrapf(err, "find the sandbox's image")
	}
	made.Owner, made.Sandbox = account.Owner(sb.Account), sb.ID
	if makes {
		return imager.SnapshotImage(ctx, parent, made)
	}
	if rooted, ok := box.(engine.Rooted); ok {
		made.Root = rooted.Root()
	}
	return keeper.Snapshot(ctx, parent, made, func(w io.Writer) error { return source.Snapshot(ctx, made.Path, w) })
}
