package kubernetes

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire/mutual"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
)

// dial connects to the agent of a pod.
func (e *Engine) dial(ctx context.Context, p *corev1.Pod) (net.Conn, error) {
	if e.opts.Reach == Forward || e.opts.Reach == Auto && !e.api.inside {
		return e.api.forward(ctx, p.Name)
	}
	if p.Status.PodIP == "" {
		return nil, errors.Newf(errors.Unavailable, "the pod %s has no address yet", p.Name)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(p.Status.PodIP, strconv.Itoa(pod.Port)))
	if err != nil {
		err = errors.Explainf(err, errors.Unavailable, "the pod %s cannot be reached at its address", p.Name)
		return nil, errors.Remedy(err, "set kubernetes.reach to forward if this machine does not reach pods")
	}
	return conn, nil
}

// greetTime is how long a pod may take to answer a greeting. It has booted its sandbox by then, or does so first.
const greetTime = 30 * time.Second

// greet gives the first process of a pod its credentials, over its standard input, and returns when it listens.
func (a *api) greet(ctx context.Context, name string, c mutual.Credentials) error {
	request, err := a.connection(name, "attach")
	if err != nil {
		return err
	}
	url := request.VersionedParams(&corev1.PodAttachOptions{Container: containerName, Stdin: true, Stdout: true},
		a.params).URL()
	sockets, err := remotecommand.NewWebSocketExecutor(a.config, http.MethodGet, url.String())
	if err != nil {
		return errors.Wrapf(err, "attach to a pod")
	}
	spdy, err := remotecommand.NewSPDYExecutor(a.config, http.MethodPost, url)
	if err != nil {
		return errors.Wrapf(err, "attach to a pod")
	}
	return a.explain(introduce(ctx, attachment{sockets, spdy}.stream, name, c), "attach to a pod")
}

// attachment attaches to a pod with WebSocket, or else with SPDY.
type attachment struct{ sockets, spdy remotecommand.Executor }

func (a attachment) stream(ctx context.Context, o remotecommand.StreamOptions) error {
	err := a.sockets.StreamWithContext(ctx, o)
	if !fallBack(err) {
		return err
	}
	return refusal(err, a.spdy.StreamWithContext(ctx, o))
}

// introduce greets a pod over an attachment. Unavailable if the pod does not answer in time.
func introduce(ctx context.Context, attach func(context.Context, remotecommand.StreamOptions) error, name string,
	c mutual.Credentials) error {
	limited, cancel := context.WithTimeout(ctx, greetTime)
	defer cancel()
	stdin, toPod := io.Pipe()
	fromPod, stdout := io.Pipe()
	go func() {
		err := attach(limited, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
		if err == nil {
			err = errors.Newf(errors.Unavailable, "the pod %s has ended", name)
		}
		err = &detached{err}
		_ = stdin.CloseWithError(err)
		_ = stdout.CloseWithError(err)
	}()
	greeted := make(chan error, 1)
	go func() { greeted <- pod.Greet(toPod, fromPod, c) }()
	var err error
	select {
	case err = <-greeted:
	case <-limited.Done():
		err = limited.Err()
	}
	_ = fromPod.Close()
	_ = toPod.CloseWithError(context.Canceled) // not an end of the pod's input
	var end *detached
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.Wrapf(ctx.Err(), "greet the pod %s", name)
	case limited.Err() != nil:
		err = errors.Explainf(err, errors.Unavailable, "the pod %s does not answer within %s", name, greetTime)
		return errors.Remedy(err, "look at its node and its log: kubectl describe pod %s; kubectl logs %[1]s", name)
	case errors.As(err, &end):
		return end.error
	}
	return err
}

// detached is the end of an attachment before the pod has answered.
type detached struct{ error }
