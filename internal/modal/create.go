package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/modal/idempotency"
)

// naming is held from the check of a name until a sandbox has it.
type naming struct{ sync.Mutex }

// plan describes a sandbox to create.
type plan struct {
	app     string // ID
	def     *pb.Sandbox
	tags    []*pb.SandboxTag
	sources []*pb.SecretSource
	env     string // environment that the request names apart from the app
	first   bool   // of the first generation
	main    *box   // of a sidecar
	key     string // identifies a repeated request; "" without an idempotency key
}

// SandboxCreateV2 implements ModalClient.
func (c *control) SandboxCreateV2(ctx context.Context,
	req *pb.SandboxCreateV2Request) (*pb.SandboxCreateV2Response, error) {
	sources := req.GetSecretSources()
	if m := req.GetEphemeralSecrets().GetContents(); len(m) > 0 {
		sources = append(slices.Clone(sources),
			pb.SecretSource_builder{Env: pb.StringMap_builder{Contents: m}.Build()}.Build())
	}
	b, err := c.s.createBox(ctx, plan{app: req.GetAppId(), def: req.GetDefinition(), tags: req.GetTags(),
		sources: sources})
	if err != nil {
		return nil, err
	}
	access, err := c.s.routerAccess(ctx, b)
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateV2Response_builder{
		SandboxId: b.sandboxID(), TaskId: b.taskID(), Tunnels: tunnelsOf(b), CommandRouterAccess: access,
		Metadata: pb.SandboxHandleMetadata_builder{AppId: req.GetAppId()}.Build(),
	}.Build(), nil
}

// SandboxCreate implements ModalClient. It answers a first-generation request with a sandbox of the second
// generation, which clients recognize by its ID, except to Python's SDK.
func (c *control) SandboxCreate(ctx context.Context, req *pb.SandboxCreateRequest) (*pb.SandboxCreateResponse, error) {
	b, err := c.s.createBox(ctx, plan{app: req.GetAppId(), def: req.GetDefinition(), tags: req.GetTags(),
		env: req.GetEnvironmentName(), first: callerOf(ctx).client == python})
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateResponse_builder{SandboxId: b.sandboxID(),
		Metadata: pb.SandboxHandleMetadata_builder{AppId: req.GetAppId()}.Build()}.Build(), nil
}

// requestKey returns a digest of the request and its idempotency key, "" without a key.
func requestKey(c caller, what string) string {
	if c.key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(c.KeyID + " " + what + " " + c.key))
	return hex.EncodeToString(sum[:16])
}

// createBox creates a sandbox, once for each idempotency key.
func (s *Server) createBox(ctx context.Context, p plan) (*box, error) {
	if p.def == nil {
		return nil, errors.Newf(errors.Invalid, "the sandbox has no definition")
	}
	return s.makeOnce(ctx, "create", func(ctx context.Context, acc, key string) (*box, error) {
		p.key = key
		return s.makeBox(ctx, acc, p)
	})
}

// makeOnce creates a sandbox once for each idempotency key, also across restarts of the server. do must tag the
// sandbox with the given key.
func (s *Server) makeOnce(ctx context.Context, what string,
	do func(ctx context.Context, acc, key string) (*box, error)) (*box, error) {
	c := callerOf(ctx)
	return once1(ctx, s, what, func() (*box, error) {
		// All attempts of a client share one creation, which must not end with the first attempt.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		key := requestKey(c, what)
		if b, err := s.madeBefore(ctx, c.Account, key); b != nil || err != nil {
			return b, err
		}
		return do(ctx, c.Account, key)
	})
}

// earlier indexes the sandboxes that an earlier server created recently by the keys of their requests. It reads
// the records of an account once.
type earlier struct {
	mu  sync.Mutex
	ids map[string]map[string][]string // guarded by mu; by account and key
}

// find returns the ids of the sandboxes with a key.
func (e *earlier) find(ctx context.Context, s *Server, acc, key string) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ids[acc] == nil {
		all, err := s.opts.Fleet.List(ctx, acc, record.Filter{All: true})
		if err != nil {
			return nil, err
		}
		byKey := map[string][]string{}
		for _, sb := range all {
			if k := sb.Tags[tagKey]; k != "" && !sb.Started.IsZero() && sb.Created.Before(s.began) &&
				s.began.Sub(sb.Created) <= idempotency.Kept {
				byKey[k] = append(byKey[k], sb.ID)
			}
		}
		if e.ids == nil {
			e.ids = map[string]map[string][]string{}
		}
		e.ids[acc] = byKey
	}
	return e.ids[acc][key], nil
}

