package modal

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/modal/idempotency"
	"github.com/RelevanceAI/harvest/internal/modal/localfiles"
	"github.com/RelevanceAI/harvest/internal/modal/steps"
)

// builds holds the builds that run, or ended recently.
type builds struct {
	mu   sync.Mutex
	byID map[string]*build // guarded by mu; by account and ID
}

// build is one of them.
type build struct {
	id   string
	done chan struct{} // closed once img and err are set
	img  image.Image
	err  error

	mu      sync.Mutex
	log     []string      // guarded by mu
	changed chan struct{} // guarded by mu; closed when log grows
}

// failed reports whether the build has ended without an image. The next request then starts another build.
func (b *build) failed() bool {
	select {
	case <-b.done:
		return b.err != nil
	default:
		return false
	}
}

func (b *build) say(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, line)
	close(b.changed)
	b.changed = make(chan struct{})
}

// images returns the account's images.
func (s *Server) images(acc string) image.Builder { return image.Of(s.opts.Images, account.Owner(acc)) }

// findImage returns the image with a client's ID, or NotFound if it does not exist or was deleted.
func (s *Server) findImage(ctx context.Context, acc, id string) (image.Image, error) {
	name, err := imageName(id)
	if err != nil {
		return image.Image{}, err
	}
	if ended(id) {
		return image.Image{}, errors.Newf(errors.NotFound, "Image '%s' not found: its TTL has expired", id)
	}
	if s.apps.Deleted(acc, id) { // it may still exist under another ID
		return image.Image{}, errors.Newf(errors.NotFound, "Image '%s' not found", id)
	}
	img, err := s.images(acc).Find(ctx, name)
	if errors.KindOf(err) == errors.NotFound { // it may have been made without this protocol
		img, err = s.images(acc).Find(ctx, "img_"+strings.TrimPrefix(id, imageID)[:2*imageBytes-endDigits])
	}
	if errors.KindOf(err) == errors.NotFound {
		return image.Image{}, errors.Newf(errors.NotFound, "Image '%s' not found", id)
	}
	return img, err
}

// ImageGetOrCreate implements ModalClient.
func (c *control) ImageGetOrCreate(ctx context.Context,
	req *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse, error) {
	p, err := c.s.recipe(ctx, req)
	if err != nil {
		return nil, err
	}
	acc := callerOf(ctx).Account
	if !p.opts.Force || callerOf(ctx).key != "" { // a forced ID belongs to this request alone, which may be repeated
		if _, err := c.s.findImage(ctx, acc, p.id); err == nil {
			return pb.ImageGetOrCreateResponse_builder{ImageId: p.id, Result: succeeded(),
				Metadata: metadataOf()}.Build(), nil
		}
	}
	b, err := once1(ctx, c.s, "image", func() (*build, error) {
		b := c.s.build(acc, p)
		timer := time.NewTimer(buildPatience)
		defer timer.Stop()
		select {
		case <-b.done:
			if b.err != nil && idempotency.Transient(b.err) {
				return nil, b.err
			}
		case <-timer.C: // the client polls for the rest
		case <-c.s.ctx.Done():
		}
		return b, nil
	})
	if err != nil {
		return nil, err
	}
	if b.quiet() {
		return pb.ImageGetOrCreateResponse_builder{ImageId: b.id, Result: resultOfBuild(b),
			Metadata: metadataOf()}.Build(), nil
	}
	return pb.ImageGetOrCreateResponse_builder{ImageId: b.id}.Build(), nil
}

// quiet reports whether the build has ended without a log. With one, the client must not get the result at once: it
// reads the log only while it waits for the result.
func (b *build) quiet() bool {
	select {
	case <-b.done:
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.log) == 0
	default:
		return false
	}
}

// buildPatience is how long a build request waits for the image.
const buildPatience = 5 * time.Second

func succeeded() *pb.GenericResult {
	return pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}.Build()
}

func metadataOf() *pb.ImageMetadata {
	version := builderVersion
	return pb.ImageMetadata_builder{ImageBuilderVersion: &version}.Build()
}

// resultOfBuild returns how a build ended.
func resultOfBuild(b *build) *pb.GenericResult {
	if b.err == nil {
		return succeeded()
	}
	status := pb.GenericResult_GENERIC_STATUS_FAILURE
	switch errors.KindOf(b.err) {
	case errors.Timeout:
		status = pb.GenericResult_GENERIC_STATUS_TIMEOUT
	case errors.Canceled:
		status = pb.GenericResult_GENERIC_STATUS_TERMINATED
	}
	return pb.GenericResult_builder{Status: status, Exception: inModalsIDs(sentences(b.err)), Exitcode: 1}.Build()
}

