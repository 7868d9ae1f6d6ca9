package kubernetes

import (
	"context"
	"io"
	"net"
	"strconv"

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

// greet gives the first process of a pod its credentials, over its standard input, and returns when it listens.
func (a *api) greet(ctx context.Context, name string, c mutual.Credentials) error {
	request := a.rest.Post().Namespace(a.namespace).Resource(resourcePods).Name(name).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Container: containerName, Stdin: true, Stdout: true}, a.params)
	sockets, err := remotecommand.NewWebSocketExecutor(a.config, "GET", request.URL().String())
	if err != nil {
		return errors.Wrapf(err, "attach to a pod")
	}
	spdy, err := remotecommand.NewSPDYExecutor(a.config, "POST", request.URL())
	if err != nil {
		return errors.Wrapf(err, "attach to a pod")
	}
	executor, err := remotecommand.NewFallbackExecutor(sockets, spdy, fallBack)
	if err != nil {
		return errors.Wrapf(err, "attach to a pod")
	}
	ctx, cancel := context.WithCancel(ctx)
	stdin, toPod := io.Pipe()
	fromPod, stdout := io.Pipe()
	attached := make(chan error, 1)
	go func() {
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
		if err == nil {
			err = errors.Newf(errors.Unavailable, "the pod has ended")
		}
		_ = stdin.CloseWithError(err)
		_ = stdout.CloseWithError(err)
		attached <- err
	}()
	err = pod.Greet(toPod, fromPod, c)
	cancel()
	_ = fromPod.Close()
	_ = toPod.CloseWithError(context.Canceled) // not an end of the pod's input
	if end := <-attached; err != nil && errors.KindOf(err) == errors.Unavailable && ctx.Err() == nil {
		return a.explain(end, "attach to a pod")
	}
	return err
}
