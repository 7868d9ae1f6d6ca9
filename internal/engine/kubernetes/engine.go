// Package kubernetes is an engine whose sandboxes are pods of a Kubernetes cluster, one each. A pod runs the engine
// gvisor for its sandbox (package inside), and this package speaks to it: docs/decisions/061.
package kubernetes

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/installation"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire/mutual"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
)

// Name is the engine's name.
const Name = "kubernetes"

// Images is the engine's interface to the image library.
type Images interface {
	image.Builder
	// Root returns the path of the image's EROFS file.
	Root(img image.Image) string
	// Layer returns the path of a snapshot's changes to that file, "" for other images.
	Layer(img image.Image) string
	// Use protects the image from deletion until release is called.
	Use(id, who string) (release func(), err error)
}

// Options are the options of Open.
type Options struct {
	Dir     string // directory of the engine's records; created if missing
	Images  Images
	Volumes *volume.Local // of which pods have copies
	// S3 starts the S3 server through which volumes are shared with pods, when the first one is.
	S3 func(context.Context) (*embedded.Server, error)

	// Kubeconfig is a file of kubectl's form; "" means KUBECONFIG and ~/.kube/config, or the service account of the pod
	// in which this process runs. Context is one of its contexts, "" for the current one.
	Kubeconfig, Context string
	Namespace           string // "" means the context's
	Pod                 Pod
	Reach               Reach

	Start time.Duration // how long a pod may take to run; 0 means 5 minutes
}

// Reach is the way of the server's connections to pods.
type Reach string

// The ways.
const (
	Auto    Reach = "auto"    // Direct within the cluster, and Forward elsewhere
	Direct  Reach = "direct"  // to the address of the pod
	Forward Reach = "forward" // through the API server, as kubectl port-forward does
)

// Engine runs sandboxes as pods. It implements engine.Engine and engine.Warmer.
type Engine struct {
	opts      Options
	server    string // name of this installation, a label of its pods
	api       *api
	authority *mutual.Authority
	pods      *pods
	digests   *digests
	volumes   *volumes
	running   context.Context // ends with Close
	cancel    context.CancelFunc
	tasks     sync.WaitGroup

	mu    sync.Mutex
	known map[string]*holding // by name of the pod; guarded by mu
}

// holding is what this process knows of a pod beyond what Kubernetes does.
type holding struct {
	id      string // Spec.ID, "" before the claim
	ending  bool   // Destroy has been called
	views   []view // volumes of which the pod has copies
	release func() // of the image and the volumes; may be nil

	life context.Context // of its connections: follow; nil before
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.Warmer = (*Engine)(nil)

	_ engine.Announcer = (*Engine)(nil)
)

const (
	startTime = 5 * time.Minute  // default of Options.Start
	openTime  = 30 * time.Second // how long the API server may take to answer at first
)

// Open connects to the cluster, and adopts the pods of this installation. Kinds: Invalid for a configuration that
// cannot work, Unauthenticated and Denied if the cluster refuses it, Unavailable if the cluster cannot be reached.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	opts.Start, opts.Reach = cmp.Or(opts.Start, startTime), cmp.Or(opts.Reach, Auto)
	if opts.Pod.Image == "" {
		return nil, noImage()
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make the directory of the engine kubernetes")
	}
	api, err := connect(opts)
	if err != nil {
		return nil, err
	}
	server, err := installation.Name(filepath.Join(opts.Dir, "server"))
	if err != nil {
		return nil, err
	}
	authority, err := mutual.Open(opts.Dir)
	if err != nil {
		return nil, err
	}
	e := &Engine{opts: opts, server: server, api: api, authority: authority,
		digests: openDigests(filepath.Join(opts.Dir, "digests.json")), known: map[string]*holding{}}
	e.volumes = newVolumes(e, opts.Volumes, opts.S3)
	limited, stop := context.WithTimeout(ctx, openTime)
	defer stop()
	if err := api.try(limited); err != nil {
		return nil, err
	}
	tasks, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e.running, e.cancel = tasks, cancel
	e.pods = watchPods(tasks, &e.tasks, api, labelServer+"="+server)
	if err := e.pods.wait(limited, func() (bool, error) { return e.pods.listed(), nil }); err != nil {
		return nil, errors.Join(api.explain(err, "list the pods"), e.Close())
	}
	for _, p := range e.pods.list() {
		e.adopt(ctx, p)
	}
	e.tasks.Go(func() { e.renew(tasks) })
	e.tasks.Go(func() { e.volumes.save(tasks) })
	return e, nil
}

