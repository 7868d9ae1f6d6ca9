package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/engine/modal/uses"
	"github.com/RelevanceAI/harvest/internal/image"
)

// images builds images at Modal, and records them on this machine.
type images struct {
	e       *Engine
	records records.Images
	uses    uses.Set // by ID
}

// Build implements image.Builder.
func (i *images) Build(ctx context.Context, spec image.Spec, opts image.BuildOptions) (image.Image, error) {
	if err := checkNames(opts.Names); err != nil {
		return image.Image{}, err
	}
	anew := opts.Force || opts.Pull == image.PullAlways
	plain := len(spec.Commands) == 0 && spec.Dockerfile == ""
	if known, err := i.owned(ctx, spec.Owner, spec.Base); err == nil && plain && !(anew && pulled(known, spec.Base)) {
		return i.records.Named(known, opts.Names)
	}
	digest, err := digestOfSpec(spec, i.e.opts.Image)
	if err != nil {
		return image.Image{}, err
	}
	if known, err := i.records.Find(digest); err == nil && !anew {
		return i.records.Named(known, opts.Names)
	}
	from, err := i.source(ctx, spec, opts)
	if err != nil {
		return image.Image{}, err
	}
	begin := time.Now()
	if opts.Progress != nil {
		opts.Progress(image.Progress{Step: "build"})
	}
	built, err := call.Attempt(ctx, ctx, i.e.patience.Build, "build an image",
		func(ctx context.Context) (*sdk.Image, error) {
			return from.Build(context.WithValue(ctx, anewKey{}, anew), i.e.apps.own, nil)
		})
	if err != nil {
		return image.Image{}, buildError(err, spec)
	}
	r := records.Image{Modal: built.ImageID, Image: image.Image{
		ID: "img_" + strings.TrimPrefix(digest, "sha256:")[:16], Digest: digest, Spec: spec, Built: time.Now(),
		BuildTime: time.Since(begin),
		Names:     []string{}, Parts: []image.Part{}, Missing: []image.Part{},
	}}
	if spec.Base != "" && len(spec.Commands) == 0 {
		r.Names = append(r.Names, spec.Base)
	}
	return i.records.Named(r, opts.Names)
}

// pulled reports whether an image is a plain registry image of that name, so that a newer one can be pulled.
func pulled(r records.Image, name string) bool {
	return r.Spec.Base == name && len(r.Spec.Commands) == 0 && r.Spec.Dockerfile == "" && r.Snapshot == nil
}

// anewKey is the context key that requests a fresh pull of a registry image, for which the SDK has no
// parameter.
type anewKey struct{}

// fetchAnew makes Modal pull a registry image again if the context requests it. The SDK has a parameter for
// images that are built on top of it.
func fetchAnew(ctx context.Context, req any) {
	r, ok := req.(*pb.ImageGetOrCreateRequest)
	if anew, _ := ctx.Value(anewKey{}).(bool); ok && anew && len(r.GetImage().GetBaseImages()) == 0 {
		r.SetForceBuild(true)
	}
}

// buildError explains why a build failed. It includes the output of the build steps.
func buildError(err error, spec image.Spec) error {
	var remote sdk.RemoteError
	if errors.As(err, &remote) {
		return errors.Stage(errors.Explainf(err, errors.Invalid, "Modal could not build the image: %.1500s",
			remote.Exception), "build")
	}
	if errors.KindOf(err) == errors.NotFound {
		return errors.Stage(errors.Explainf(err, errors.NotFound, "there is no image %.200q", spec.Base), "build")
	}
	return errors.Stage(err, "build")
}

// source translates a build into the SDK's image.
func (i *images) source(ctx context.Context, spec image.Spec, opts image.BuildOptions) (*sdk.Image, error) {
	unsupported := func(what string) error {
		return errors.Remedy(errors.Newf(errors.Unsupported, "the engine modal does not build images %s", what),
			"build it elsewhere, push it to a registry, and name that image")
	}
	switch {
	case spec.Context != "" || opts.Context != "":
		return nil, unsupported("with files of this machine")
	case len(opts.Secrets) > 0:
		return nil, unsupported("with secrets")
	case len(spec.Args) > 0 || spec.Target != "":
		return nil, unsupported("with build arguments or a target")
	case spec.Parent != "" || spec.Layer != "":
		return nil, unsupported("of snapshots")
	case spec.Platform != "" && spec.Platform != "linux/amd64":
		return nil, unsupported("for " + spec.Platform)
	case spec.Base == agentImage:
		return nil, errors.Remedy(errors.Newf(errors.NotFound,
			"the engine modal has no image %q: it is built of files of this machine", agentImage),
			"name an image of a registry that has the agents, such as one that `harvest image export` wrote and "+
				"podman has pushed there")
	}
	base, commands := spec.Base, slices.Clone(spec.Commands)
	if spec.Dockerfile != "" {
		first, rest, err := splitDockerfile(spec.Dockerfile)
		if err != nil {
			return nil, err
		}
		base, commands = first, append(rest, commands...)
	}
	from, err := i.from(ctx, spec.Owner, base, opts)
	if err != nil || len(commands) == 0 {
		return from, err
	}
	return from.DockerfileCommands(commands, &sdk.ImageDockerfileCommandsParams{ForceBuild: opts.Force}), nil
}