// madeBefore returns the sandbox that an earlier server created for a repeated request, nil without one. It
// ends a sandbox whose creation was interrupted by the end of that server.
func (s *Server) madeBefore(ctx context.Context, acc, key string) (*box, error) {
	if key == "" || time.Since(s.began) > idempotency.Kept {
		return nil, nil
	}
	ids, err := s.earlier.find(ctx, s, acc, key)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		b, err := s.boxes.get(ctx, acc, id)
		if err != nil {
			return nil, err
		}
		if b.def.GetImageId() != "" { // the last part of a creation to be recorded
			return b, nil
		}
		b.destroyNow(ctx)
	}
	return nil, nil
}

func (s *Server) makeBox(ctx context.Context, acc string, p plan) (*box, error) {
	a, err := s.runningApp(acc, p.app)
	if err != nil {
		return nil, err
	}
	env, name := a.Env, a.Name
	req, err := request(p.def)
	if err == nil && p.def.GetEnableSnapshot() && !s.opts.Fleet.Capabilities().Memory {
		err = errors.Remedy(errors.Newf(errors.Unsupported,
			"the engine of this server does not support snapshots of memory"), "take a snapshot of the files")
	}
	if err != nil {
		return nil, err
	}
	if req.Tags, err = tagsOf(p.tags); err != nil {
		return nil, err
	}
	maps.Copy(req.Tags, map[string]string{tagApp: name, tagEnv: env})
	if p.first {
		req.Tags[tagGeneration] = firstGeneration
	}
	if p.key != "" {
		req.Tags[tagKey] = p.key
	}
	if title := p.def.GetName(); title != "" {
		if err := checkName("Sandbox", title); err != nil {
			return nil, err
		}
		s.naming.Lock()
		defer s.naming.Unlock()
		if err := s.free(ctx, acc, env, name, title, ""); err != nil {
			return nil, err
		}
		req.Tags[tagName] = title
	}
	b, err := s.open(ctx, acc, p, req)
	if err != nil {
		return nil, err
	}
	if _, err := s.runningApp(acc, p.app); err != nil { // it was stopped meanwhile
		return nil, errors.Join(err, b.terminate(ctx))
	}
	return b, nil
}

// open creates the sandbox. It adds the image, the environment, the volumes and the bucket to req, and starts
// the sandbox's command.
func (s *Server) open(ctx context.Context, acc string, p plan, req spec.Request) (*box, error) {
	img, err := s.findImage(ctx, acc, p.def.GetImageId())
	if err != nil {
		return nil, err
	}
	req.Image = img.ID
	local, err := s.localFiles(acc, p.def)
	if err != nil {
		return nil, err
	}
	var values map[string]string
	if values, req.Secrets, err = s.environment(ctx, p.def.GetSecretIds(), p.sources,
		p.def.GetEnvironmentVariables().GetContents()); err != nil {
		return nil, err
	}
	req.Env = values
	if p.def.GetPtyInfo() != nil {
		terminalEnv(req.Env, p.def.GetPtyInfo())
	}
	if p.def.GetIncludeOidcIdentityToken() {
		address, err := s.connector(ctx)
		if err != nil {
			return nil, err
		}
		life := time.Duration(req.TimeoutSeconds) * time.Second
		if req.Env[identityEnv], err = s.identity(acc, s.envs.Name(acc, req.Tags[tagEnv]), req.Tags[tagApp], address,
			life); err != nil {
			return nil, err
		}
	}
	views, err := s.volumes.enter(ctx, s, acc, p.def.GetVolumeMounts())
	if err != nil {
		return nil, err
	}
	for _, v := range views {
		req.Volumes = append(req.Volumes, v.mount())
	}
	if req.S3, err = s.bucket(ctx, acc, p.def); err != nil {
		s.discardViews(ctx, acc, views)
		return nil, err
	}
	sb, err := s.opts.Fleet.Create(ctx, acc, req)
	if err != nil {
		s.discardViews(ctx, acc, views)
		s.dropBucket(ctx, acc, req.S3)
		return nil, bucketError(req.S3, err)
	}
	b := s.boxes.make(sb)
	b.def, b.views, b.blocked = p.def, views, blockedBy(p.def)
	if err = s.addLocalFiles(ctx, acc, b.id, local); err == nil && p.main != nil {
		err = s.joinSidecars(ctx, p.main)
	}
	if err == nil {
		err = b.launch(ctx, img.Config)
	}
	if err != nil {
		b.destroyNow(ctx)
		s.discardViews(ctx, acc, views)
		s.dropBucket(ctx, acc, req.S3)
		return nil, err
	}
	s.boxes.add(b)
	for _, v := range views { // VolumeRename renames no volume of a sandbox that it can see, and now it sees this one
		if _, err := s.provider(acc).Open(ctx, v.Volume); err != nil {
			b.destroyNow(ctx)
			s.discardViews(ctx, acc, views)
			s.dropBucket(ctx, acc, req.S3)
			return nil, missing("Volume", named(volumeID, v.Volume))
		}
	}
	return b, nil
}

