package kubernetes

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
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
		conn net.Conn
		err  error
	}
	done := make(chan dialed, 1)
	go func() { // client-go takes no context here
		conn, err := a.carried(name)
		done <- dialed{conn, err}
	}()
	select {
	case d := <-done:
		return d.conn, a.explain(d.err, "connect to a pod")
	case <-ctx.Done():
		go func() {
			if d := <-done; d.err == nil {
				_ = d.conn.Close()
			}
		}()
		return nil, errors.Wrapf(ctx.Err(), "connect to the pod %s", name)
	}
}

// carried makes a tunnel, and a connection of it.
func (a *api) carried(name string) (net.Conn, error) {
	tunnel, err := a.tunnel(name)
	if err != nil {
		return nil, err
	}
	conn, err := carry(tunnel)
	if err != nil {
		_ = tunnel.Close() // its end is the cause
	}
	return conn, err
}

// tunnel makes a connection for streams to ports of a pod. Old API servers do not speak WebSocket.
func (a *api) tunnel(name string) (httpstream.Connection, error) {
	request, err := a.connection(name, "portforward")
	if err != nil {
		return nil, err
	}
	url := request.URL()
	transport, upgrader, err := spdy.RoundTripperFor(a.config)
	if err != nil {
		return nil, errors.Wrapf(err, "configure a connection to Kubernetes")
	}
	sockets, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, a.config)
	if err != nil {
		return nil, errors.Wrapf(err, "configure a connection to Kubernetes")
	}
	tunnel, _, err := sockets.Dial(portforward.PortForwardProtocolV1Name)
	if !fallBack(err) {
		return tunnel, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	tunnel, _, failed := old.Dial(portforward.PortForwardProtocolV1Name)
	return tunnel, refusal(err, failed)
}

// connection is a request for a connection to a pod, whose URL is valid.
func (a *api) connection(name, kind string) (*rest.Request, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	request := a.rest.Post().Namespace(a.namespace).Resource(resourcePods).Name(name).SubResource(kind)
	return request, errors.Wrapf(request.Error(), "connect to a pod")
}

// fallBack reports whether an error says that there is no WebSocket, and SPDY can be tried.
func fallBack(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// refusal returns the error of a connection that failed with WebSocket, and then with the error second with SPDY. If
// the API server refused both, the first one has the status, and the second one the reason.
func refusal(first, second error) error {
	var upgrade *httpstream.UpgradeFailureError
	var status apierrors.APIStatus
	if second == nil || !errors.As(first, &upgrade) || !errors.As(upgrade.Cause, &status) {
		return second
	}
	reason, refused := strings.CutPrefix(second.Error(), notUpgraded)
	if !refused {
		return second
	}
	refusal := apierrors.StatusError{ErrStatus: status.Status()}
	refusal.ErrStatus.Message = cmp.Or(reason, refusal.ErrStatus.Message)
	return &refusal
}

// notUpgraded begins the error of SPDY for a refused connection (httpstream/spdy/roundtripper.go of k8s.io/streaming
// v0.37.2).
const notUpgraded = "unable to upgrade connection: "

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
