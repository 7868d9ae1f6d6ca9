// Package modal is an engine whose sandboxes run at Modal (https://modal.com), through Modal's official Go SDK.
// The SDK lacks signals, resizable terminals and reopening of commands. A program of Harvest's own in each
// sandbox provides them: package inside.
package modal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/installation"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/credentials"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Lifetime is the maximum lifetime of a sandbox at Modal.
const Lifetime = 24 * time.Hour

// Options are the options of Open.
type Options struct {
	Dir string // directory of the engine's records; created if missing
	// Executable is a static program that calls inside.Main at the start of main; "" for the running one.
	Executable string
	// TokenID and TokenSecret default to those that Modal's SDK finds in its environment variables or its file.
	TokenID     string
	TokenSecret string
	Environment string // Modal's environment; defaults to the profile's
	// App is the app of sandboxes without an account, and the prefix of the accounts' apps. It defaults to
	// "harvest".
	App         string
	Image       string // registry image behind the name "base"; defaults to DefaultImage
	OutputBytes int64  // output kept of each command; 0 means 16 MiB
	// Locate returns the place of an account's bucket. It is called for each new sandbox that mounts the
	// bucket. If it is nil, buckets cannot be mounted.
	Locate func(ctx context.Context, account string, b places.Place) (Place, error)

	Life time.Duration // lifetime of sandboxes at Modal, in whole seconds; 0 means Lifetime
	// CarryAhead is how long before the end of Life a sandbox is due to be carried over. 0 means an hour, but
	// at most a quarter of Life.
	CarryAhead time.Duration
	VolumeIdle time.Duration // how long an attendant of a volume stays idle; 0 means a minute

	patience call.Patience // the zero value means usual
}

// DefaultImage is the image behind "base" unless Options.Image is set.
const DefaultImage = "python:3.13-slim-bookworm"

// Tags of Harvest's sandboxes at Modal.
const (
	tagServer = "harvest-server" // the installation of Harvest that made it
	tagID     = "harvest-id"     // engine.Handle.ID
	tagEnd    = "harvest-end"    // when Modal ends it, in seconds since 1970
)

var refPattern = pattern.New(`^sb-[A-Za-z0-9]{1,64}$`)

// Engine runs sandboxes at Modal.
type Engine struct {
	opts       Options
	patience   call.Patience
	server     string // name of this installation
	to         *server
	client     *sdk.Client
	apps       *apps
	images     *images
	helper     *helper
	volumes    *volumes
	attendants *attendants
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc

	mu      sync.Mutex
	ids     map[string]string  // guarded by mu; Handle.ID by Ref, where known
	links   map[string]*link   // guarded by mu; by Ref
	ended   map[string]seenEnd // guarded by mu; by Ref; sandboxes that this process destroyed or whose end it saw
	endings map[string]*ending // guarded by mu; pending waits, by Ref
}

var _ engine.Engine = (*Engine)(nil)

// Configured returns nil if Modal's SDK finds complete credentials, valid or not, in opts, in the environment or in its
// file, in this order for each part. Unauthenticated without any. Invalid if they are incomplete or ambiguous, or
// if the file cannot be read, without which the SDK does not work.
func Configured(opts Options, env func(string) string) error {
	return credentials.Check(opts.TokenID, opts.TokenSecret, env)
}

// ask makes a call that may be repeated, with a deadline.
func ask[T any](ctx context.Context, e *Engine, what string, do func(ctx context.Context) (T, error)) (T, error) {
	return call.Attempt(ctx, ctx, e.patience.Call, what, do)
}

// Open connects to Modal. Kinds: Unauthenticated without credentials, or if Modal refuses them; those of
// Configured; Unavailable if Modal cannot be reached.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	opts.App = cmp.Or(opts.App, "harvest")
	opts.Image = cmp.Or(opts.Image, DefaultImage)
	if opts.OutputBytes == 0 {
		opts.OutputBytes = 16 << 20
	}
	opts.Life = cmp.Or(opts.Life, Lifetime)
	opts.CarryAhead = cmp.Or(opts.CarryAhead, min(time.Hour, opts.Life/4))
	opts.VolumeIdle = cmp.Or(opts.VolumeIdle, time.Minute)
	opts.patience = cmp.Or(opts.patience, call.Usual)
	if err := Configured(opts, os.Getenv); err != nil {
		return nil, err
	}
	if opts.Executable == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, errors.Wrapf(err, "find the own program")
		}
		opts.Executable = path
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make the directory of the engine modal")
	}
	self, err := installation.Name(filepath.Join(opts.Dir, "server"))
	if err != nil {
		return nil, err
	}
	to := &server{}
	client, err := sdk.NewClientWithOptions(&sdk.ClientParams{
		TokenID: opts.TokenID, TokenSecret: opts.TokenSecret, Environment: opts.Environment,
		GRPCUnaryInterceptors:  []grpc.UnaryClientInterceptor{opts.patience.Limit, seeResult, keep, to.call},
		GRPCStreamInterceptors: []grpc.StreamClientInterceptor{opts.patience.LimitStream},
	})
	if err != nil {
		return nil, call.Explain(err, "read the configuration of Modal")
	}
	e := &Engine{
		opts: opts, patience: opts.patience, server: self, to: to, client: client, ids: map[string]string{},
		links: map[string]*link{}, ended: map[string]seenEnd{}, endings: map[string]*ending{},
	}
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.attendants = &attendants{e: e, idle: opts.VolumeIdle, swept: make(chan struct{}), all: map[string]*attendant{}}
	// A starting server must soon notice that Modal is unreachable, and the SDK retries by itself.
	limited, cancel := context.WithTimeout(ctx, e.patience.Open)
	defer cancel()
	if e.apps, err = openApps(limited, e); err != nil {
		err = call.Explain(err, "find the app")
		if limited.Err() != nil && ctx.Err() == nil {
			err = call.Unanswered(err, e.patience.Open)
		}
		return nil, errors.Join(err, e.Close())
	}
	e.images = &images{e: e, records: records.Images{Dir: filepath.Join(opts.Dir, "images")}}
	e.helper = &helper{e: e}
	e.volumes = &volumes{e: e, records: records.Volumes{Dir: filepath.Join(opts.Dir, "volumes")}}
	for _, dir := range []string{e.images.records.Dir, e.volumes.records.Dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, errors.Join(errors.Wrapf(err, "make a directory of the engine modal"), e.Close())
		}
	}
	go e.attendants.sweep()
	return e, nil
}

