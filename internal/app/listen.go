package app

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account/oidc"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// auditName is the name of the audit log in the data directory.
const auditName = "audit.log"

// auditLimit is the size at which the audit log is rotated. One old log is kept.
const auditLimit = 64 << 20

// listenTCP listens on the configured address, with TLS if a certificate or a domain is configured. It returns
// the URL for browsers.
func listenTCP(ctx context.Context, cfg config.Config) (net.Listener, string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Server.Listen)
	if err != nil {
		return nil, "", listenError(err, cfg.Server.Listen)
	}
	certs, err := serverTLS(cfg)
	if err != nil {
		l.Close()
		return nil, "", err
	}
	scheme := "http://"
	if certs != nil {
		l, scheme = tls.NewListener(l, certs), "https://"
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		l.Close()
		return nil, "", errors.Wrapf(err, "parse the listen address")
	}
	host, _, err := net.SplitHostPort(cfg.Server.Listen)
	if err != nil {
		l.Close()
		return nil, "", errors.Wrapf(err, "server.listen")
	}
	if addr := net.ParseIP(host); host == "" || addr != nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	switch {
	case cfg.Server.ACMEDomain != "":
		host = cfg.Server.ACMEDomain
	case len(cfg.Server.Names) > 0:
		host = cfg.Server.Names[0]
	}
	if url := strings.TrimSuffix(cfg.Server.PublicURL, "/"); url != "" {
		return l, url, nil
	}
	return l, scheme + net.JoinHostPort(host, port), nil
}

// CheckListen reports why a server in the foreground could not listen on its configured addresses. It listens on them
// for a moment.
func CheckListen(ctx context.Context, cfg config.Config) error {
	if cfg.Server.Listen != config.NoListen {
		l, _, err := listenTCP(ctx, cfg)
		if err != nil {
			return errors.Stage(err, "listen")
		}
		defer l.Close()
	}
	if cfg.Modal.Listen != config.NoListen {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Modal.Listen)
		if err != nil {
			return errors.Stage(listenError(err, cfg.Modal.Listen), "modal")
		}
		defer l.Close()
	}
	if cfg.Server.SSHListen != config.NoListen {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Server.SSHListen)
		if err != nil {
			return errors.Stage(listenError(err, cfg.Server.SSHListen), "ssh")
		}
		defer l.Close()
	}
	return nil
}

func listenError(err error, address string) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return errors.Remedy(errors.Explainf(err, errors.Conflict, "address %s: already in use", address),
			"stop the other program, or choose another port: harvest up --listen 127.0.0.1:7778")
	case errors.Is(err, os.ErrPermission):
		return errors.Remedy(errors.Explainf(err, errors.Denied, "address %s: permission denied", address),
			"choose a port above 1023, or give the program the capability CAP_NET_BIND_SERVICE")
	}
	return errors.Remedy(errors.Explainf(err, errors.Invalid, "cannot listen on %s", address),
		"use an address of this machine, such as 127.0.0.1:7777")
}

// serverTLS returns nil without TLS.
func serverTLS(cfg config.Config) (*tls.Config, error) {
	s := cfg.Server
	if s.ACMEDomain != "" {
		manager := autocert.Manager{
			Prompt: autocert.AcceptTOS, Email: s.ACMEEmail, Cache: autocert.DirCache(filepath.Join(cfg.Data, "acme")),
			HostPolicy: autocert.HostWhitelist(s.ACMEDomain),
		}
		if s.ACMEURL != "" {
			manager.Client = &acme.Client{DirectoryURL: s.ACMEURL}
		}
		certs := manager.TLSConfig()
		certs.MinVersion = tls.VersionTLS12
		certs.NextProtos = []string{"h2", "http/1.1", acme.ALPNProto}
		return certs, nil
	}
	if s.Cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		return nil, errors.Remedy(errors.Explainf(err, errors.Invalid, "invalid certificate and key: %s and %s", s.Cert,
			s.Key), "name two readable PEM files that belong together")
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"}}, nil
}

// openOIDC returns the sign-in provider, nil if none is configured.
func openOIDC(o config.OIDC) (*oidc.Provider, error) {
	if o.Issuer == "" {
		return nil, nil
	}
	logf.Redact(o.ClientSecret.Reveal())
	return oidc.New(oidc.Options{Issuer: o.Issuer, ClientID: o.ClientID, Secret: o.ClientSecret, Scopes: o.Scopes,
		Groups: o.Groups, Allow: o.Allow})
}

// writeAudit appends a line to the audit log. Failures are logged.
func (a *App) writeAudit(ctx context.Context, line api.AuditLine) {
	text, err := json.Marshal(line)
	if err == nil {
		_, err = a.audit.Write(append([]byte(logf.Redacted(string(text))), '\n'))
	}
	if err != nil {
		logf.Errorf(ctx, "write the audit log: %v", err)
	}
}

// auditUses returns a function that also writes the uses of credentials by sandboxes to the audit log.
func (a *App) auditUses(ctx context.Context, publish func(record.Event)) func(record.Event) {
	return func(e record.Event) {
		publish(e)
		if e.Type != record.EventCredentialUsed && e.Type != record.EventCredentialRefused {
			return
		}
		u := e.Use
		a.writeAudit(ctx, api.AuditLine{Time: u.Time.UTC(), Account: e.Sandbox.Holder(), SandboxID: e.Sandbox.ID,
			Secret: u.Secret, Method: u.Method, Path: u.Host + u.Path, Status: u.Status, Refused: u.Refused,
			Count: u.Count})
	}
}

// openAudit opens the audit log to append to it.
func openAudit(data string) (*rolling, error) {
	return openRolling(filepath.Join(data, auditName), auditLimit, nil)
}
