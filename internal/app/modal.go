package app

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/modal"
	"github.com/RelevanceAI/harvest/internal/modal/tunnels"
	"github.com/RelevanceAI/harvest/internal/store"
)

// modalName is the subdirectory of the data directory for Modal's protocol.
const modalName = "modal"

// openModal serves Modal's protocol if the configuration says so, also in a background server.
func (a *App) openModal(ctx context.Context, db *store.DB, eng engine.Engine) error {
	if a.cfg.Modal.Listen == config.NoListen {
		return nil
	}
	secret, err := store.SigningKey(a.cfg.Data)
	if err != nil {
		return err
	}
	if a.modalTCP, err = new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.Modal.Listen); err != nil {
		return errors.Stage(listenError(err, a.cfg.Modal.Listen), "modal")
	}
	a.then("the listener of Modal's protocol", func(context.Context) error {
		if err := a.modalTCP.Close(); !errors.Is(err, net.ErrClosed) { // closed by its server
			return err
		}
		return nil
	})
	scheme := "http://"
	host, port, err := net.SplitHostPort(a.modalTCP.Addr().String())
	if err != nil {
		return errors.Wrapf(err, "parse the listen address")
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		certs, err := serverTLS(a.cfg)
		if err != nil {
			return err
		}
		if certs != nil {
			a.modalTCP, scheme = tls.NewListener(a.modalTCP, certs), "https://"
			if len(a.cfg.Server.Names) > 0 {
				host = a.cfg.Server.Names[0]
			}
		}
	}
	a.modalURL = scheme + net.JoinHostPort(host, port)
	if a.cfg.Modal.URL != "" {
		a.modalURL = a.cfg.Modal.URL
	}
	certificate, err := tunnelCertificate(a.cfg)
	if err != nil {
		return err
	}
	endpoint := a.cfg.S3.Endpoint
	if endpoint == config.Embedded { // not used with a secret
		endpoint = ""
	}
	a.modal, err = modal.New(ctx, modal.Options{
		Fleet: a.fleet, Images: eng.Images(), Volumes: eng.Volumes(), Secrets: a.secrets, Keys: a.ring,
		Dicts: db.Dicts(), Records: db.Records(),
		Dir: filepath.Join(a.cfg.Data, modalName), Secret: secret, Output: a.cfg.OutputBytes, S3Endpoint: endpoint,
		URL: a.cfg.Modal.URL, Certificate: certificate, Audit: a.auditModal,
	})
	if err != nil {
		return errors.Stage(err, "modal")
	}
	a.then("Modal's protocol", func(context.Context) error { return a.modal.Close() })
	return nil
}

// tunnelCertificate returns the operator's certificate if it is valid for the address of tunnels, and otherwise nil.
func tunnelCertificate(cfg config.Config) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if cfg.Server.Cert == "" {
		return nil, nil
	}
	certs, err := serverTLS(cfg)
	if err != nil {
		return nil, err
	}
	if len(certs.Certificates) == 0 || certs.Certificates[0].Leaf.VerifyHostname(tunnels.Host) != nil {
		return nil, nil
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certs.Certificates[0], nil }, nil
}

// modalAuthority returns the certificate that clients of Modal's tunnels must trust, "" if there is none.
func (a *App) modalAuthority() string {
	if a.modal == nil {
		return ""
	}
	return a.modal.Authority()
}

// auditModal writes the audit line of a call of Modal's protocol, with the equivalent HTTP status.
func (a *App) auditModal(ctx context.Context, call modal.Call) {
	status, known := statusOf[call.Code]
	if !known {
		status = http.StatusInternalServerError
	}
	line := api.AuditLine{Time: time.Now().UTC(), Account: call.Account, KeyID: call.KeyID, Method: "gRPC",
		Path: call.Method, Status: status}
	if host, _, err := net.SplitHostPort(call.Address); err == nil {
		line.Address = host
	}
	a.writeAudit(ctx, line)
}

// statusOf maps gRPC codes to HTTP statuses.
var statusOf = map[codes.Code]int{
	codes.OK: http.StatusOK, codes.InvalidArgument: http.StatusBadRequest,
	codes.Unauthenticated: http.StatusUnauthorized, codes.PermissionDenied: http.StatusForbidden,
	codes.NotFound: http.StatusNotFound, codes.AlreadyExists: http.StatusConflict,
	codes.FailedPrecondition: http.StatusConflict, codes.Aborted: http.StatusConflict,
	codes.ResourceExhausted: http.StatusTooManyRequests, codes.Unimplemented: http.StatusNotImplemented,
	codes.Unavailable:      http.StatusServiceUnavailable,
	codes.DeadlineExceeded: http.StatusGatewayTimeout, codes.Canceled: 499,
}
