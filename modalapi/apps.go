package modalapi

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
)

// builderVersion is a version of Modal's image builder. With it, an SDK's "from registry" is a plain "FROM".
const builderVersion = "2025.06"

// appsFile stores the apps and proxies that were created. Harvest itself stores all other named objects.
const appsFile = "apps.json"

// app groups sandboxes. It exists only as a tag of those sandboxes.
type app struct {
	Account string    `json:"account"`
	Env     string    `json:"environment"`
	Name    string    `json:"name"`
	Created time.Time `json:"created_at"`
	Proxy   bool      `json:"proxy,omitempty"`   // a proxy, not an app
	Deleted bool      `json:"deleted,omitempty"` // not an app, but the ID of a deleted image, which is not reused
}

// apps holds every app, proxy and deleted image ID.
type apps struct {
	path string

	mu   sync.Mutex
	byID map[string]app // guarded by mu; by account and ID
}

func openApps(dir string) (*apps, error) {
	a := &apps{path: filepath.Join(dir, appsFile), byID: map[string]app{}}
	data, err := os.ReadFile(a.path)
	if errors.IsNotExist(err) {
		return a, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &a.byID)
	}
	return a, errors.Wrapf(err, "read the apps")
}

// appName matches the names that Modal allows for apps, environments, sandboxes and the like.
var appName = pattern.New(`^[a-zA-Z0-9_.-]{1,64}$`)

func checkName(what, name string) error {
	if appName().MatchString(name) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "Invalid %s name: '%.80s'", what, name),
		"Use 1 to 64 letters, digits, '-', '_' or '.'")
}

func appIDOf(env, name string) string { return named(appID, env+"/"+name) }

// appOf is the inverse of appIDOf.
func appOf(id string) (env, name string, err error) {
	both, err := nameOf(id, appID, "App")
	if err != nil {
		return "", "", err
	}
	env, name, ok := strings.Cut(both, "/")
	if !ok || checkName("App", name) != nil {
		return "", "", missing("App", id)
	}
	return env, name, nil
}

// ensure checks that the object with that ID exists. If it does not, create decides whether ensure creates it
// or fails.
func (a *apps) ensure(id string, made app, create bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := made.Account + " " + id
	if _, ok := a.byID[key]; ok {
		return nil
	}
	if !create {
		return errors.Newf(errors.NotFound, "App '%.80s' not found in environment '%.80s'", made.Name, made.Env)
	}
	a.byID[key] = made
	return a.save()
}

// delete records that the image with an ID was deleted.
func (a *apps) delete(account, id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byID[account+" "+id] = app{Account: account, Name: id, Created: time.Now().UTC(), Deleted: true}
	return a.save()
}

// undelete removes the records that delete made for IDs.
func (a *apps) undelete(account string, ids ...string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed := false
	for _, id := range ids {
		if key := account + " " + id; a.byID[key].Deleted {
			delete(a.byID, key)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return a.save()
}

// deleted reports whether delete recorded the image.
func (a *apps) deleted(account, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[account+" "+id].Deleted
}

// list returns the apps or proxies of an account, sorted by name.
func (a *apps) list(account string, proxies bool) []app {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []app
	for _, key := range slices.Sorted(maps.Keys(a.byID)) {
		if made := a.byID[key]; made.Account == account && made.Proxy == proxies && !made.Deleted {
			found = append(found, made)
		}
	}
	return found
}

// has reports whether an account has apps in an environment.
func (a *apps) has(account, env string) bool {
	return slices.ContainsFunc(a.list(account, false), func(made app) bool { return made.Env == env })
}

// save writes the file. a.mu is held.
func (a *apps) save() error {
	data, err := json.Marshal(a.byID)
	if err == nil {
		err = os.WriteFile(a.path+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(a.path+".new", a.path)
	}
	return errors.Wrapf(err, "remember an app")
}

// creates reports whether a missing object is to be created.
func creates(t pb.ObjectCreationType) bool {
	return t != pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED
}

// AppGetOrCreate implements ModalClient.
func (c *control) AppGetOrCreate(ctx context.Context,
	req *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	if err := errors.Join(checkName("App", req.GetAppName()), checkEnv(req.GetEnvironmentName())); err != nil {
		return nil, err
	}
	made := app{Account: callerOf(ctx).Account, Env: envOr(req.GetEnvironmentName()), Name: req.GetAppName(),
		Created: time.Now().UTC()}
	id := appIDOf(made.Env, made.Name)
	if err := c.s.apps.ensure(id, made, creates(req.GetObjectCreationType())); err != nil {
		return nil, err
	}
	return pb.AppGetOrCreateResponse_builder{AppId: id}.Build(), nil
}

// AppList implements ModalClient.
func (c *control) AppList(ctx context.Context, req *pb.AppListRequest) (*pb.AppListResponse, error) {
	var items []*pb.AppListResponse_AppListItem
	for _, made := range c.s.apps.list(callerOf(ctx).Account, false) {
		if req.GetEnvironmentName() == "" || made.Env == req.GetEnvironmentName() {
			items = append(items, pb.AppListResponse_AppListItem_builder{
				AppId: appIDOf(made.Env, made.Name), Name: made.Name, Description: made.Name,
				State: pb.AppState_APP_STATE_DEPLOYED, CreatedAt: seconds(made.Created),
			}.Build())
		}
	}
	return pb.AppListResponse_builder{Apps: items}.Build(), nil
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

// EnvironmentGetOrCreate implements ModalClient. Environments are prefixes of names: all of them exist.
func (c *control) EnvironmentGetOrCreate(_ context.Context,
	req *pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	if err := checkEnv(req.GetDeploymentName()); err != nil {
		return nil, err
	}
	name := envOr(req.GetDeploymentName())
	return pb.EnvironmentGetOrCreateResponse_builder{EnvironmentId: named(envID, name),
		Metadata: pb.EnvironmentMetadata_builder{
			Name: name, Settings: pb.EnvironmentSettings_builder{ImageBuilderVersion: builderVersion}.Build(),
		}.Build()}.Build(), nil
}

// EnvironmentList implements ModalClient. It lists "main" and the environments that have apps.
func (c *control) EnvironmentList(ctx context.Context, _ *emptypb.Empty) (*pb.EnvironmentListResponse, error) {
	names := map[string]bool{mainEnvName: true}
	for _, made := range c.s.apps.list(callerOf(ctx).Account, false) {
		names[made.Env] = true
	}
	var items []*pb.EnvironmentListItem
	for _, name := range slices.Sorted(maps.Keys(names)) {
		items = append(items, pb.EnvironmentListItem_builder{Name: name, Default: name == mainEnvName,
			EnvironmentId: named(envID, name)}.Build())
	}
	return pb.EnvironmentListResponse_builder{Items: items}.Build(), nil
}

// seconds is a time in the protocol's format.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
