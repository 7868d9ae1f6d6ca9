package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Finding is one result of Check.
type Finding struct {
	Name   string
	OK     bool
	Detail string
	Remedy string // what to do if it is not OK
}

// checkTime limits Check.
const checkTime = 30 * time.Second

// right are verbs that the engine uses in its namespace: those of deploy/kubernetes/rights.yaml.
type right struct {
	subresource string // "" for the pods themselves
	verbs       []string
}

var rights = []right{
	{"", []string{"create", "get", "list", "watch", "patch", "delete"}},
	{"attach", []string{"create", "get"}},
	{"portforward", []string{"create", "get"}},
}

// Check reports whether a cluster can be used with the options. It creates nothing: the API server only decides
// whether it would admit a pod.
func Check(ctx context.Context, opts Options) []Finding {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	reached := Finding{Name: "Kubernetes", OK: true}
	a, err := connect(opts)
	if err == nil {
		defer a.close()
		reached.Detail, err = a.describe(ctx)
	}
	if err != nil {
		return []Finding{reached.failed(err)}
	}
	findings := []Finding{reached}
	for _, r := range rights {
		if r.subresource == "portforward" && (opts.Reach == Direct || opts.Reach == Auto && a.inside) {
			continue // such a server does not use it
		}
		findings = append(findings, a.checkRight(ctx, r))
	}
	if findings[1].OK { // it may create pods
		findings = append(findings, checkAdmission(ctx, a, opts))
	}
	return findings
}

// failed returns the finding of an error.
func (f Finding) failed(err error) Finding {
	f.OK, f.Detail, f.Remedy = false, errors.Message(err), errors.RemedyOf(err)
	return f
}

// describe returns the version and the address of the API server.
func (a *api) describe(ctx context.Context) (string, error) {
	text, err := a.rest.Get().AbsPath("/version").Do(ctx).Raw()
	if err = a.explain(err, "find the version of Kubernetes"); err != nil && !errors.Is(err, errors.NotFound) {
		return "", err
	}
	var v version.Info
	if err != nil || json.Unmarshal(text, &v) != nil || v.GitVersion == "" {
		err := errors.Newf(errors.Unavailable, "%s is not an API server of Kubernetes", a.config.Host)
		return "", errors.Remedy(err, "check kubernetes.kubeconfig and kubernetes.context with kubectl cluster-info")
	}
	return fmt.Sprintf("version %s, at %s; the namespace %s", strings.TrimPrefix(v.GitVersion, "v"), a.config.Host,
		a.namespace), nil
}

// checkRight asks the API server for each verb of a right.
func (a *api) checkRight(ctx context.Context, r right) Finding {
	resource := resourcePods
	if r.subresource != "" {
		resource += "/" + r.subresource
	}
	f := Finding{Name: "rights to " + resource, OK: true, Detail: strings.Join(r.verbs, ", ")}
	var missing []string
	for _, verb := range r.verbs {
		allowed, err := a.allowed(ctx, verb, r.subresource)
		if err != nil {
			return f.failed(err)
		}
		if !allowed {
			missing = append(missing, verb)
		}
	}
	if len(missing) > 0 {
		f.OK, f.Detail = false, "the server's user may not "+strings.Join(missing, ", ")+" "+resource
		f.Remedy = "kubectl apply -f deploy/kubernetes/rights.yaml, and use its service account in the namespace " +
			a.namespace
	}
	return f
}

// allowed reports whether this user has a right to pods, or to a subresource of them.
func (a *api) allowed(ctx context.Context, verb, subresource string) (bool, error) {
	review := authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: a.namespace, Verb: verb, Resource: resourcePods, Subresource: subresource}}}
	text, err := json.Marshal(review)
	if err != nil {
		return false, errors.Wrapf(err, "encode a question about rights")
	}
	text, err = a.rest.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").
		SetHeader("Content-Type", "application/json").Body(text).Do(ctx).Raw()
	if err != nil {
		return false, a.explain(err, "ask for the server's rights")
	}
	err = json.Unmarshal(text, &review)
	return review.Status.Allowed, errors.Explainf(err, errors.Unavailable, "the answer about rights is damaged")
}

// checkAdmission asks the API server to admit a pod without creating it: its Pod Security level, quotas, webhooks.
func checkAdmission(ctx context.Context, a *api, opts Options) Finding {
	f := Finding{Name: "admission of pods", OK: true, Detail: "the namespace admits the pods of sandboxes"}
	if opts.Pod.Image == "" {
		return f.failed(noImage())
	}
	trial := &Engine{opts: opts, server: "doctor"}
	described, err := trial.describe(newName(), "", "", engine.Limits{})
	if err == nil {
		err = a.explain(a.rest.Post().Namespace(a.namespace).Resource(resourcePods).Param("dryRun", "All").
			Body(described).Do(ctx).Error(), "create a pod")
	}
	if err != nil {
		return f.failed(err)
	}
	return f
}

// noImage is the error of a configuration without an image for pods.
func noImage() error {
	err := errors.Newf(errors.Invalid, "the engine kubernetes has no image for its pods")
	return errors.Remedy(err, "make image pushes one; set kubernetes.image to its name")
}
