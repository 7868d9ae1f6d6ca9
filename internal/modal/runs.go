package modal

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/modal/apps"
)

// appStates are the protocol's names of states.
var appStates = map[apps.State]pb.AppState{
	apps.Deployed:     pb.AppState_APP_STATE_DEPLOYED,
	apps.Initializing: pb.AppState_APP_STATE_INITIALIZING,
	apps.Ephemeral:    pb.AppState_APP_STATE_EPHEMERAL,
	apps.Detached:     pb.AppState_APP_STATE_DETACHED,
	apps.Disconnected: pb.AppState_APP_STATE_DETACHED_DISCONNECTED,
	apps.Stopping:     pb.AppState_APP_STATE_STOPPING,
	apps.Stopped:      pb.AppState_APP_STATE_STOPPED,
}

func lifecycleOf(a apps.App) *pb.AppLifecycle {
	last := a.Last()
	l := pb.AppLifecycle_builder{AppState: appStates[a.State], CreatedAt: seconds(a.Created), StoppedBy: a.StoppedBy,
		DeployedAt: secondsOrZero(last.At), DeployedBy: last.By, Version: int32(last.Number),
		StoppedAt: secondsOrZero(a.Stopped)}
	if a.State == apps.Deployed && last.At.IsZero() { // made by a lookup
		l.DeployedAt = seconds(a.Created)
	}
	return l.Build()
}

func appMetadata(a apps.App) *pb.AppHandleMetadata {
	return pb.AppHandleMetadata_builder{AppId: a.ID, Description: a.Label(), EnvironmentName: a.Env,
		Lifecycle: lifecycleOf(a)}.Build()
}

// pageOf is shown where Modal shows the address of an app's page: the command that lists the app's sandboxes.
func pageOf(a apps.App) string { return "harvest sandbox ls --all --tag " + tagApp + "=" + a.Name }

// AppCreate implements ModalClient. An app that is being deployed has its name at once.
func (c *control) AppCreate(ctx context.Context, req *pb.AppCreateRequest) (*pb.AppCreateResponse, error) {
	acc := callerOf(ctx).Account
	state := apps.Ephemeral
	switch req.GetAppState() {
	case pb.AppState_APP_STATE_DETACHED:
		state = apps.Detached
	case pb.AppState_APP_STATE_INITIALIZING:
		state = apps.Initializing
	case pb.AppState_APP_STATE_EPHEMERAL, pb.AppState_APP_STATE_UNSPECIFIED:
	default:
		return nil, errors.Newf(errors.Invalid, "an app cannot be created in the state %v", req.GetAppState())
	}
	if err := checkEnv(req.GetEnvironmentName()); err != nil {
		return nil, err
	}
	if len(req.GetDescription()) > longestField {
		return nil, errors.Newf(errors.Invalid, "the description of the app is longer than %d bytes", longestField)
	}
	a := namedApp(acc, req.GetEnvironmentName(), req.GetDescription())
	if state == apps.Initializing {
		if err := checkAppName(a.Name); err != nil {
			return nil, err
		}
	} else {
		id, err := apps.NewID()
		if err != nil {
			return nil, err
		}
		a.ID, a.Name = id, id
	}
	a.State, a.Description, a.Tags = state, req.GetDescription(), req.GetTags()
	a, err := once1(ctx, c.s, "app", func() (apps.App, error) {
		err := c.s.apps.Add(a)
		if errors.KindOf(err) == errors.Conflict { // another client deploys it, too
			return c.s.apps.Get(acc, a.ID)
		}
		return a, err
	})
	if err != nil {
		return nil, err
	}
	return pb.AppCreateResponse_builder{AppId: a.ID, AppPageUrl: pageOf(a), AppLogsUrl: pageOf(a)}.Build(), nil
}

