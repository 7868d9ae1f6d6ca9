// Package share keeps directories of several machines equal, through buckets of an S3 server on one of them.
//
// Each group of equal directories has a bucket. The machine with the server (Hub) syncs its own directory with the
// bucket, and lets the others reach that bucket alone, over connections that it makes.
package share

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// endpoint is the server's name in requests, which connections to it do not depend on.
const endpoint = "http://localhost"

// Hub has the buckets. All methods may be called concurrently.
type Hub struct {
	start func(context.Context) (*embedded.Server, error)

	mu     sync.Mutex
	server *embedded.Server // nil until it is needed; guarded by mu
}

// NewHub returns a Hub. start starts its server when the first bucket is used.
func NewHub(start func(context.Context) (*embedded.Server, error)) *Hub { return &Hub{start: start} }

// Close stops the server.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server != nil {
		h.server.Stop()
		h.server = nil
	}
}

func (h *Hub) serve(ctx context.Context) (*embedded.Server, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server == nil {
		server, err := h.start(ctx)
		if err != nil {
			return nil, errors.Wrapf(err, "share files")
		}
		h.server = server
	}
	return h.server, nil
}

// Bucket returns the bucket of that name, and a new one with another name if there is none. An old name is never used
// for new content: the machines would take files that it lacks for deleted.
func (h *Hub) Bucket(ctx context.Context, name string) (string, error) {
	server, err := h.serve(ctx)
	if err != nil {
		return "", err
	}
	if name != "" && server.Has(name) {
		return name, nil
	}
	name = "v" + strings.ToLower(rand.Text())
	return name, server.Bucket(name)
}

// Drop deletes a bucket. Nobody may use it any more.
func (h *Hub) Drop(ctx context.Context, bucket string) error {
	server, err := h.serve(ctx)
	if err != nil {
		return err
	}
	return server.Drop(bucket)
}

// Access lets another machine use a bucket, over connections that Serve serves.
type Access struct {
	Bucket string
	Keys   embedded.Keys
}

// Access returns the access to a bucket.
func (h *Hub) Access(ctx context.Context, bucket string) (Access, error) {
	server, err := h.serve(ctx)
	if err != nil {
		return Access{}, err
	}
	return Access{Bucket: bucket, Keys: server.Keys()}, nil
}

// Sync syncs a directory of this machine with a bucket.
func (h *Hub) Sync(ctx context.Context, bucket string, d Directory) (volsync.Stats, error) {
	server, err := h.serve(ctx)
	if err != nil {
		return volsync.Stats{}, err
	}
	return Sync(ctx, Access{Bucket: bucket, Keys: server.Keys()}, func(ctx context.Context) (net.Conn, error) {
		return dial(ctx, server)
	}, d)
}

func dial(ctx context.Context, server *embedded.Server) (net.Conn, error) {
	return socket.Dial(ctx, filepath.Dir(server.Socket()), filepath.Base(server.Socket()))
}

// headerTime is how long a request may take to arrive, without its body.
const headerTime = time.Minute

// Serve passes the requests on a listener's connections to the server, if they are for one bucket and for no other. It
// returns when the listener fails or ctx ends, and closes the listener.
func (h *Hub) Serve(ctx context.Context, bucket string, l net.Listener) error {
	to, err := h.serve(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	at, err := url.Parse(endpoint)
	if err != nil {
		return errors.Join(errors.Wrapf(err, "share files"), l.Close())
	}
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: object.Workers,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, to) }}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = at.Scheme, at.Host, r.In.Host // the signature includes the host
	}}
	server := &http.Server{ReadHeaderTimeout: headerTime, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if !within(r, bucket) {
				http.Error(w, "another bucket", http.StatusForbidden)
				return
			}
			proxy.ServeHTTP(w, r)
		})}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err = server.Serve(l)
	_ = server.Close() // also its connections
	return errors.Wrapf(err, "share files")
}

// within reports whether a request names one bucket alone. A copy names its source in a header.
func within(r *http.Request, bucket string) bool {
	in := func(path string) bool {
		first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		for part := range strings.SplitSeq(rest, "/") {
			if part == ".." || part == "." {
				return false
			}
		}
		return first == bucket
	}
	if !in(r.URL.Path) {
		return false
	}
	for _, source := range r.Header.Values("X-Amz-Copy-Source") {
		path, err := url.PathUnescape(source)
		if err != nil || !in(path) {
			return false
		}
	}
	return true
}

// Directory is a directory to be kept equal to others.
type Directory struct {
	Path     string
	State    string // directory of the records of earlier syncs, which belongs to Path alone
	ReadOnly bool   // its changes are undone, instead of being shared
}

// Sync syncs a directory with a bucket, to which connect connects. What changed on both sides since the last sync
// stays as it was changed last. Paths that fail are in the statistics.
func Sync(ctx context.Context, to Access, connect func(context.Context) (net.Conn, error),
	d Directory) (volsync.Stats, error) {
	bucket, err := object.Open(ctx, s3.Location{Bucket: to.Bucket, Endpoint: endpoint, Dial: connect,
		Region: "us-east-1", PathStyle: true, Patience: patience,
		Credentials: s3.Credentials{AccessKeyID: to.Keys.AccessKeyID, SecretAccessKey: to.Keys.SecretAccessKey}})
	if err != nil {
		return volsync.Stats{}, err
	}
	defer bucket.Close()
	files, err := tree.Open(d.Path)
	if err != nil {
		return volsync.Stats{}, err
	}
	defer files.Close()
	o := volsync.Options{Direction: plan.Both, Conflicts: plan.KeepNewer, State: d.State, Owners: true, SetID: true,
		DeleteMany: true, Packs: true}
	if d.ReadOnly {
		o.Direction, o.Mirror, o.Conflicts = plan.Down, true, ""
	}
	return volsync.Sync(ctx, files, bucket, o)
}

// patience is how long a request is repeated while the server does not answer: it is started again when it ends.
const patience = 20 * time.Second
