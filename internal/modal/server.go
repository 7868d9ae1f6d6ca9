// Package modal serves Modal's gRPC protocol, so that programs written for Modal's SDKs run on this machine.
// It decodes requests, calls the same Fleet, images, volumes and secrets as package server, and encodes their
// answers. All errors leave through status.go.
//
// Two services have methods of equal names, so there are two types: control serves ModalClient, router serves
// TaskCommandRouter.
package modal

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"net"
	"os"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/modal/anonymous"
	"github.com/RelevanceAI/harvest/internal/modal/apps"
	"github.com/RelevanceAI/harvest/internal/modal/authority"
	"github.com/RelevanceAI/harvest/internal/modal/environments"
	"github.com/RelevanceAI/harvest/internal/modal/idempotency"
	"github.com/RelevanceAI/harvest/internal/modal/oldfiles"
	"github.com/RelevanceAI/harvest/internal/modal/queues"
	"github.com/RelevanceAI/harvest/internal/modal/transfer"
	"github.com/RelevanceAI/harvest/internal/modal/tunnels"
	"github.com/RelevanceAI/harvest/internal/modal/volumeids"
	"github.com/RelevanceAI/harvest/internal/store/dicts"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// Options of a Server. All but Secrets, Dicts, Secret, Output, S3Endpoint, Audit, Certificate and URL are required.
type Options struct {
	Fleet   *fleet.Fleet
	Images  image.Builder
	Volumes volume.Provider
	Secrets *secret.Vault // nil: no named secrets
	Keys    *account.Ring
	Dicts   dicts.Store // nil: no Dicts
	Records records.Store
	// Dir is this package's own directory, for uploaded files and the output of commands.
	Dir string
	// Secret signs the tokens of clients. Without a secret, tokens end with this Server.
	Secret []byte
	// Output is how many bytes of each command's output are kept for later reads: 64 MiB.
	Output int64
	// S3Endpoint is the endpoint of all the server's S3 access that uses a secret. "" means Amazon's endpoint, or the
	// one that the secret names.
	S3Endpoint string
	// Audit, if set, is called at the end of each call that may have changed something, ran a command or was
	// refused.
	Audit func(context.Context, Call)
	// Certificate, if set, returns the certificate of tunnels. The default is one that an authority of this package
	// has signed, which Dir keeps: see Authority.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// URL is the server's address for clients, such as "https://harvest.example.org:7783". The default is the
	// listener's address.
	URL string
}

// Server serves Modal's protocol. All methods may be called concurrently.
type Server struct {
	opts Options
	key  []byte // signs tokens
	grpc *grpc.Server

	ctx   context.Context // of background work; ends with Close
	stop  context.CancelFunc
	began time.Time
	tasks tasks.Group // Close waits for it

	apps    *apps.Registry
	envs    *environments.Map
	boxes   *boxes
	builds  builds
	secrets *anonymous.Secrets
	ring    present
	answers idempotency.Answers
	earlier earlier
	tunnels *tunnels.Set
	signer  *authority.Authority // nil if Options have the certificate
	volumes views
	ids     *volumeids.Map // of volumes
	queues  *queues.Queues
	uploads uploads
	dicts   *dicts.Dicts // nil without a store

	oldfiles *oldfiles.Sessions
	naming   naming
	joining  sync.Mutex // held while sandboxes join a private network

	updating sync.Mutex // held while a secret is changed
	removing sync.Mutex // held while deciding whether an image is still needed

	mu       sync.Mutex
	addr     net.Addr     // guarded by mu; of the listener
	connects net.Listener // guarded by mu; for connect tokens, nil until first used
}

// The protocol's requirements beyond gRPC's defaults: clients ping every 30 s, even when idle, and send up to
// 100 MiB in one message.
const (
	maxMessage  = 100 << 20
	pingAtLeast = 5 * time.Second
)

