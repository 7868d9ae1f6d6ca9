package kubernetes

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	if err := pod.Supported(spec); err != nil {
		return nil, err
	}
	if _, err := e.opts.Images.Find(ctx, spec.Image); err != nil {
		return nil, errors.Stage(err, "image")
	}
	w, err := e.boot(ctx, spec.ID, spec.Account, spec.Limits, spec.Stage)
	if err != nil {
		return nil, err
	}
	return w.Claim(ctx, spec)
}

// Warm implements engine.Warmer.
func (e *Engine) Warm(ctx context.Context, limits engine.Limits) (engine.Warm, error) {
	return e.boot(ctx, "", "", limits, nil)
}

// warm is a pod whose sandbox has no image yet. Its agent has the pod's name as its identity.
type warm struct {
	e     *Engine
	name  string
	mu    sync.Mutex
	taken bool // it is claimed or destroyed; guarded by mu
}

// take marks the pod as taken. It reports whether it was taken before.
func (w *warm) take() (before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, w.taken = w.taken, true
	return before
}

// conflict returns the error of a pod that is taken.
func (w *warm) conflict() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken {
		return errors.Newf(errors.Conflict, "the sandbox is taken")
	}
	return nil
}

// boot creates a pod, and waits until its agent listens. If it fails, there is no pod.
func (e *Engine) boot(ctx context.Context, id, account string, limits engine.Limits,
	stage func(string, time.Duration)) (w *warm, err error) {
	name := newName()
	if _, err := e.take(name, id); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(errors.Stage(err, "boot"), e.destroy(context.WithoutCancel(ctx), name))
		}
	}()
	described, err := e.describe(name, id, account, limits)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	step := func(name string) {
		if stage != nil {
			stage(name, time.Since(begun))
		}
		begun = time.Now()
	}
	if err := e.api.create(ctx, described); err != nil {
		return nil, err
	}
	if err := e.awaitPod(ctx, name); err != nil {
		return nil, err
	}
	step("pod")
	c, err := e.authority.Keeper(name)
	if err != nil {
		return nil, err
	}
	if err := e.api.greet(ctx, name, c); err != nil {
		return nil, err
	}
	step("boot")
	return &warm{e: e, name: name}, nil
}

// awaitPod waits until the first process of a pod runs.
func (e *Engine) awaitPod(ctx context.Context, name string) error {
	limited, cancel := context.WithTimeout(ctx, e.opts.Start)
	defer cancel()
	err := e.pods.wait(limited, func() (bool, error) {
		p := e.pods.get(name)
		if p == nil {
			return false, nil
		}
		if end := endOf(p); end != nil {
			return false, errors.Newf(errors.Unavailable, "the pod did not start: %s", end.Detail)
		}
		return p.Status.Phase == corev1.PodRunning, stuck(p)
	})
	if err == nil {
		e.follow(name)
	}
	if limited.Err() == nil || err == nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.Wrapf(ctx.Err(), "wait for the pod %s: %s", name, awaits(e.pods.get(name)))
	}
	err = errors.Explainf(err, errors.Exhausted, "the pod did not run within %s: %s", e.opts.Start,
		awaits(e.pods.get(name)))
	return errors.Remedy(err, "add nodes, or lower kubernetes.cpu and kubernetes.memory: kubectl get events -n %s",
		e.api.namespace)
}

// Handle implements engine.Warm.
func (w *warm) Handle() engine.Handle { return engine.Handle{Ref: w.name} }

// connect connects to the agent before the claim.
func (w *warm) connect(ctx context.Context) (*wire.Conn, error) {
	return w.e.connect(ctx, w.name, w.name)
}

// Prepare implements engine.Preparer.
func (w *warm) Prepare(ctx context.Context, img string, warmUp []string) error {
	err := w.conflict()
	if err == nil {
		err = w.prepare(ctx, img, warmUp)
	}
	if taken := w.conflict(); err != nil && taken != nil {
		return taken
	}
	return err
}

func (w *warm) prepare(ctx context.Context, img string, warmUp []string) error {
	found, err := w.e.opts.Images.Find(ctx, img)
	if err != nil {
		return errors.Stage(err, "image")
	}
	sent, err := w.send(ctx, w.e.filesOf(found))
	if err != nil {
		return err
	}
	conn, err := w.connect(ctx)
	if err != nil {
		return err
	}
	return pod.Prepare(ctx, conn, sent, warmUp)
}