// AppPublish implements ModalClient. An app has no functions or classes here.
func (c *control) AppPublish(ctx context.Context, req *pb.AppPublishRequest) (*pb.AppPublishResponse, error) {
	switch {
	case len(req.GetFunctionIds()) > 0 || len(req.GetDefinitionIds()) > 0:
		return nil, errors.Newf(errors.Unsupported, "%s", lacking("FunctionCreate"))
	case len(req.GetClassIds()) > 0:
		return nil, errors.Newf(errors.Unsupported, "%s", lacking("ClassCreate"))
	case req.GetStaged():
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "this server does not stage deployments"),
			"leave staged out")
	}
	acc, now := callerOf(ctx).Account, time.Now().UTC()
	a, err := once1(ctx, c.s, "publish "+req.GetAppId(), func() (apps.App, error) {
		return c.s.apps.Change(acc, req.GetAppId(), func(a apps.App) (apps.App, error) {
			if req.GetTags() != nil {
				a.Tags = req.GetTags()
			}
			if req.GetAppState() != pb.AppState_APP_STATE_DEPLOYED {
				return a, nil
			}
			if req.GetName() != a.Name {
				return a, errors.Newf(errors.Invalid, "App '%.100s' is not deployed as '%.80s'", a.ID, req.GetName())
			}
			commit, err := proto.Marshal(req.GetCommitInfo())
			if err != nil {
				return a, errors.Wrapf(err, "encode a commit")
			}
			return a.Deploy(apps.Version{At: now, Client: callerOf(ctx).release, By: callerOf(ctx).KeyID,
				Tag: req.GetDeploymentTag(), Commit: commit}), nil
		})
	})
	if err != nil {
		return nil, err
	}
	return pb.AppPublishResponse_builder{Url: pageOf(a), DeployedAt: secondsOrZero(a.Last().At)}.Build(), nil
}

// AppHeartbeat implements ModalClient.
func (c *control) AppHeartbeat(ctx context.Context, req *pb.AppHeartbeatRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, c.s.apps.Hear(callerOf(ctx).Account, req.GetAppId())
}

// AppClientDisconnect implements ModalClient. It ends an ephemeral app, and one that is not deployed yet.
func (c *control) AppClientDisconnect(ctx context.Context, req *pb.AppClientDisconnectRequest) (*emptypb.Empty, error) {
	acc := callerOf(ctx).Account
	a, err := c.s.apps.Get(acc, req.GetAppId())
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, c.s.leaveApp(ctx, a)
}

// leaveApp handles the end of an app's client.
func (s *Server) leaveApp(ctx context.Context, a apps.App) error {
	switch a.State {
	case apps.Ephemeral, apps.Initializing:
		return s.stopApp(ctx, a.Account, a.ID, "")
	case apps.Detached:
		_, err := s.apps.Change(a.Account, a.ID, func(a apps.App) (apps.App, error) {
			if a.State == apps.Detached {
				a.State = apps.Disconnected
			}
			return a, nil
		})
		return err
	}
	return nil
}

// AppStop implements ModalClient.
func (c *control) AppStop(ctx context.Context, req *pb.AppStopRequest) (*emptypb.Empty, error) {
	who := callerOf(ctx)
	return &emptypb.Empty{}, c.s.stopApp(ctx, who.Account, req.GetAppId(), who.KeyID)
}

// stopApp begins to stop an app: no more sandboxes are created in it, and its sandboxes are ended.
func (s *Server) stopApp(_ context.Context, acc, id, by string) error {
	a, err := s.apps.Change(acc, id, func(a apps.App) (apps.App, error) {
		if a.Running() {
			a.State, a.StoppedBy, a.Stopped = apps.Stopping, by, time.Now().UTC()
		}
		return a, nil
	})
	if err != nil || a.State == apps.Stopped {
		return err
	}
	s.tasks.Go(func() { s.finishApp(s.ctx, a) })
	return nil
}

// finishApp ends the sandboxes of a stopping app. If it fails, the next look at the apps repeats it.
func (s *Server) finishApp(ctx context.Context, a apps.App) {
	if err := s.endSandboxes(ctx, a); err != nil {
		if ctx.Err() == nil {
			logf.Errorf(ctx, "end the sandboxes of the app %s: %v", a.ID, err)
		}
		return
	}
	_, err := s.apps.Change(a.Account, a.ID, func(a apps.App) (apps.App, error) {
		if a.State == apps.Stopping {
			a.State, a.Stopped = apps.Stopped, time.Now().UTC()
		}
		return a, nil
	})
	if err != nil && errors.KindOf(err) != errors.NotFound {
		logf.Errorf(ctx, "record the end of the app %s: %v", a.ID, err)
	}
}

// sandboxesOf returns the sandboxes of an app, without sidecars, newest first; all includes ended ones.
func (s *Server) sandboxesOf(ctx context.Context, acc, id string, all bool) ([]record.Sandbox, error) {
	tags, err := appTags(id)
	if err != nil {
		return nil, err
	}
	found, err := s.opts.Fleet.List(ctx, acc, record.Filter{Tags: tags, All: all})
	return slices.DeleteFunc(found, func(sb record.Sandbox) bool { return sb.Tags[tagSidecar] != "" }), err
}

// endAtOnce is how many sandboxes of an app are ended at the same time.
const endAtOnce = 8

