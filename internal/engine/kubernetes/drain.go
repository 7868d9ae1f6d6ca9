package kubernetes

import (
	"context"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
)

// leaving reports whether Kubernetes evicts a pod, such as for a drain of its node, and the pod still runs in the time
// that it has. Who deletes a pod wants no other one.
func leaving(p *corev1.Pod, now time.Time) bool {
	if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil ||
		*p.DeletionGracePeriodSeconds <= endSeconds || p.Status.Phase != corev1.PodRunning || now.After(graceOver(p)) {
		return false
	}
	evicted := false
	for _, c := range p.Status.Conditions {
		switch c.Type {
		case corev1.DisruptionTarget:
			evicted = c.Status == corev1.ConditionTrue
		case corev1.PodReady: // False while its node does not answer
			if c.Status != corev1.ConditionTrue {
				return false
			}
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Terminated != nil {
			return false
		}
	}
	return evicted
}

// graceOver is when Kubernetes kills a pod that is being deleted.
func graceOver(p *corev1.Pod) time.Time { return p.DeletionTimestamp.Time }

// Announced implements engine.Announcer.
func (e *Engine) Announced() <-chan struct{} { return e.pods.leaving }

// Ends implements engine.Carrier: Kubernetes says that it ends a pod when it evicts it.
func (s *Sandbox) Ends() (due, end time.Time) {
	p := s.e.pods.get(s.h.Ref)
	if p == nil || !leaving(p, time.Now()) {
		return time.Time{}, time.Time{}
	}
	end = graceOver(p)
	return end.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second), end
}

// Carry implements engine.Carrier: another pod gets the files of the sandbox, and its volumes.
func (s *Sandbox) Carry(ctx context.Context) (engine.Sandbox, error) {
	next, err := s.carry(ctx)
	if err != nil {
		return nil, errors.Stage(err, "carry over")
	}
	return next, nil
}

// Spec implements engine.Described.
func (s *Sandbox) Spec(ctx context.Context) (engine.Spec, error) {
	spec, _, err := s.described(ctx)
	return spec, err
}

// described returns the Spec of the sandbox and the files of its image, over which its own files are changes.
// Unsupported: they are no longer those that it began with.
func (s *Sandbox) described(ctx context.Context) (engine.Spec, files, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return engine.Spec{}, files{}, err
	}
	claimed, err := pod.Describe(ctx, conn)
	if err != nil {
		return engine.Spec{}, files{}, err
	}
	img, err := s.e.opts.Images.Find(ctx, claimed.Image.ID)
	if err != nil {
		return engine.Spec{}, files{}, errors.Stage(err, "image")
	}
	from := s.e.filesOf(img)
	if digest, err := s.e.digests.of(ctx, from.root); err != nil || digest != claimed.Image.Root {
		return engine.Spec{}, files{}, errors.Join(err, errors.Newf(errors.Unsupported,
			"the image %s was built anew since sandbox %s began", img.ID, s.h.ID))
	}
	return claimed.Spec, from, nil
}

func (s *Sandbox) carry(ctx context.Context) (_ *Sandbox, err error) {
	e := s.e
	spec, from, err := s.described(ctx)
	if err != nil {
		return nil, err
	}
	changed, err := os.CreateTemp(e.opts.Dir, "carried-")
	if err != nil {
		return nil, errors.Wrapf(err, "store the files of a sandbox")
	}
	defer os.Remove(changed.Name())
	defer changed.Close()
	from.layer = changed.Name()
	var to *warm
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Snapshot(both, "", changed) })
	group.Go(func() (err error) {
		to, err = e.boot(both, "", spec.Account, spec.Limits, nil)
		return err
	})
	err = group.Wait()
	if to != nil {
		defer func() {
			if err != nil {
				err = errors.Join(err, to.Destroy(context.WithoutCancel(ctx)))
			}
		}()
	}
	if err != nil {
		return nil, err
	}
	// From here on, the sandbox is only in the new pod: what its processes would still change would be lost.
	if _, err := s.Call(ctx, wire.Request{Op: wire.Destroy}); err != nil {
		logf.Warnf(ctx, "the keeper of sandbox %s does not end it: %v", s.h.ID, err)
	}
	if err := e.volumes.keep(ctx, s.h.Ref); err != nil {
		return nil, err
	}
	e.leave(s.h.Ref)
	if err := to.claim(ctx, spec, from); err != nil {
		return nil, err
	}
	to.take()
	return e.sandbox(engine.Handle{ID: s.h.ID, Ref: to.name}), nil
}

// leave takes the sandbox's ID from a pod, so that another one can have it.
func (e *Engine) leave(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.known[name]; h != nil {
		h.id = ""
	}
}
