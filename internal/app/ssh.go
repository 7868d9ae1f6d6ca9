package app

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/ssh"
)

// openSSH opens the SSH of the server. It listens if the configuration says so, but never in a background server.
func (a *App) openSSH(ctx context.Context) error {
	host, err := ssh.HostKey(filepath.Join(a.cfg.Data, config.SSHKeyFile))
	if err != nil {
		return err
	}
	a.ssh = ssh.New(ssh.Options{
		Fleet: a.fleet, Host: host, Find: a.sandboxOf, Audit: a.auditSSH, Follow: a.ring.Follow,
		Login: func(ctx context.Context, key []byte) (account.Principal, error) {
			return account.Public(ctx, a.ring, key)
		},
		Used: func(ctx context.Context, who account.Principal) { account.PublicUsed(ctx, a.ring, who) },
	})
	if a.background || a.cfg.Server.SSHListen == config.NoListen {
		return nil
	}
	if a.sshTCP, err = new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.Server.SSHListen); err != nil {
		return listenError(err, a.cfg.Server.SSHListen)
	}
	a.then("the listener of SSH", func(context.Context) error {
		if err := a.sshTCP.Close(); !errors.Is(err, net.ErrClosed) { // closed by its server
			return err
		}
		return nil
	})
	return nil
}

// sshOptions returns the SSH of the HTTP server.
func (a *App) sshOptions() server.SSH {
	s := server.SSH{Serve: a.ssh.ServeKnown, HostKey: a.ssh.HostKey()}
	if a.sshTCP != nil {
		s.Listen = a.sshTCP.Addr().String()
	}
	return s
}

// sandboxOf returns the ID of a sandbox by its name or ID, or by those of its session.
func (a *App) sandboxOf(ctx context.Context, who account.Principal, name string) (string, error) {
	box, err := a.fleet.Get(ctx, who.Account, name)
	if err == nil {
		return box.ID, nil
	}
	if !errors.Is(err, errors.NotFound) {
		return "", err
	}
	s, missing := a.sessions.Get(ctx, who.Account, name)
	if missing != nil {
		if !errors.Is(missing, errors.NotFound) {
			return "", missing
		}
		return "", errors.Remedy(errors.Newf(errors.NotFound, "there is no sandbox and no session %.100q", name),
			"harvest sandbox ls and harvest sessions list them")
	}
	if s.SandboxID == "" {
		return "", errors.Remedy(errors.Newf(errors.Conflict, "the session %s has no sandbox now", name),
			"wake it with a prompt: harvest send %s …", name)
	}
	return s.SandboxID, nil
}

// sshKey shows the key of the server for SSH, which clients compare.
func sshKey(cfg config.Config) finding {
	f := finding{Name: "SSH", OK: true, Detail: "the server makes its key when it starts"}
	text, err := os.ReadFile(filepath.Join(cfg.Data, config.SSHKeyFile))
	if errors.IsNotExist(err) {
		return f
	}
	key, err := gossh.ParsePrivateKey(text)
	if err != nil {
		f.OK, f.Detail = false, config.SSHKeyFile+" in the data directory is not a key of SSH"
		f.Remedy = "restore it from a backup, or remove it: then a new one is made, which clients must accept"
		return f
	}
	f.Detail = "the server's key is " + gossh.FingerprintSHA256(key.PublicKey())
	if cfg.Server.SSHListen != config.NoListen {
		f.Detail += ", at " + cfg.Server.SSHListen
	}
	return f
}

// auditSSH writes the audit line of what a client of SSH has begun.
func (a *App) auditSSH(ctx context.Context, begun ssh.Begun) {
	line := api.AuditLine{Time: time.Now().UTC(), Account: begun.Who.Account, KeyID: begun.Who.KeyID, Method: "SSH",
		Path: begun.What, SandboxID: begun.Sandbox, Command: begun.Detail, Address: begun.From}
	a.writeAudit(ctx, line)
}
