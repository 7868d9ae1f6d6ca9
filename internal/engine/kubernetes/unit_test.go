package kubernetes

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	a := &api{namespace: "work"}
	refused := func(code int32, message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: message}}
	}
	for _, c := range []struct {
		err    error
		kind   errors.Kind
		remedy string
	}{
		{refused(http.StatusNotFound, "pods x not found"), errors.NotFound, ""},
		{refused(http.StatusUnauthorized, "who?"), errors.Unauthenticated, "kubeconfig"},
		{refused(http.StatusForbidden, "pods is forbidden: exceeded quota: q"), errors.Exhausted, "namespace work"},
		{refused(http.StatusForbidden, "violates PodSecurity"), errors.Denied,
			"namespace work pod-security.kubernetes.io/enforce=privileged"},
		{refused(http.StatusForbidden, "cannot create resource"), errors.Denied, "deploy/kubernetes/rights.yaml"},
		{refused(http.StatusConflict, "exists"), errors.Conflict, ""},
		{refused(http.StatusUnprocessableEntity, "invalid"), errors.Invalid, ""},
		{refused(http.StatusTooManyRequests, "later"), errors.Exhausted, ""},
		{refused(http.StatusInternalServerError, "etcd"), errors.Unavailable, ""},
		{errors.Errorf("dial tcp: refused"), errors.Unavailable, "kubectl"},
		{errors.Newf(errors.Denied, "no"), errors.Denied, ""},
	} {
		got := a.explain(c.err, "create a pod")
		if errors.KindOf(got) != c.kind || !strings.Contains(errors.RemedyOf(got), c.remedy) {
			t.Errorf("%v is %s: %v, with the remedy %q", c.err, errors.KindOf(got), got, errors.RemedyOf(got))
		}
	}
	if err := a.explain(nil, "create a pod"); err != nil {
		t.Errorf("no error is %v", err)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	e := &Engine{server: "here", opts: Options{Pod: Pod{Image: "pod:1", RuntimeClass: "kata", UserNamespace: true,
		CPU: 0.5, Memory: 1 << 30, Cache: "/var/cache", NodeSelector: map[string]string{"pool": "a"},
		Tolerations: []string{"dedicated=sandboxes:NoSchedule", "spot"}}}}
	p, err := e.describe("harvest-1", "box-_", "acc", engine.Limits{CPU: 2, Memory: 4 << 30, Disk: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if p.Labels[labelServer] != "here" || p.Labels[labelAccount] != "acc" || p.Annotations[noteSandbox] != "box-_" {
		t.Errorf("labels %v, annotations %v", p.Labels, p.Annotations)
	}
	if _, ok := p.Labels[labelSandbox]; ok { // a label does not end with a hyphen or an underscore
		t.Error("an ID that is no label became one")
	}
	c := p.Spec.Containers[0]
	if privileged := c.SecurityContext.Privileged; privileged != nil || p.Spec.HostNetwork || p.Spec.HostPID ||
		*p.Spec.AutomountServiceAccountToken || *p.Spec.EnableServiceLinks || *p.Spec.HostUsers {
		t.Errorf("the pod has rights that it does not need: %+v", p.Spec)
	}
	if got := c.Resources.Limits; got.Memory().Value() != 4<<30+memoryReserve || got.Cpu().MilliValue() != 2000 ||
		got.StorageEphemeral().Value() != 1<<30+diskReserve {
		t.Errorf("limits %v", got)
	}
	if got := c.Resources.Requests; got.Memory().Value() != 1<<30 || got.Cpu().MilliValue() != 500 {
		t.Errorf("requests %v", got)
	}
	if got, want := p.Spec.Tolerations, []corev1.Toleration{
		{Key: "dedicated", Operator: "Equal", Value: "sandboxes", Effect: "NoSchedule"},
		{Key: "spot", Operator: "Exists"}}; !slices.Equal(got, want) {
		t.Errorf("tolerations %+v", got)
	}
	e.opts.Pod.CPU, e.opts.Pod.Memory = 4, 8<<30 // above the limits
	if got := e.resources(engine.Limits{CPU: 2, Memory: 1 << 30}).Requests; len(got) > 0 {
		t.Errorf("requests above the limits: %v", got)
	}
}

func TestEndOf(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	status := func(s corev1.PodStatus) *corev1.Pod { return &corev1.Pod{Status: s} }
	terminated := func(reason string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Reason: reason}}}}
	}
	for name, c := range map[string]struct {
		pod *corev1.Pod
		end *engine.End
	}{
		"running": {status(corev1.PodStatus{Phase: corev1.PodRunning}), nil},
		"evicted": {status(corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory."}),
			&engine.End{Lost: true, Detail: "Kubernetes ended the pod: Evicted: low on memory"}},
		"out of memory": {status(corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: terminated("OOMKilled")}),
			&engine.End{OutOfMemory: true,
				Detail: "Kubernetes ended the pod, which needed more memory than its limit"}},
		"an error": {status(corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: terminated("Error")}),
			&engine.End{Lost: true, Detail: "Kubernetes ended the pod: Error"}},
		"deleted": {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}},
			&engine.End{Lost: true, Detail: "the pod was deleted"}},
		"drained": {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget,
				Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}}}},
			&engine.End{Lost: true, Detail: "the pod was deleted: EvictionByEvictionAPI: Eviction API: evicting"}},
	} {
		if got := endOf(c.pod); (got == nil) != (c.end == nil) || got != nil && *got != *c.end {
			t.Errorf("%s: %+v, want %+v", name, got, c.end)
		}
	}
}