// build builds an image in the background. Equal concurrent requests share one build.
func (s *Server) build(acc string, p recipe) *build {
	bs, key := &s.builds, acc+" "+p.id
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b := bs.byID[key]; b != nil && !b.failed() {
		return b
	}
	if bs.byID == nil {
		bs.byID = map[string]*build{}
	}
	b := &build{id: p.id, done: make(chan struct{}), changed: make(chan struct{})}
	bs.byID[key] = b
	s.tasks.Go(func() {
		opts := p.opts
		opts.Log = b.say
		var remove func()
		if opts.Context, remove, b.err = s.pack(acc, p.files, p.mount); b.err == nil {
			b.img, b.err = s.images(acc).Build(s.ctx, p.spec, opts)
			remove()
		}
		p.files = nil // free the files, which may be large, before the wait
		close(b.done)
		timer := time.NewTimer(idempotency.Kept) // for clients that join late
		defer timer.Stop()
		if b.err == nil || !idempotency.Transient(b.err) {
			select {
			case <-timer.C:
			case <-s.ctx.Done():
			}
		}
		bs.mu.Lock()
		if bs.byID[key] == b {
			delete(bs.byID, key)
		}
		bs.mu.Unlock()
	})
	return b
}

// ImageJoinStreaming implements ModalClient.
func (c *control) ImageJoinStreaming(req *pb.ImageJoinStreamingRequest,
	stream grpc.ServerStreamingServer[pb.ImageJoinStreamingResponse]) error {
	ctx := stream.Context()
	acc := callerOf(ctx).Account
	c.s.builds.mu.Lock()
	b := c.s.builds.byID[acc+" "+req.GetImageId()]
	c.s.builds.mu.Unlock()
	if b == nil {
		if _, err := c.s.findImage(ctx, acc, req.GetImageId()); err != nil {
			return err
		}
		return stream.Send(pb.ImageJoinStreamingResponse_builder{Result: succeeded(), Eof: true,
			Metadata: metadataOf()}.Build())
	}
	seen, _ := strconv.Atoi(req.GetLastEntryId())
	timer := time.NewTimer(time.Duration(min(max(float64(req.GetTimeout()), 1), 600) * float64(time.Second)))
	defer timer.Stop()
	for {
		b.mu.Lock()
		lines, changed := b.log[min(max(seen, 0), len(b.log)):], b.changed
		b.mu.Unlock()
		for _, line := range lines {
			seen++
			item := pb.TaskLogs_builder{Data: line + "\n", FileDescriptor: pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT,
				Timestamp: seconds(time.Now())}.Build()
			if err := stream.Send(pb.ImageJoinStreamingResponse_builder{TaskLogs: []*pb.TaskLogs{item},
				EntryId: strconv.Itoa(seen)}.Build()); err != nil {
				return err
			}
		}
		select {
		case <-b.done:
			return stream.Send(pb.ImageJoinStreamingResponse_builder{Result: resultOfBuild(b), Eof: true,
				Metadata: metadataOf()}.Build())
		case <-changed:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ImageFromId implements ModalClient.
//
//lint:ignore ST1003 the name is the protocol's
func (c *control) ImageFromId(ctx context.Context, req *pb.ImageFromIdRequest) (*pb.ImageFromIdResponse, error) {
	if err := c.knows(ctx, req.GetImageId()); err != nil {
		return nil, err
	}
	return pb.ImageFromIdResponse_builder{ImageId: req.GetImageId(), Metadata: metadataOf()}.Build(), nil
}

// knows returns NotFound if neither an image nor a kept directory has that ID.
func (c *control) knows(ctx context.Context, id string) error {
	acc := callerOf(ctx).Account
	if kept, err := c.s.treePath(acc, id); err == nil && !ended(id) {
		if _, err := os.Stat(kept); err == nil {
			return nil
		}
	}
	_, err := c.s.findImage(ctx, acc, id)
	return err
}

// ImageDelete implements ModalClient.
func (c *control) ImageDelete(ctx context.Context, req *pb.ImageDeleteRequest) (*emptypb.Empty, error) {
	acc := callerOf(ctx).Account
	if kept, err := c.s.treePath(acc, req.GetImageId()); err == nil && os.Remove(kept) == nil {
		return &emptypb.Empty{}, nil
	}
	img, err := c.s.findImage(ctx, acc, req.GetImageId())
	if err != nil {
		return nil, err
	}
	if err := c.s.removeImage(ctx, acc, req.GetImageId(), img); err != nil {
		return nil, err
	}
	c.s.builds.mu.Lock()
	delete(c.s.builds.byID, acc+" "+req.GetImageId())
	c.s.builds.mu.Unlock()
	return &emptypb.Empty{}, nil
}

// recipe describes an image to build.
type recipe struct {
	id    string
	spec  image.Spec
	opts  image.BuildOptions
	files []*pb.ImageContextFile // of the build context
	mount localfiles.Mount       // more files of the build context
}

// recipe converts a request to a recipe.
func (s *Server) recipe(ctx context.Context, req *pb.ImageGetOrCreateRequest) (recipe, error) {
	def, acc := req.GetImage(), callerOf(ctx).Account
	switch {
	case def == nil:
		return recipe{}, errors.Newf(errors.Invalid, "there is no image to build")
	case def.GetBuildFunction() != nil || req.GetBuildFunctionId() != "" || def.GetBuildFunctionDef() != "":
		return recipe{}, errors.Remedy(errors.Newf(errors.Unsupported,
			"functions that build images are not supported"), "use commands: dockerfile_commands, run_commands")
	case def.GetGpuConfig().GetGpuType() != "" || def.GetGpuConfig().GetCount() > 0:
		return recipe{}, noGPU()
	case !architecture(def.GetArch()):
		err := errors.Newf(errors.Unsupported, "images are built for the processor of this machine only")
		return recipe{}, errors.Remedy(err, "leave the architecture out")
	}
	p := recipe{opts: image.BuildOptions{Force: req.GetForceBuild() || req.GetIgnoreCache(),
		Secrets: map[string][]byte{}}}
	commands, err := s.bases(ctx, acc, def)
	if err != nil {
		return recipe{}, err
	}
	if err := s.dockerfile(&p, commands, def); err != nil {
		return recipe{}, err
	}
	if len(def.GetSecretIds()) > 0 {
		if err := s.buildSecrets(ctx, &p, def); err != nil {
			return recipe{}, err
		}
	}
	config := def.GetImageRegistryConfig()
	if p.opts.Credentials, err = s.registryLogin(ctx, acc, config); err != nil {
		return recipe{}, err
	}
	spec, err := json.Marshal(p.spec)
	if err != nil {
		return recipe{}, errors.Wrapf(err, "encode an image")
	}
	force := ""
	if p.opts.Force { // each request makes its own image
		if force = requestKey(callerOf(ctx), "image"); force == "" {
			force = rand.Text()
		}
	}
	p.files = def.GetContextFiles()
	files, err := digestOfFiles(p.files)
	if err != nil {
		return recipe{}, err
	}
	if id := def.GetContextMountId(); id != "" {
		if p.mount, err = s.mount(acc, id); err != nil {
			return recipe{}, err
		}
		files += p.mount.Sum
	}
	for generation := 0; ; generation++ { // a rebuilt image has another ID than the deleted one
		p.id = digestID(imageID, acc, string(spec)+files, config.GetSecretId(), force, strconv.Itoa(generation))
		if !s.apps.Deleted(acc, p.id) {
			break
		}
	}
	p.opts.Names = []string{imagePrefix + p.id}
	return p, nil
}

// bases returns the commands with the request's names of base images replaced by images of the library.
func (s *Server) bases(ctx context.Context, acc string, def *pb.Image) ([]string, error) {
	names := map[string]string{}
	for _, base := range def.GetBaseImages() {
		img, err := s.findImage(ctx, acc, base.GetImageId())
		if err != nil {
			return nil, err
		}
		names[base.GetDockerTag()] = img.ID
	}
	commands := make([]string, len(def.GetDockerfileCommands()))
	for i, line := range def.GetDockerfileCommands() {
		commands[i] = line
		words := strings.Fields(line)
		if len(words) >= 2 && strings.EqualFold(words[0], "FROM") && names[words[1]] != "" {
			words[1] = names[words[1]]
			commands[i] = strings.Join(words, " ")
		}
	}
	return steps.Adapt(commands), nil
}

// dockerfile builds the Spec from the commands. FROM alone means the base image itself.
func (s *Server) dockerfile(p *recipe, commands []string, def *pb.Image) error {
	if len(commands) == 0 {
		return errors.Remedy(errors.Newf(errors.Invalid, "the image has no commands"),
			"begin with FROM and the name of an image")
	}
	first := strings.Fields(commands[0])
	if len(first) == 2 && strings.EqualFold(first[0], "FROM") {
		p.spec = image.Spec{Base: first[1], Commands: commands[1:]}
		if len(def.GetBuildArgs()) > 0 {
			p.spec.Args = def.GetBuildArgs()
		}
		return nil
	}
	p.spec = image.Spec{Dockerfile: strings.Join(commands, "\n") + "\n", Args: def.GetBuildArgs()}
	return nil
}

func noGPU() error {
	return errors.Remedy(errors.Newf(errors.Unsupported, "there are no GPUs here"),
		"leave gpu out, or run the sandbox on Modal")
}
