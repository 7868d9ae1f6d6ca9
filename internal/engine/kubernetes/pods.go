package kubernetes

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// pods are the pods of this installation as Kubernetes last told. It implements cache.ReflectorStore.
type pods struct {
	mu      sync.Mutex
	all     map[string]*corev1.Pod // by name; guarded by mu
	ready   bool                   // all of them are known; guarded by mu
	changed chan struct{}          // closed and replaced at each change; guarded by mu
	leaving chan struct{}          // has a value after a pod began to leave
}

// watchPods follows the pods until ctx ends. It counts as one of the tasks.
func watchPods(ctx context.Context, tasks *sync.WaitGroup, a *api, selector string) *pods {
	p := &pods{all: map[string]*corev1.Pod{}, changed: make(chan struct{}), leaving: make(chan struct{}, 1)}
	watched := cache.NewFilteredListWatchFromClient(a.rest, resourcePods, a.namespace, func(o *metav1.ListOptions) {
		o.LabelSelector = selector
	})
	reflector := cache.NewReflectorWithOptions(watched, &corev1.Pod{}, p, cache.ReflectorOptions{Name: "pods"})
	tasks.Go(func() { reflector.RunWithContext(ctx) })
	return p
}

// change runs f, and wakes those who wait.
func (p *pods) change(f func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
}

// wake wakes those who wait, after a change of what they ask for beside the pods.
func (p *pods) wake() { _ = p.change(func() {}) } // never an error

// Add implements cache.ReflectorStore.
func (p *pods) Add(object any) error {
	return p.change(func() {
		if pod, ok := object.(*corev1.Pod); ok {
			p.put(pod)
		}
	})
}

// put notes a pod. If it leaves, put tells that, and wakes those who wait when its time is over. mu is held.
func (p *pods) put(pod *corev1.Pod) {
	now := time.Now()
	if leaving(pod, now) {
		select {
		case p.leaving <- struct{}{}:
		default: // told already
		}
		time.AfterFunc(graceOver(pod).Sub(now), p.wake)
	}
	p.all[pod.Name] = pod
}

// Update implements cache.ReflectorStore.
func (p *pods) Update(object any) error { return p.Add(object) }

// Delete implements cache.ReflectorStore.
func (p *pods) Delete(object any) error {
	return p.change(func() {
		if pod, ok := object.(*corev1.Pod); ok {
			delete(p.all, pod.Name)
		}
	})
}

// Replace implements cache.ReflectorStore.
func (p *pods) Replace(objects []any, _ string) error {
	return p.change(func() {
		p.all, p.ready = map[string]*corev1.Pod{}, true
		for _, object := range objects {
			if pod, ok := object.(*corev1.Pod); ok {
				p.put(pod)
			}
		}
	})
}

// Resync implements cache.ReflectorStore.
func (p *pods) Resync() error { return nil }

func (p *pods) listed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

// get returns the pod, nil if there is none.
func (p *pods) get(name string) *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[name]
}

func (p *pods) list() []*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*corev1.Pod, 0, len(p.all))
	for _, pod := range p.all {
		list = append(list, pod)
	}
	return list
}

// next returns a channel that is closed at the next change.
func (p *pods) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// wait returns when done returns true or an error, which it asks after each change.
func (p *pods) wait(ctx context.Context, done func() (bool, error)) error {
	for {
		changed := p.next()
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// deleted reports whether a pod is being deleted, without the time to carry its sandbox over. p may be nil.
func deleted(p *corev1.Pod) bool {
	return p != nil && p.DeletionTimestamp != nil && !leaving(p, time.Now())
}

// endOf returns how the sandbox of a pod has ended, as far as Kubernetes knows. It returns nil if the pod can still
// run, and for a pod that is not known: see gone.
func endOf(p *corev1.Pod) *engine.End {
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && t.Reason == "OOMKilled" {
			return &engine.End{OutOfMemory: true,
				Detail: "Kubernetes ended the pod, which needed more memory than its limit"}
		}
	}
	switch {
	case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
		return &engine.End{Lost: true, Detail: "Kubernetes ended the pod" + reasonOf(p)}
	case deleted(p):
		return &engine.End{Lost: true, Detail: "the pod was deleted" + reasonOf(p)}
	}
	return nil
}

// gone is the end of a sandbox whose pod has disappeared.
var gone = engine.End{Lost: true, Detail: "the pod was deleted"}

// reasonOf returns Kubernetes' reason for the end of a pod: ": Evicted: The node was low on resource: memory."
func reasonOf(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return reason(c.Reason, c.Message)
		}
	}
	if p.Status.Reason != "" || p.Status.Message != "" {
		return reason(p.Status.Reason, p.Status.Message)
	}
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil {
			return reason(t.Reason, t.Message)
		}
	}
	return ""
}

func reason(parts ...string) string {
	var text strings.Builder
	for _, part := range parts {
		if part = strings.TrimSpace(part); part != "" {
			text.WriteString(": " + strings.TrimSuffix(part, "."))
		}
	}
	return text.String()
}

// stuck returns an error for a pod that waits for something which does not come by itself.
func stuck(p *corev1.Pod) error {
	for _, c := range p.Status.ContainerStatuses {
		w := c.State.Waiting
		if w == nil {
			continue
		}
		switch w.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
			err := errors.Newf(errors.Unavailable, "Kubernetes cannot get the image of the pod: %s%s", w.Reason,
				reason(w.Message))
			return errors.Remedy(err, "push the image to a registry that the nodes reach, and set kubernetes.image")
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff":
			return errors.Newf(errors.Unavailable, "Kubernetes cannot start the pod: %s%s", w.Reason, reason(w.Message))
		}
	}
	return nil
}

// awaits says what a pod waits for.
func awaits(p *corev1.Pod) string {
	if p == nil {
		return "Kubernetes has not reported it yet"
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue {
			return "no node takes it" + reason(c.Message)
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return "its container waits" + reason(w.Reason, w.Message)
		}
	}
	return "its phase is " + string(p.Status.Phase)
}