// adopt notes a pod of an earlier process, and protects its image.
func (e *Engine) adopt(ctx context.Context, p *corev1.Pod) {
	h := &holding{id: p.Annotations[noteSandbox]}
	if deleted(p) { // for a suspension, for example: another pod may have the sandbox by now
		h.id = ""
	}
	if img := p.Annotations[noteImage]; img != "" {
		release, err := e.opts.Images.Use(img, engine.Holder(h.id))
		if err != nil {
			logf.Errorf(ctx, "adopt the pod %s: %v", p.Name, err)
		}
		h.release = release
	}
	e.mu.Lock()
	e.known[p.Name] = h
	e.mu.Unlock()
	views, err := viewsNoted(p.Annotations[noteVolumes])
	if err == nil {
		var unused func()
		if unused, err = e.volumes.use(views, engine.Holder(h.id)); err == nil {
			e.hold(p.Name, views, unused)
		}
	}
	if err != nil {
		logf.Errorf(ctx, "adopt the volumes of the pod %s: %v", p.Name, err)
	}
	e.follow(p.Name)
}

// hold notes what a pod has. release is called when the pod is destroyed.
func (e *Engine) hold(name string, views []view, release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.known[name]
	if h == nil { // it was destroyed meanwhile
		release()
		return
	}
	h.views = append(h.views, views...)
	before := h.release
	h.release = func() {
		if before != nil {
			before()
		}
		release()
	}
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return Name }

// Capabilities implements engine.Engine.
func (e *Engine) Capabilities() engine.Capabilities {
	isolation := "gvisor/systrap in a pod"
	if class := e.opts.Pod.RuntimeClass; class != "" {
		isolation += " of the runtime class " + class
	}
	return engine.Capabilities{Isolation: isolation, Terminal: true, Reopen: true, Warm: true, Users: true,
		Network: true, Rules: true, Denials: true, Intercept: true, Snapshot: true, Usage: true, Hostname: true,
		Isolated: true, Volumes: true, Views: true,
		Limits: []string{"cpu", "memory", "processes", "disk", "files"},
		Missing: []string{
			"no cgroups in a pod: the memory limit is watched ten times a second, below that of the pod",
			"no users of their own: sandboxes run as the pod's user 0, without its capabilities",
			"sandboxes in pods have no checkpoints of memory and no private networks yet",
		}}
}

// Images implements engine.Engine.
func (e *Engine) Images() image.Builder { return e.opts.Images }

// Volumes implements engine.Engine.
func (e *Engine) Volumes() volume.Provider { return e.volumes }

// Close implements engine.Engine. Pods keep running.
func (e *Engine) Close() error {
	e.cancel()
	e.tasks.Wait()
	e.volumes.hub.Close()
	e.api.close()
	return nil
}

// List implements engine.Engine.
func (e *Engine) List(ctx context.Context) ([]engine.Handle, error) {
	all, err := e.api.list(ctx, labelServer+"="+e.server)
	if err != nil {
		return nil, err
	}
	handles := []engine.Handle{}
	for _, p := range all {
		if p.DeletionTimestamp == nil {
			handles = append(handles, engine.Handle{ID: p.Annotations[noteSandbox], Ref: p.Name})
		}
	}
	return handles, nil
}

// Open implements engine.Engine.
func (e *Engine) Open(ctx context.Context, h engine.Handle) (engine.Sandbox, error) {
	p, err := e.api.get(ctx, h.Ref)
	if errors.Is(err, errors.NotFound) || err == nil && (p.DeletionTimestamp != nil ||
		p.Labels[labelServer] != e.server || p.Annotations[noteSandbox] != h.ID) {
		return nil, errors.Newf(errors.NotFound, "sandbox %q is gone", h.ID)
	}
	if err != nil {
		return nil, err
	}
	return e.sandbox(h), nil
}

// take registers a pod for a sandbox. The ID must be unused.
func (e *Engine) take(name, id string) (*holding, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for other, h := range e.known {
		if id != "" && h.id == id && other != name {
			return nil, errors.Newf(errors.Conflict, "sandbox %q: already exists", id)
		}
	}
	h := e.known[name]
	if h == nil {
		h = &holding{}
		e.known[name] = h
	}
	h.id = id
	return h, nil
}

// holdingOf returns what is known of a pod, nil for a pod that was destroyed.
func (e *Engine) holdingOf(name string) *holding {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.known[name]
}

// drop forgets a pod, and releases its image.
func (e *Engine) drop(name string) {
	e.mu.Lock()
	h := e.known[name]
	delete(e.known, name)
	e.mu.Unlock()
	if h != nil && h.release != nil {
		h.release()
	}
	e.pods.wake()
}

// destroy ends the sandbox of a pod, and deletes the pod. It returns when Kubernetes has accepted the deletion.
func (e *Engine) destroy(ctx context.Context, name string) error {
	if h := e.holdingOf(name); h != nil {
		e.mu.Lock()
		h.ending = true
		e.mu.Unlock()
	}
	if err := e.api.delete(ctx, name); err != nil && !errors.Is(err, errors.NotFound) {
		return errors.Stage(err, "destroy")
	}
	e.drop(name)
	return nil
}