// Name returns "modal".
func (e *Engine) Name() string { return "modal" }

// Capabilities returns the capabilities of the SDK and of the program in each sandbox.
func (e *Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{
		Isolation: "Modal (gVisor, on machines of Modal's)", Limits: []string{"cpu", "memory"},
		Missing: []string{
			"Modal lets no sandbox live longer than 24 hours: one that is meant to is carried over to a new one with " +
				"its files an hour before, and its commands end.",
			"An end for lack of memory is recognised only if Modal reports it.",
			"The number of processes, of open files and the disk have Modal's own limits.",
			"Each sandbox has a view of a volume of its own: other sandboxes see its files once they are committed " +
				"and reloaded. The disk limit does not count for volumes.",
			"Snapshots are of all files: one of a directory alone is not possible, and none has the memory.",
			"Values of Modal's own secrets are not known to Harvest, which hides them nowhere.",
			"Volumes are not synchronised with S3: that needs their files on this machine.",
			"Networks are Modal's: rules have no ports, nothing is denied by a rule, a domain is reached by TLS at " +
				"port 443 alone, and with rules every name can be looked up.",
			"What the network refuses is not told, and what of Modal's own addresses the internet includes is " +
				"Modal's affair.",
			"Warm sandboxes do not exist.",
			"The host name is Modal's.",
		},
		Terminal: true, Reopen: true, Users: true, Network: true, GPUs: true, Secrets: true, Isolated: true,
		Volumes: true, Views: true, Imager: true, Buckets: e.opts.Locate != nil,
	}
}

// Images returns the builder of images at Modal.
func (e *Engine) Images() image.Builder { return e.images }

// Volumes returns the provider of Modal's volumes.
func (e *Engine) Volumes() volume.Provider { return e.volumes }

// Close closes the connections. Sandboxes keep running.
func (e *Engine) Close() error {
	e.cancel()
	e.attendants.close()
	e.mu.Lock()
	links := e.links
	e.links = map[string]*link{}
	e.mu.Unlock()
	for _, l := range links {
		l.close()
	}
	closed := make(chan struct{})
	go func() {
		e.client.Close()
		close(closed)
	}()
	select { // closing the SDK waits for calls that may never end
	case <-closed:
	case <-time.After(call.Grace):
	}
	return nil
}

// Open finds a sandbox. NotFound also if Modal has ended it.
func (e *Engine) Open(ctx context.Context, h engine.Handle) (engine.Sandbox, error) {
	gone := errors.Newf(errors.NotFound, "sandbox %.100s is gone", h.ID)
	if end := e.endOf(h.Ref); !refPattern().MatchString(h.Ref) || end != nil && !end.Destroyed {
		return nil, gone
	}
	box, err := e.client.Sandboxes.FromID(ctx, h.Ref, nil)
	if err != nil {
		return nil, call.Explain(err, "find a sandbox")
	}
	tags, err := ask(ctx, e, "look at a sandbox", func(ctx context.Context) (map[string]string,
		error) {
		return box.GetTags(ctx, nil)
	})
	if errors.KindOf(err) == errors.NotFound || err == nil && (tags[tagServer] != e.server || tags[tagID] != h.ID) {
		return nil, gone
	}
	if err != nil {
		return nil, err
	}
	code, err := ask(ctx, e, "look at a sandbox", func(ctx context.Context) (*int, error) { return box.Poll(ctx, nil) })
	if err != nil && errors.KindOf(err) != errors.NotFound {
		return nil, err
	}
	if err != nil || code != nil {
		return nil, gone
	}
	sb := e.sandbox(h, box)
	if at, err := strconv.ParseInt(tags[tagEnd], 10, 64); err == nil {
		sb.end = time.Unix(at, 0)
	}
	return sb, nil
}

