package modal

import (
	"context"
	"slices"
	"strings"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// Requests and answers name environments. All code below the interceptors has their prefixes instead, which do not
// change: envIn and envOut translate.

// envField is the field of messages with the name of an environment.
const envField = "environment_name"

func envOr(name string) string {
	if name == "" {
		return mainEnvName
	}
	return name
}

func checkEnv(name string) error {
	if name == "" {
		return nil
	}
	return checkName("Environment", name)
}

// envIn replaces the name of the environment in a request by its prefix.
func (s *Server) envIn(ctx context.Context, m proto.Message) error {
	acc := callerOf(ctx).Account
	r := m.ProtoReflect()
	f := r.Descriptor().Fields().ByName(envField)
	if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() || !s.envs.Renamed(acc) {
		return nil
	}
	name := r.Get(f).String()
	if name == "" || checkEnv(name) != nil { // the handler refuses it
		return nil
	}
	prefix, err := s.envs.Prefix(acc, name)
	if err == nil {
		r.Set(f, protoreflect.ValueOfString(prefix))
	}
	return err
}

// envOut returns an answer with names of environments in place of prefixes.
func (s *Server) envOut(ctx context.Context, answer any) any {
	acc := callerOf(ctx).Account
	m, ok := answer.(proto.Message)
	if !ok || !s.envs.Renamed(acc) {
		return answer
	}
	m = proto.Clone(m) // the answer may be kept for repetitions
	s.nameEnvs(acc, m.ProtoReflect())
	return m
}

func (s *Server) nameEnvs(acc string, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Name() == envField && f.Kind() == protoreflect.StringKind && !f.IsList():
			m.Set(f, protoreflect.ValueOfString(s.envs.Name(acc, v.String())))
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				s.nameEnvs(acc, v.List().Get(i).Message())
			}
		default:
			s.nameEnvs(acc, v.Message())
		}
		return true
	})
}

// EnvironmentGetOrCreate implements ModalClient. Every valid name is an environment.
func (c *control) EnvironmentGetOrCreate(ctx context.Context,
	req *pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	if err := checkEnv(req.GetDeploymentName()); err != nil {
		return nil, err
	}
	name := envOr(req.GetDeploymentName())
	prefix, err := c.s.envs.Prefix(callerOf(ctx).Account, name)
	if err != nil {
		return nil, err
	}
	return pb.EnvironmentGetOrCreateResponse_builder{EnvironmentId: named(envID, prefix),
		Metadata: pb.EnvironmentMetadata_builder{
			Name: name, Settings: pb.EnvironmentSettings_builder{ImageBuilderVersion: builderVersion}.Build(),
		}.Build()}.Build(), nil
}

// knownEnvs returns the names of the environments that were created, or have apps, Dicts or queues.
func (s *Server) knownEnvs(ctx context.Context, acc string) ([]string, error) {
	var prefixes []string
	for _, q := range s.queues.List(acc, "") {
		prefixes = append(prefixes, q.Environment)
	}
	for _, a := range s.apps.List(acc, false) {
		prefixes = append(prefixes, a.Env)
	}
	if s.dicts != nil {
		all, err := s.dicts.List(ctx, acc)
		if err != nil {
			return nil, err
		}
		for _, d := range all {
			prefixes = append(prefixes, d.Environment)
		}
	}
	return s.envs.Known(acc, prefixes...), nil
}

// EnvironmentList implements ModalClient.
func (c *control) EnvironmentList(ctx context.Context, _ *emptypb.Empty) (*pb.EnvironmentListResponse, error) {
	acc := callerOf(ctx).Account
	names, err := c.s.knownEnvs(ctx, acc)
	if err != nil {
		return nil, err
	}
	var items []*pb.EnvironmentListItem
	for _, name := range names {
		item, err := c.s.envItem(acc, name)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return pb.EnvironmentListResponse_builder{Items: items}.Build(), nil
}

func (s *Server) envItem(acc, name string) (*pb.EnvironmentListItem, error) {
	prefix, err := s.envs.Prefix(acc, name)
	if err != nil {
		return nil, err
	}
	return pb.EnvironmentListItem_builder{Name: name, Default: name == mainEnvName, EnvironmentId: named(envID, prefix),
		CreatedAt: secondsOrZero(s.envs.List(acc)[name].Created)}.Build(), nil
}

// EnvironmentCreate implements ModalClient.
func (c *control) EnvironmentCreate(ctx context.Context, req *pb.EnvironmentCreateRequest) (*emptypb.Empty, error) {
	if err := checkName("Environment", req.GetName()); err != nil {
		return nil, err
	}
	if req.GetIsManaged() {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "this server has no roles of environments"),
			"leave restricted out, or use accounts: harvest key create --account")
	}
	acc := callerOf(ctx).Account
	_, err := once1(ctx, c.s, "environment", func() (struct{}, error) {
		known, err := c.s.knownEnvs(ctx, acc)
		if err != nil {
			return struct{}{}, err
		}
		if slices.Contains(known, req.GetName()) {
			err = errors.Newf(errors.Conflict, "Environment '%.80s' already exists", req.GetName())
		} else {
			err = c.s.envs.Create(acc, req.GetName())
		}
		return struct{}{}, conflictExists(err)
	})
	return &emptypb.Empty{}, err
}