// TestLeaving has pods that are evicted with a minute left, and pods that are not.
func TestLeaving(t *testing.T) {
	t.Parallel()
	now := time.Now()
	minute, little := int64(60), int64(endSeconds)
	evicted := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: now.Add(time.Minute)},
			DeletionGracePeriodSeconds: &minute}, Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue},
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{}}}}
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		leaves bool
	}{
		"evicted":               {func(*corev1.Pod) {}, true},
		"not deleted":           {func(p *corev1.Pod) { p.DeletionTimestamp = nil }, false},
		"deleted by somebody":   {func(p *corev1.Pod) { p.Status.Conditions = p.Status.Conditions[:1] }, false},
		"deleted by the server": {func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = &little }, false},
		"its time is over":      {func(p *corev1.Pod) { p.DeletionTimestamp.Time = now.Add(-time.Second) }, false},
		"not running":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"its node is silent":    {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, false},
		"its container has ended": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{}
		}, false},
	} {
		p := evicted(c.change)
		if got := leaving(p, now); got != c.leaves {
			t.Errorf("%s: %v", name, got)
		}
		if ended := endOf(p) != nil; p.DeletionTimestamp != nil && ended == c.leaves {
			t.Errorf("%s: ended is %v", name, ended)
		}
	}

	p := &pods{all: map[string]*corev1.Pod{}, changed: make(chan struct{}), leaving: make(chan struct{}, 1)}
	e := &Engine{pods: p, known: map[string]*holding{"pod": {id: "box"}}}
	sandbox := &Sandbox{e: e, h: engine.Handle{ID: "box", Ref: "pod"}}
	if due, end := sandbox.Ends(); !due.IsZero() || !end.IsZero() {
		t.Errorf("a pod that is not known ends at %v", end)
	}
	for range 2 { // the second one does not block
		if err := p.Add(evicted(func(p *corev1.Pod) { p.Name = "pod" })); err != nil {
			t.Fatal(err)
		}
	}
	<-e.Announced()
	if due, end := sandbox.Ends(); !due.Equal(now) || !end.Equal(now.Add(time.Minute)) {
		t.Errorf("a pod that leaves is due at %v and ends at %v", due, end)
	}
	if end := e.end("pod"); end != nil {
		t.Errorf("a pod that leaves has ended: %+v", end)
	}
	e.leave("pod")
	if _, err := e.take("next", "box"); err != nil {
		t.Errorf("another pod for the sandbox: %v", err)
	}
}

func TestWaitingPods(t *testing.T) {
	t.Parallel()
	waiting := func(reason string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending,
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "why"}}}}}}
	}
	for _, reason := range []string{"ErrImageNeverPull", "ImagePullBackOff", "RunContainerError"} {
		if err := stuck(waiting(reason)); !errors.Is(err, errors.Unavailable) || !strings.Contains(err.Error(), "why") {
			t.Errorf("%s: %v", reason, err)
		}
	}
	if err := stuck(waiting("ContainerCreating")); err != nil {
		t.Errorf("a pod that starts is %v", err)
	}
	unscheduled := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
		Status: corev1.ConditionFalse, Message: "0/1 nodes are available"}}}}
	for want, p := range map[string]*corev1.Pod{"has not reported": nil, "0/1 nodes": unscheduled,
		"ContainerCreating: why": waiting("ContainerCreating"), "phase is Pending": {Status: corev1.PodStatus{
			Phase: corev1.PodPending}}} {
		if got := awaits(p); !strings.Contains(got, want) {
			t.Errorf("it awaits %q, want %q", got, want)
		}
	}
}

func TestDigests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, path := filepath.Join(dir, "digests.json"), filepath.Join(dir, "root")
	const hello, other = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
		"d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"
	testenv.WriteFile(t, path, []byte("hello"))
	for range 2 { // the second time from the file
		if got, err := openDigests(file).of(t.Context(), path); got != hello || err != nil {
			t.Errorf("the digest is %q, %v", got, err)
		}
	}
	d := openDigests(file)
	if err := os.Link(path, path+"2"); err != nil {
		t.Fatal(err)
	}
	if got, known := d.find(path); got != hello || !known {
		t.Error("another link to the file made its digest unknown")
	}
	testenv.WriteFile(t, path+"3", []byte("other"))
	if err := os.Rename(path+"3", path); err != nil {
		t.Fatal(err)
	}
	if got, err := d.of(t.Context(), path); got != other || err != nil {
		t.Errorf("the digest of a new file is %q, %v", got, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := d.of(t.Context(), path); err == nil {
		t.Error("a file that is gone has a digest")
	}
	testenv.WriteFile(t, file, []byte("{damaged"))
	if got, err := openDigests(file).of(t.Context(), path+"2"); got != hello || err != nil {
		t.Errorf("with a damaged file: %q, %v", got, err)
	}
}

// TestPodsAreFollowed waits for a change.
func TestPodsAreFollowed(t *testing.T) {
	t.Parallel()
	p := &pods{all: map[string]*corev1.Pod{}, changed: make(chan struct{})}
	got := make(chan error, 1)
	go func() {
		got <- p.wait(t.Context(), func() (bool, error) { return p.get("a") != nil && p.get("b") == nil, nil })
	}()
	named := func(name string) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	for _, err := range []error{p.Replace([]any{named("b")}, "1"), p.Add(named("a")), p.Update(named("a")),
		p.Delete(named("b")), p.Resync(), <-got} {
		if err != nil {
			t.Error(err)
		}
	}
	if !p.listed() || len(p.list()) != 1 {
		t.Errorf("listed %t, pods %v", p.listed(), p.list())
	}
	limited, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := p.wait(limited, func() (bool, error) { return false, nil }); errors.KindOf(err) != errors.Timeout {
		t.Errorf("a wait that was given up: %v", err)
	}
}