// files are the files of an image on this machine.
type files struct {
	image.Image
	root, layer string // paths; layer is "" for none
}

func (e *Engine) filesOf(img image.Image) files {
	return files{img, e.opts.Images.Root(img), e.opts.Images.Layer(img)}
}

// send sends the files of an image to the pod, unless it has them.
func (w *warm) send(ctx context.Context, f files) (pod.Image, error) {
	sent := pod.Image{ID: f.ID, Config: f.Config}
	var err error
	if sent.Root, err = w.sendFile(ctx, f.root); err != nil {
		return sent, errors.Stage(err, "image")
	}
	if f.layer != "" {
		if sent.Layer, err = w.sendFile(ctx, f.layer); err != nil {
			return sent, errors.Stage(err, "image")
		}
	}
	return sent, nil
}

func (w *warm) sendFile(ctx context.Context, path string) (digest string, err error) {
	if digest, err = w.e.digests.of(ctx, path); err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", errors.Wrapf(err, "open a file of an image")
	}
	defer f.Close()
	conn, err := w.connect(ctx)
	if err != nil {
		return "", err
	}
	_, err = pod.Send(ctx, conn, digest, f)
	return digest, err
}

// Claim implements engine.Warm.
func (w *warm) Claim(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	if w.take() {
		return nil, errors.Newf(errors.Conflict, "the sandbox is taken")
	}
	img, err := w.e.opts.Images.Find(ctx, spec.Image)
	if err != nil {
		err = errors.Stage(err, "image")
	} else {
		err = w.claim(ctx, spec, w.e.filesOf(img))
	}
	if err != nil {
		return nil, errors.Join(errors.Stage(err, "start"), w.e.destroy(context.WithoutCancel(ctx), w.name))
	}
	return w.e.sandbox(engine.Handle{ID: spec.ID, Ref: w.name}), nil
}

// claim makes the pod's sandbox the one of a spec, with the files of its image.
func (w *warm) claim(ctx context.Context, spec engine.Spec, img files) error {
	if _, err := w.e.take(w.name, spec.ID); err != nil {
		return err
	}
	unprotect, err := w.e.opts.Images.Use(img.ID, engine.Holder(spec.ID))
	if err != nil {
		return errors.Stage(err, "image")
	}
	w.e.hold(w.name, nil, unprotect)
	views := viewsOf(spec)
	unused, err := w.e.volumes.use(views, engine.Holder(spec.ID))
	if err != nil {
		return err
	}
	w.e.hold(w.name, views, unused)
	sent, err := w.fill(ctx, img, views, spec.Stage)
	if err != nil {
		return err
	}
	noted, err := note(views)
	if err != nil {
		return err
	}
	// The pod's labels are first, so that no sandbox exists without its ID: List finds it, whatever happens then.
	err = w.e.api.note(ctx, w.name, w.e.labels(spec.ID, spec.Account),
		map[string]string{noteSandbox: spec.ID, noteImage: img.ID, noteVolumes: noted})
	if err != nil {
		return err
	}
	c, err := w.e.authority.Keeper(spec.ID)
	if err != nil {
		return err
	}
	conn, err := w.connect(ctx)
	if err != nil {
		return err
	}
	spec.Image = img.ID
	return pod.Claim(ctx, conn, spec, sent, c)
}

// fill sends the files of an image to the pod, and the volumes at the same time.
func (w *warm) fill(ctx context.Context, img files, views []view,
	stage func(string, time.Duration)) (sent pod.Image, err error) {
	group, ctx := errgroup.WithContext(ctx)
	step := func(name string, f func() error) {
		group.Go(func() error {
			begun := time.Now()
			err := f()
			if err == nil && stage != nil {
				stage(name, time.Since(begun))
			}
			return err
		})
	}
	step("image", func() (err error) {
		sent, err = w.send(ctx, img)
		return err
	})
	if len(views) > 0 {
		step("volumes", func() error { return w.e.volumes.syncAll(ctx, w.name, w.name, views) })
	}
	return sent, group.Wait()
}

// Destroy implements engine.Warm.
func (w *warm) Destroy(ctx context.Context) error {
	if w.take() {
		return nil
	}
	return w.e.destroy(ctx, w.name)
}
