package kubernetes

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/RelevanceAI/harvest/client/errors"
)

// api makes the engine's requests of the API server. Its methods return errors of Harvest's kinds.
type api struct {
	rest      *rest.RESTClient
	config    *rest.Config
	params    runtime.ParameterCodec
	namespace string
	inside    bool // this process runs in the cluster
}

const resourcePods = "pods"

// schemes returns the types of core/v1 alone. All types of client-go's scheme are twice as many packages.
func schemes() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		return nil, errors.Wrapf(err, "register the types of Kubernetes")
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	return s, nil
}

// connect reads the configuration. It makes no request yet.
func connect(opts Options) (*api, error) {
	silence() // first: what reads the configuration logs too
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = opts.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: opts.Context})
	config, err := loader.ClientConfig()
	if err != nil {
		err = errors.Explainf(err, errors.Invalid, "the connection to Kubernetes is not configured: %v", err)
		return nil, errors.Remedy(err, "set kubernetes.kubeconfig to a file that works with kubectl --kubeconfig")
	}
	_, outside := rest.InClusterConfig()
	namespace := opts.Namespace
	if namespace == "" {
		if namespace, _, err = loader.Namespace(); err != nil {
			return nil, errors.Wrapf(err, "find the namespace of Kubernetes")
		}
	}
	if msgs := rest.IsValidPathSegmentName(namespace); len(msgs) > 0 {
		return nil, errors.Newf(errors.Invalid, "kubernetes.namespace: %.100q is not a name: it %s", namespace, msgs[0])
	}
	scheme, err := schemes()
	if err != nil {
		return nil, err
	}
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.UserAgent = "harvest"
	config.QPS = -1 // no limit here: the API server has its own
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "the connection to Kubernetes cannot be made: %v", err)
	}
	return &api{rest: client, config: config, params: runtime.NewParameterCodec(scheme), namespace: namespace,
		inside: outside == nil}, nil
}

// silence drops the log of client-go: the requests return their errors.
var silence = sync.OnceFunc(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })

func (a *api) close() {
	if t, ok := a.rest.Client.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// create makes a pod.
func (a *api) create(ctx context.Context, p *corev1.Pod) error {
	err := a.rest.Post().Namespace(a.namespace).Resource(resourcePods).Body(p).Do(ctx).Error()
	return a.explain(err, "create a pod")
}

// checkName returns NotFound for a name that no pod can have.
func checkName(name string) error {
	if msgs := rest.IsValidPathSegmentName(name); name == "" || len(msgs) > 0 {
		return errors.Newf(errors.NotFound, "there is no pod %.100q", name)
	}
	return nil
}

// get returns a pod.
func (a *api) get(ctx context.Context, name string) (*corev1.Pod, error) {
	var p corev1.Pod
	if err := checkName(name); err != nil {
		return nil, err
	}
	err := a.rest.Get().Namespace(a.namespace).Resource(resourcePods).Name(name).Do(ctx).Into(&p)
	return &p, a.explain(err, "find a pod")
}

// list returns the pods with a label.
func (a *api) list(ctx context.Context, selector string) ([]corev1.Pod, error) {
	var all corev1.PodList
	err := a.rest.Get().Namespace(a.namespace).Resource(resourcePods).Param("labelSelector",
		selector).Do(ctx).Into(&all)
	return all.Items, a.explain(err, "list the pods")
}

// try lists and watches pods, and returns the error if that is refused. A reflector does not report it.
func (a *api) try(ctx context.Context) error {
	err := a.rest.Get().Namespace(a.namespace).Resource(resourcePods).Param("limit", "1").Do(ctx).Error()
	if err != nil {
		return a.explain(err, "list the pods")
	}
	watched, err := a.rest.Get().Namespace(a.namespace).Resource(resourcePods).Param("watch", "true").Watch(ctx)
	if err != nil {
		return a.explain(err, "watch the pods")
	}
	watched.Stop()
	return nil
}

// delete deletes a pod, also one that is being deleted with more time. It returns when Kubernetes has accepted that.
func (a *api) delete(ctx context.Context, name string) error {
	grace := int64(endSeconds)
	err := a.rest.Delete().Namespace(a.namespace).Resource(resourcePods).Name(name).
		Body(&metav1.DeleteOptions{GracePeriodSeconds: &grace}).Do(ctx).Error()
	return a.explain(err, "delete a pod")
}

// note sets labels and annotations of a pod.
func (a *api) note(ctx context.Context, name string, labels, annotations map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": annotations}})
	if err != nil {
		return errors.Wrapf(err, "encode the labels of a pod")
	}
	err = a.rest.Patch(types.MergePatchType).Namespace(a.namespace).Resource(resourcePods).Name(name).Body(patch).
		Do(ctx).Error()
	return a.explain(err, "label a pod")
}

// explain gives an error of the API server a kind and a sentence.
func (a *api) explain(err error, what string) error {
	if err == nil {
		return nil
	}
	if errors.KindOf(err) != errors.Internal { // explained before, or the end of a context
		return errors.Wrapf(err, "%s", what)
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		err = errors.Explainf(err, errors.Unavailable, "%s: the API server of Kubernetes does not answer: %v", what,
			err)
		return errors.Remedy(err, "check it with kubectl get pods")
	}
	s := status.Status()
	explained := func(kind errors.Kind) error {
		return errors.Explainf(err, kind, "%s: Kubernetes says: %s", what, s.Message)
	}
	switch {
	case s.Code == http.StatusNotFound:
		return explained(errors.NotFound)
	case s.Code == http.StatusUnauthorized:
		return errors.Remedy(explained(errors.Unauthenticated), "check kubernetes.kubeconfig with kubectl auth whoami")
	case s.Code == http.StatusForbidden && quotaExceeded(s):
		return errors.Remedy(explained(errors.Exhausted),
			"raise the ResourceQuota of the namespace %s, or destroy sandboxes", a.namespace)
	case s.Code == http.StatusForbidden && strings.Contains(s.Message, podSecurity):
		return errors.Remedy(explained(errors.Denied),
			"kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged", a.namespace)
	case s.Code == http.StatusForbidden:
		return errors.Remedy(explained(errors.Denied),
			"give the server's user the rights in deploy/kubernetes/rights.yaml, in the namespace %s", a.namespace)
	case s.Code == http.StatusConflict:
		return explained(errors.Conflict)
	case s.Code == http.StatusUnprocessableEntity, s.Code == http.StatusBadRequest:
		return explained(errors.Invalid)
	case s.Code == http.StatusTooManyRequests:
		return explained(errors.Exhausted)
	}
	return explained(errors.Unavailable)
}

// podSecurity is in refusals of pods that the namespace's Pod Security level does not admit (admission.go of
// k8s.io/pod-security-admission v0.37.2).
const podSecurity = "violates PodSecurity"

// quotaExceeded reports whether a quota refused a pod. Kubernetes tells that in words only
// (resourcequota/controller.go of k8s.io/apiserver v0.37.2).
func quotaExceeded(s metav1.Status) bool { return strings.Contains(s.Message, "exceeded quota") }
