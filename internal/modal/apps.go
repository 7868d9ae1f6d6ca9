package modal

import (
	"context"
	"slices"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/modal/apps"
)

// builderVersion is a version of Modal's image builder. With it, an SDK's "from registry" is a plain "FROM".
const builderVersion = "2025.06"

// appName matches the names that Modal allows for apps, environments, sandboxes and the like.
var appName = pattern.New(`^[a-zA-Z0-9_.-]{1,64}$`)

func checkName(what, name string) error {
	if appName().MatchString(name) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "Invalid %s name: '%.80s'", what, name),
		"use 1 to 64 letters, digits, '-', '_' or '.'")
}

// checkAppName is checkName for the name of an app, which must not look like the ID of one without a name.
func checkAppName(name string) error {
	if apps.Random(name) {
		return errors.Newf(errors.Invalid, "Invalid App name: '%s' is the ID of an app", name)
	}
	return checkName("App", name)
}

// appIDOf returns the ID of an app from the tags of its sandboxes.
func appIDOf(env, name string) string {
	if apps.Random(name) {
		return name
	}
	return named(appID, env+"/"+name)
}

// appTags is the inverse of appIDOf: it returns the tags of the app's sandboxes.
func appTags(id string) (map[string]string, error) {
	if apps.Random(id) {
		return map[string]string{tagApp: id}, nil
	}
	both, err := nameOf(id, appID, "App")
	if err != nil {
		return nil, err
	}
	env, name, ok := strings.Cut(both, "/")
	if !ok || checkName("App", name) != nil {
		return nil, missing("App", id)
	}
	return map[string]string{tagApp: name, tagEnv: env}, nil
}

// runningApp returns an app in which sandboxes may be created.
func (s *Server) runningApp(acc, id string) (apps.App, error) {
	a, err := s.apps.Get(acc, id)
	if err == nil && !a.Running() {
		err = errors.Remedy(errors.Newf(errors.Conflict, "App '%.100s' is stopped", id), "run or deploy it again")
	}
	return a, err
}

// namedApp is a new record of the app with a name.
func namedApp(acc, env, name string) apps.App {
	env = envOr(env)
	return apps.App{Account: acc, ID: appIDOf(env, name), Env: env, Name: name, Created: time.Now().UTC()}
}

// hasApps reports whether an account has apps in an environment.
func (s *Server) hasApps(acc, env string) bool {
	return slices.ContainsFunc(s.apps.List(acc, false), func(a apps.App) bool { return a.Env == env })
}

// creates reports whether a missing object is to be created.
func creates(t pb.ObjectCreationType) bool {
	return t != pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED
}

// AppGetOrCreate implements ModalClient.
func (c *control) AppGetOrCreate(ctx context.Context,
	req *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	if err := errors.Join(checkAppName(req.GetAppName()), checkEnv(req.GetEnvironmentName())); err != nil {
		return nil, err
	}
	a, err := c.s.apps.Ensure(namedApp(callerOf(ctx).Account, req.GetEnvironmentName(), req.GetAppName()),
		creates(req.GetObjectCreationType()))
	if err != nil {
		return nil, err
	}
	return pb.AppGetOrCreateResponse_builder{AppId: a.ID, HandleMetadata: appMetadata(a)}.Build(), nil
}

// AuthTokenGet implements ModalClient. Clients call it, but never need the token: each call carries the token's
// ID and secret.
func (c *control) AuthTokenGet(ctx context.Context, _ *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	token, err := c.s.sign(callerOf(ctx), "")
	return pb.AuthTokenGetResponse_builder{Token: token}.Build(), err
}

// ClientHello implements ModalClient.
func (c *control) ClientHello(context.Context, *emptypb.Empty) (*pb.ClientHelloResponse, error) {
	return pb.ClientHelloResponse_builder{ImageBuilderVersion: builderVersion}.Build(), nil
}

// WorkspaceNameLookup implements ModalClient.
func (c *control) WorkspaceNameLookup(ctx context.Context, _ *emptypb.Empty) (*pb.WorkspaceNameLookupResponse, error) {
	who := callerOf(ctx)
	return pb.WorkspaceNameLookupResponse_builder{Username: who.Account}.Build(), nil
}

// seconds is a time in the protocol's format.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// secondsOrZero is seconds, with 0 for no time.
func secondsOrZero(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return seconds(t)
}
