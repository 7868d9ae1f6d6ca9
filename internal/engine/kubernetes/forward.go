package kubernetes

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
)

// forward connects to the agent of a pod through the API server. Each connection has a tunnel of its own, because a
// stream whose reader is slow would hold up the others of its tunnel.
func (a *api) forward(ctx context.Context, name string) (net.Conn, error) {
	type dialed struct {
		tunnel httpstream.Connection
		err    error
	}
	done := make(chan dialed, 1)
	go func() {
		tunnel, err := a.tunnel(name)
		done <- dialed{tunnel, err}
	}()
	select {
	case d := <-done:
		if d.err != nil {
			return nil, a.explain(d.err, "connect to a pod")
		}
		conn, err := carry(d.tunnel)
		if err != nil {
			_ = d.tunnel.Close() // its end is the cause
			return nil, a.explain(err, "connect to a pod")
		}
		return conn, nil
	case <-ctx.Done():
		go func() {
			if d := <-done; d.err == nil {
				_ = d.tunnel.Close()
			}
		}()
		return nil, errors.Wrapf(ctx.Err(), "connect to the pod %s", name)
	}
}

// tunnel makes a connection for streams to ports of a pod. Old API servers do not speak WebSocket.
func (a *api) tunnel(name string) (httpstream.Connection, error) {
	url := a.rest.Post().Namespace(a.namespace).Resource(resourcePods).Name(name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(a.config)
	if err != nil {
		return nil, errors.Wrapf(err, "configure a connection to Kubernetes")
	}
	sockets, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, a.config)
	if err != nil {
		return nil, errors.Wrapf(err, "configure a connection to Kubernetes")
	}
	dialer := portforward.NewFallbackDialerForStreaming(sockets,
		spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url), fallBack)
	tunnel, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	return tunnel, err
}

// fallBack reports whether an error says that there is no WebSocket, and SPDY can be tried.
func fallBack(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// carry makes a connection of a tunnel to a pod. The tunnel ends with it.
func carry(tunnel httpstream.Connection) (net.Conn, error) {
	header := http.Header{}
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	header.Set(corev1.PortHeader, strconv.Itoa(pod.Port))
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	failures, err := tunnel.CreateStream(header)
	if err != nil {
		return nil, err
	}
	if err := failures.Close(); err != nil { // in one direction: nothing is sent there
		return nil, err
	}
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := tunnel.CreateStream(header)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	go func() { // a failure is the end of the connection
		_, _ = io.Copy(io.Discard, failures)
		_ = far.Close()
	}()
	go func() {
		bytestream.Join(far, &stream{Conn: far, Stream: data})
		_ = tunnel.Close()
	}()
	return near, nil
}

// stream is a stream of a tunnel as a connection.
type stream struct {
	net.Conn // for the methods that a stream lacks
	httpstream.Stream
}

func (s *stream) Read(p []byte) (int, error)  { return s.Stream.Read(p) }
func (s *stream) Write(p []byte) (int, error) { return s.Stream.Write(p) }
func (s *stream) Close() error                { return s.Stream.Reset() }

// CloseWrite closes one direction.
func (s *stream) CloseWrite() error { return s.Stream.Close() }