// from returns the base image of a build: one of the owner's earlier images, or one of a registry.
func (i *images) from(ctx context.Context, owner, base string, opts image.BuildOptions) (*sdk.Image, error) {
	if known, err := i.owned(ctx, owner, base); err == nil && !((opts.Force || opts.Pull == image.PullAlways) &&
		pulled(known, base)) {
		return i.e.image(ctx, known.Modal)
	}
	if base == "base" {
		base = i.e.opts.Image
	}
	if base == "" || strings.HasPrefix(base, "img_") {
		return nil, errors.Newf(errors.NotFound, "there is no image %.100q", base)
	}
	params := &sdk.ImageFromRegistryParams{}
	if opts.Credentials != nil {
		login, err := opts.Credentials(ctx, registryOf(base))
		if err != nil {
			return nil, err
		}
		if login.User != "" || login.Password != "" {
			params.Secret, err = i.e.client.Secrets.FromMap(ctx, map[string]string{"REGISTRY_USERNAME": login.User,
				"REGISTRY_PASSWORD": login.Password}, nil)
			if err != nil {
				return nil, call.Explain(err, "pass the registry's credentials to Modal")
			}
		}
	}
	return i.e.client.Images.FromRegistry(base, params), nil
}

// registryOf returns the registry that a reference names.
func registryOf(ref string) string {
	host, _, found := strings.Cut(ref, "/")
	if found && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return host
	}
	return "docker.io"
}

// splitDockerfile splits a Dockerfile with one stage into the image of its FROM and the instructions after
// that.
func splitDockerfile(text string) (base string, commands []string, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.EqualFold(word, "FROM") && base == "":
			base = strings.TrimSpace(rest)
		case strings.EqualFold(word, "FROM"):
			return "", nil, errors.Newf(errors.Unsupported, "the engine modal builds Dockerfiles with one stage only")
		case base == "" && word != "" && !strings.HasPrefix(word, "#"):
			return "", nil, errors.Remedy(errors.Newf(errors.Unsupported, "the Dockerfile begins with %.40s", word),
				"begin it with FROM")
		case base != "":
			commands = append(commands, line)
		}
	}
	if base == "" || strings.ContainsAny(base, " $") {
		return "", nil, errors.Newf(errors.Unsupported, "the engine modal cannot build FROM %.100q", base)
	}
	return base, commands, nil
}

func digestOfSpec(spec image.Spec, base string) (string, error) {
	text, err := json.Marshal(struct {
		image.Spec
		Stands string // the image behind "base"
	}{spec, base})
	if err != nil {
		return "", errors.Wrapf(err, "encode an image's description")
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// learn records an image's defaults for commands. Modal does not report them, but the image's first sandbox
// shows them.
func (i *images) learn(r records.Image, found wire.Found) error {
	r.Config.Env, r.Config.Dir = map[string]string{}, found.Dir
	for name, value := range found.Env {
		if !strings.HasPrefix(name, "MODAL_") { // added by Modal
			r.Config.Env[name] = value
		}
	}
	return i.records.Write(r)
}

// owned finds an image that is visible to an owner, as defined by image.Of.
func (i *images) owned(ctx context.Context, owner, ref string) (records.Image, error) {
	img, err := image.Of(i, owner).Find(ctx, ref)
	if err != nil {
		return records.Image{}, err
	}
	return i.records.Find(img.ID)
}

// checkNames refuses the names of Harvest's own images.
func checkNames(names []string) error {
	for _, name := range names {
		if name == ownImage || name == agentImage {
			return errors.Remedy(errors.Newf(errors.Invalid, "%q is the name of an image of Harvest's own", name),
				"choose another name")
		}
	}
	return nil
}

// Find implements image.Builder.
func (i *images) Find(_ context.Context, ref string) (image.Image, error) {
	r, err := i.records.Find(ref)
	return r.Image, err
}

// List implements image.Builder.
func (i *images) List(context.Context) ([]image.Image, error) {
	all, err := i.records.All()
	list := []image.Image{}
	for _, r := range all {
		list = append(list, r.Image)
	}
	return list, err
}

// Use protects an image from deletion until release is called, which is idempotent. NotFound for an unknown ID.
func (i *images) Use(id, who string) (release func(), err error) {
	r, err := i.records.Find(id)
	if err != nil {
		return nil, err
	}
	if release, err = i.uses.Take(r.ID, who); err != nil {
		return nil, err
	}
	if _, err := i.records.Find(r.ID); err != nil { // it was deleted meanwhile
		release()
		return nil, err
	}
	return release, nil
}

// Delete removes an image. It deletes snapshots at Modal, too. Built images stay there for as long as Modal
// likes, because others in the workspace may have built the same image.
func (i *images) Delete(ctx context.Context, id string) error {
	r, err := i.records.Find(id)
	if err != nil {
		return err
	}
	unbar, err := i.uses.Bar(r.ID, "image "+r.ID)
	if err != nil {
		return err
	}
	defer unbar()
	if r.Snapshot != nil {
		if err := i.e.forget(ctx, r.Modal); err != nil {
			return err
		}
	}
	return i.records.Remove(r.ID)
}

var _ image.Builder = (*images)(nil)