// List lists the running sandboxes of this installation, in the apps of all accounts.
func (e *Engine) List(ctx context.Context) ([]engine.Handle, error) {
	all, err := e.apps.all(ctx)
	if err != nil {
		return nil, err
	}
	handles := []engine.Handle{}
	for _, app := range all {
		some, err := ask(ctx, e, "list the sandboxes", func(ctx context.Context) ([]engine.Handle,
			error) {
			return e.listOf(ctx, app)
		})
		if err != nil {
			return nil, err
		}
		handles = append(handles, some...)
	}
	return handles, nil
}

func (e *Engine) listOf(ctx context.Context, app *sdk.App) ([]engine.Handle, error) {
	var handles []engine.Handle
	all, err := e.client.Sandboxes.List(ctx, &sdk.SandboxListParams{AppID: app.AppID,
		Tags: map[string]string{tagServer: e.server}})
	if err != nil {
		return nil, err
	}
	for box, err := range all {
		if err != nil {
			return nil, err
		}
		id, err := e.idOf(ctx, box)
		if err != nil {
			return nil, err
		}
		if id != "" {
			handles = append(handles, engine.Handle{ID: id, Ref: box.SandboxID})
		}
	}
	return handles, nil
}

// idOf returns the Handle.ID of a sandbox, or "" if it has ended meanwhile or was not made for a Spec.
func (e *Engine) idOf(ctx context.Context, box *sdk.Sandbox) (string, error) {
	e.mu.Lock()
	id, known := e.ids[box.SandboxID]
	e.mu.Unlock()
	if known {
		return id, nil
	}
	tags, err := box.GetTags(ctx, nil)
	if errors.KindOf(call.Explain(err, "")) == errors.NotFound {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	e.note(box.SandboxID, tags[tagID])
	return tags[tagID], nil
}

func (e *Engine) note(ref, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ids[ref] = id
}

// nameOf returns a sandbox's name at Modal, which is unique among the running ones.
func (e *Engine) nameOf(id string) string {
	name := e.server + "-" + id
	if len(name) <= 64 {
		return name
	}
	sum := sha256.Sum256([]byte(id))
	return e.server + "-" + hex.EncodeToString(sum[:16])
}

// params returns the SDK's parameters for a sandbox.
func (e *Engine) params(spec engine.Spec) (*sdk.SandboxCreateParams, error) {
	p := &sdk.SandboxCreateParams{
		Timeout: e.opts.Life, Name: e.nameOf(spec.ID), Tags: map[string]string{tagServer: e.server, tagID: spec.ID},
	}
	limits(p, spec.Limits)
	p.GPU = spec.GPU
	if err := network(p, spec.Network); err != nil {
		return nil, err
	}
	for name := range spec.Env {
		if err := engine.CheckEnvName(name); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Create starts a sandbox at Modal with the program inside, and sends that program the description of the
// sandbox.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, errors.Wrapf(err, "create sandbox %s", spec.ID)
	}
	img, err := e.images.records.Find(spec.Image)
	if err != nil {
		return nil, err
	}
	return e.launch(ctx, spec, img, e.nameOf(spec.ID))
}

// launch starts a sandbox from an image, and claims it.
func (e *Engine) launch(ctx context.Context, spec engine.Spec, img records.Image, name string) (engine.Sandbox, error) {
	params, err := e.params(spec)
	if err != nil {
		return nil, err
	}
	params.Name = name
	begin := time.Now()
	stage := func(name string) {
		if spec.Stage != nil {
			spec.Stage(name, time.Since(begin))
		}
		begin = time.Now()
	}
	if params.Secrets, err = e.secrets(ctx, spec.Secrets); err != nil {
		return nil, err
	}
	links, release, err := e.volumes.mount(ctx, spec, params)
	if err != nil {
		return nil, err
	}
	defer release()
	if ctx, err = e.buckets(ctx, spec, params); err != nil {
		return nil, err
	}
	if err := e.helper.mount(ctx, img, params); err != nil {
		return nil, err
	}
	stage("program")
	end := time.Now().Add(e.opts.Life)
	params.Tags[tagEnd] = strconv.FormatInt(end.Unix(), 10)
	app, err := e.apps.of(ctx, spec.Account)
	if err != nil {
		return nil, err
	}
	box, err := e.startIn(ctx, app, img, params)
	if err != nil {
		return nil, err
	}
	stage("sandbox")
	sb := e.sandbox(engine.Handle{ID: spec.ID, Ref: box.SandboxID}, box)
	sb.end = end
	e.note(box.SandboxID, spec.ID)
	found, err := sb.claim(ctx, spec, links)
	// With secrets, the environment found contains their values.
	if err == nil && img.Config.Env == nil && found != nil && len(spec.Secrets) == 0 {
		err = e.images.learn(img, *found)
	}
	if err != nil {
		return nil, errors.Join(err, sb.Destroy(context.WithoutCancel(ctx)))
	}
	stage("claim")
	return sb, nil
}