// conflictExists gives an error of the kind Conflict the code ALREADY_EXISTS.
func conflictExists(err error) error {
	if errors.KindOf(err) == errors.Conflict {
		return withCode(err, alreadyExists)
	}
	return err
}

// checkKnown returns an error unless an environment is known and may be changed.
func (s *Server) checkKnown(ctx context.Context, acc, name string) error {
	if name == mainEnvName {
		return errors.Newf(errors.Unsupported, "environment '%s' cannot be renamed or deleted on this server", name)
	}
	known, err := s.knownEnvs(ctx, acc)
	if err == nil && !slices.Contains(known, name) {
		err = missing("Environment", name)
	}
	return err
}

// EnvironmentUpdate implements ModalClient. It changes the name; there are no other settings.
func (c *control) EnvironmentUpdate(ctx context.Context,
	req *pb.EnvironmentUpdateRequest) (*pb.EnvironmentListItem, error) {
	acc := callerOf(ctx).Account
	if req.GetWebSuffix().GetValue() != "" || req.HasMaxConcurrentTasks() || req.HasMaxConcurrentGpus() ||
		req.HasBlockUnauthenticatedResources() {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "this server has no settings of environments"),
			"change the name only")
	}
	if err := c.s.checkKnown(ctx, acc, req.GetCurrentName()); err != nil {
		return nil, err
	}
	to := req.GetName().GetValue()
	if to == "" || to == req.GetCurrentName() {
		return c.s.envItem(acc, req.GetCurrentName())
	}
	if err := checkName("Environment", to); err != nil {
		return nil, err
	}
	known, err := c.s.knownEnvs(ctx, acc)
	switch {
	case err != nil:
		return nil, err
	case slices.Contains(known, to):
		err = errors.Newf(errors.Conflict, "Environment '%.80s' already exists", to)
	default:
		err = c.s.envs.Rename(acc, req.GetCurrentName(), to)
	}
	if err != nil {
		return nil, conflictExists(err)
	}
	return c.s.envItem(acc, to)
}

// EnvironmentDelete implements ModalClient. It ends the sandboxes of the environment, and deletes its apps, Dicts and
// queues. It refuses one with volumes or secrets: a name such as "dev.data" may also belong to "main".
func (c *control) EnvironmentDelete(ctx context.Context, req *pb.EnvironmentDeleteRequest) (*emptypb.Empty, error) {
	acc := callerOf(ctx).Account
	if err := c.s.checkKnown(ctx, acc, req.GetName()); err != nil {
		return nil, err
	}
	prefix, err := c.s.envs.Prefix(acc, req.GetName())
	if err != nil {
		return nil, err
	}
	if err := c.s.checkEmpty(ctx, acc, req.GetName(), prefix); err != nil {
		return nil, err
	}
	for _, a := range c.s.apps.List(acc, false) {
		if a.Env != prefix {
			continue
		}
		if err := c.s.stopApp(ctx, acc, a.ID, callerOf(ctx).KeyID); err != nil {
			return nil, err
		}
		if err := c.s.endSandboxes(ctx, a); err != nil {
			return nil, err
		}
		if err := c.s.apps.Remove(acc, a.ID); err != nil && errors.KindOf(err) != errors.NotFound {
			return nil, err
		}
	}
	if err := c.s.deleteDicts(ctx, acc, prefix); err != nil {
		return nil, err
	}
	for _, q := range c.s.queues.List(acc, prefix) {
		if err := c.s.queues.Delete(q.ID); err != nil && errors.KindOf(err) != errors.NotFound {
			return nil, err
		}
	}
	return &emptypb.Empty{}, c.s.envs.Delete(acc, req.GetName())
}

func (s *Server) deleteDicts(ctx context.Context, acc, prefix string) error {
	if s.dicts == nil {
		return nil
	}
	all, err := s.dicts.List(ctx, acc)
	for _, d := range all {
		if d.Environment == prefix && err == nil {
			if err = s.dicts.Delete(ctx, acc, d.ID); errors.KindOf(err) == errors.NotFound {
				err = nil
			}
		}
	}
	return err
}

// checkEmpty returns Conflict if names of volumes or secrets begin with the environment's prefix.
func (s *Server) checkEmpty(ctx context.Context, acc, env, prefix string) error {
	begins := prefix + "."
	volumes, err := s.provider(acc).List(ctx)
	if err != nil {
		return err
	}
	has := func(what string, yes bool, command string) error {
		if !yes {
			return nil
		}
		return errors.Remedy(errors.Newf(errors.Conflict, "Environment '%.80s' has %s", env, what),
			"delete them first: %s", command)
	}
	secrets := false
	if s.opts.Secrets != nil {
		all, err := s.opts.Secrets.List(ctx, acc)
		if err != nil {
			return err
		}
		for _, found := range all {
			secrets = secrets || strings.HasPrefix(found.Name, begins)
		}
	}
	return errors.Join(has("volumes", slices.ContainsFunc(volumes, func(v volume.Info) bool {
		return strings.HasPrefix(v.Name, begins)
	}),
		"harvest volume rm "+begins+"…"),
		has("secrets", secrets, "harvest secret rm "+begins+"…"))
}