// endSandboxes ends the sandboxes of an app.
func (s *Server) endSandboxes(ctx context.Context, a apps.App) error {
	found, err := s.sandboxesOf(ctx, a.Account, a.ID, false)
	if err != nil {
		return err
	}
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		slots = make(chan struct{}, endAtOnce)
	)
	for _, sb := range found {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			b, end := s.boxes.get(ctx, a.Account, sb.ID)
			if end == nil {
				end = b.terminate(ctx)
			}
			if end != nil && errors.KindOf(end) != errors.NotFound {
				mu.Lock()
				defer mu.Unlock()
				err = errors.Join(err, end)
			}
		})
	}
	group.Wait()
	return err
}

// lookAtApps is the interval at which the server looks for apps whose clients are gone.
const lookAtApps = 15 * time.Second

// watchApps looks after apps until ctx ends.
func (s *Server) watchApps(ctx context.Context) {
	tick := time.NewTicker(lookAtApps)
	defer tick.Stop()
	for {
		s.sweepApps(ctx, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// sweepApps stops the apps whose clients are gone, and completes interrupted stops.
func (s *Server) sweepApps(ctx context.Context, at time.Time) {
	for _, a := range s.apps.Unattended(at) {
		var err error
		switch a.State {
		case apps.Stopping:
			s.finishApp(ctx, a)
		case apps.Disconnected:
			err = s.endIdle(ctx, a)
		default:
			logf.Infof(ctx, "the client of the app %s of %s is gone", a.ID, a.Account)
			err = s.leaveApp(ctx, a)
		}
		if err != nil && ctx.Err() == nil && errors.KindOf(err) != errors.NotFound {
			logf.Errorf(ctx, "look after the app %s: %v", a.ID, err)
		}
	}
}

// endIdle stops a detached app whose client is gone once its sandboxes have ended.
func (s *Server) endIdle(ctx context.Context, a apps.App) error {
	found, err := s.sandboxesOf(ctx, a.Account, a.ID, false)
	if err != nil || len(found) > 0 {
		return err
	}
	return s.stopApp(ctx, a.Account, a.ID, "")
}

// AppList implements ModalClient.
func (c *control) AppList(ctx context.Context, req *pb.AppListRequest) (*pb.AppListResponse, error) {
	acc := callerOf(ctx).Account
	running, err := c.s.opts.Fleet.List(ctx, acc, record.Filter{})
	if err != nil {
		return nil, err
	}
	tasks := map[string]int32{}
	for _, sb := range running {
		if sb.Tags[tagApp] != "" && sb.Tags[tagSidecar] == "" {
			tasks[appIDOf(sb.Tags[tagEnv], sb.Tags[tagApp])]++
		}
	}
	var items []*pb.AppListResponse_AppListItem
	for _, a := range c.s.apps.List(acc, false) {
		if req.GetEnvironmentName() == "" || a.Env == req.GetEnvironmentName() {
			name := a.Name
			if apps.Random(name) {
				name = ""
			}
			items = append(items, pb.AppListResponse_AppListItem_builder{AppId: a.ID, Name: name,
				Description: a.Label(),
				State:       appStates[a.State], CreatedAt: seconds(a.Created), StoppedAt: secondsOrZero(a.Stopped),
				NRunningTasks: tasks[a.ID], Metadata: appMetadata(a)}.Build())
		}
	}
	return pb.AppListResponse_builder{Apps: items}.Build(), nil
}

// AppGetByDeploymentName implements ModalClient. It also takes an ID in place of a name: Modal's command line takes
// the IDs of named apps here for names.
func (c *control) AppGetByDeploymentName(ctx context.Context,
	req *pb.AppGetByDeploymentNameRequest) (*pb.AppGetByDeploymentNameResponse, error) {
	acc, env := callerOf(ctx).Account, envOr(req.GetEnvironmentName())
	id := appIDOf(env, req.GetName())
	if _, err := appTags(req.GetName()); err == nil && strings.HasPrefix(req.GetName(), appID) {
		id = req.GetName()
	}
	a, err := c.s.apps.Get(acc, id)
	answer := pb.AppGetByDeploymentNameResponse_builder{EnvironmentName: env}
	switch {
	case errors.KindOf(err) == errors.NotFound:
		return answer.Build(), nil
	case err != nil:
		return nil, err
	case !a.Running():
		answer.PreviousAppId = a.ID
	case a.State != apps.Initializing:
		answer.AppId = a.ID
	}
	answer.EnvironmentName, answer.Lifecycle = a.Env, lifecycleOf(a)
	return answer.Build(), nil
}