// New returns a Server ready for Serve. The end of ctx does not stop it; Close does.
func New(ctx context.Context, opts Options) (*Server, error) {
	if opts.Output == 0 {
		opts.Output = 64 << 20
	}
	s := &Server{opts: opts, began: time.Now()}
	if opts.Dicts != nil {
		s.dicts = dicts.New(opts.Dicts, nil)
	}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	secret := opts.Secret
	if len(secret) == 0 {
		secret = []byte(rand.Text())
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("modal tokens"))
	s.key = mac.Sum(nil)
	var err error
	if err = os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make the directory of Modal's protocol")
	}
	if err = s.openTunnelSet(); err != nil {
		return nil, err
	}
	s.oldfiles = oldfiles.New(s.ctx, opts.Dir)
	if err = s.openRecords(); err != nil {
		return nil, err
	}
	if err = s.openUploads(); err != nil {
		return nil, err
	}
	if err = s.openBoxes(); err != nil {
		return nil, err
	}
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtLeast, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.stream),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { // report methods of other versions, too
			return status.Error(codes.Unimplemented, "there is no such method")
		}),
	)
	s.sweepStaging(s.ctx)
	s.tasks.Go(func() { s.sweeping(s.ctx) })
	s.tasks.Go(func() { s.watchApps(s.ctx) })
	s.grpc.RegisterService(service(), &control{s: s})
	pb.RegisterTaskCommandRouterServer(s.grpc, &router{s: s})
	return s, nil
}

// openTunnelSet prepares tunnels with the certificate of the Options or of the authority.
func (s *Server) openTunnelSet() (err error) {
	certificate := s.opts.Certificate
	if certificate == nil {
		if s.signer, err = authority.Open(s.opts.Dir); err != nil {
			return err
		}
		certificate = s.signer.Certificate
	}
	s.tunnels = tunnels.New(s.ctx, certificate)
	return nil
}

// Authority returns the certificate that clients of tunnels must trust; "" if Options have the certificate.
func (s *Server) Authority() string {
	if s.signer == nil {
		return ""
	}
	return s.signer.PEM()
}

// openRecords loads the records of an earlier server.
func (s *Server) openRecords() (err error) {
	if s.apps, err = apps.Open(s.ctx, s.opts.Records, time.Now); err != nil {
		return err
	}
	if s.envs, err = environments.Open(s.ctx, s.opts.Records); err != nil {
		return err
	}
	if s.ids, err = volumeids.Open(s.ctx, s.opts.Records, volumeNames); err != nil {
		return err
	}
	s.secrets, err = anonymous.Open(s.ctx, s.opts.Records, []byte(s.seal("secrets without a name")))
	if err != nil {
		return err
	}
	return s.openQueues()
}

// Serve answers the connections of l until Close, and closes l. It returns an earlier error of the listener.
func (s *Server) Serve(l net.Listener) error {
	if !s.tasks.Begin() {
		_ = l.Close() // nothing was read from it
		return nil
	}
	defer s.tasks.Done()
	s.mu.Lock()
	s.addr = l.Addr()
	s.mu.Unlock()
	two, one := transfer.Split(l)
	s.tasks.Go(func() { s.serveTransfers(one) })
	err := s.grpc.Serve(two)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return errors.Wrapf(err, "serve Modal's protocol")
}

// Close ends all connections and waits for background work. Sandboxes and their commands keep running. Close is
// idempotent.
func (s *Server) Close() error {
	known := s.boxes.all()
	s.stop()
	s.grpc.Stop()
	for _, b := range known {
		b.noteInput(s.ctx) // which records it although ctx has ended
	}
	s.tunnels.Close()
	s.tasks.Close()
	return nil
}

// control serves ModalClient.
type control struct {
	pb.UnimplementedModalClientServer
	s *Server
}

// router serves TaskCommandRouter.
type router struct {
	pb.UnimplementedTaskCommandRouterServer
	s *Server
}