// launch starts the sandbox's own command, or without one its image's, opens its ports, and records both for a later
// server.
func (b *box) launch(ctx context.Context, config image.Config) error {
	if option(b.def, "enable_docker") { // Docker stores its files there
		if err := b.makeDir(ctx, "/var/lib/docker"); err != nil {
			return err
		}
	}
	if dir := path.Clean(b.def.GetWorkdir()); path.IsAbs(dir) { // as the OCI runtimes do
		if err := b.makeDir(ctx, dir); err != nil {
			return errors.Remedy(errors.Wrapf(err, "workdir %.200q", dir), "name a directory")
		}
	}
	def := proto.CloneOf(b.def)
	def.SetEnvironmentVariables(nil)
	encoded, err := proto.Marshal(def)
	if err != nil {
		return errors.Wrapf(err, "encode a sandbox")
	}
	notes := []note{{Def: encoded}}
	for _, v := range b.views {
		notes = append(notes, note{View: v})
	}
	args := b.def.GetEntrypointArgs()
	if len(args) == 0 {
		args = config.Cmd
	}
	if len(args) > 0 {
		size := sizeOf(b.def.GetPtyInfo())
		sb, err := b.s.opts.Fleet.Get(ctx, b.account, b.id)
		if err != nil {
			return err
		}
		if b.main, err = b.start(ctx, b.id, order{
			args: append(slices.Clone(config.Entrypoint), args...), terminal: size, stdout: true, stderr: true,
			detached: true, limit: limitOf(sb),
		}); err != nil {
			return err
		}
		notes = append(notes, note{Main: b.main.exec.ID()})
	}
	return b.openPorts(ctx, notes)
}

// makeDir makes a directory in the sandbox, with its parents, unless it exists.
func (b *box) makeDir(ctx context.Context, dir string) error {
	return b.s.opts.Fleet.Files(ctx, b.account, b.id, tarfs.Request{Op: tarfs.OpMkdir, Path: dir, Parents: true},
		discard{})
}

// openPorts opens the ports of a sandbox, and records them, after notes, for a later server.
func (b *box) openPorts(ctx context.Context, notes []note) error {
	if err := b.s.openTunnels(ctx, b); err != nil {
		return err
	}
	if len(b.ports) > 0 {
		notes = append(notes, note{Ports: b.ports})
	}
	b.write(ctx, notes...)
	return nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// limitOf returns the time limit of a command without its own limit: the remaining life of its sandbox.
func limitOf(sb record.Sandbox) time.Duration { return max(time.Second, time.Until(sb.Expires)) }

// destroyNow ends a sandbox that was never returned to the client.
func (b *box) destroyNow(ctx context.Context) {
	if err := b.s.opts.Fleet.Destroy(context.WithoutCancel(ctx), b.account, b.id); err != nil {
		logf.Errorf(ctx, "end a sandbox that could not be started: %v", err)
	}
	if b.main != nil {
		_ = b.main.await(ctx)
		b.main.forget()
	}
}

// free returns ALREADY_EXISTS if a running sandbox of the app other than except has that name.
func (s *Server) free(ctx context.Context, acc, env, app, title, except string) error {
	found, err := s.opts.Fleet.List(ctx, acc, record.Filter{})
	if err != nil {
		return err
	}
	for _, sb := range found {
		if sb.ID != except && sb.Status != record.Stopping && sb.Tags[tagName] == title && sb.Tags[tagApp] == app &&
			sb.Tags[tagEnv] == env {
			return withCode(errors.Newf(errors.Conflict, "Sandbox with name '%s' already exists in app '%s'", title,
				app), alreadyExists)
		}
	}
	return nil
}
