// Package app opens the parts of a server and connects them.
package app

import (
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/app/programs"
	"github.com/RelevanceAI/harvest/internal/app/startup"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/release"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/trace"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/modal"
	s3mount "github.com/RelevanceAI/harvest/internal/s3/mount"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/session/repo"
	"github.com/RelevanceAI/harvest/internal/session/snapshots"
	"github.com/RelevanceAI/harvest/internal/session/uploads"
	"github.com/RelevanceAI/harvest/internal/ssh"
	"github.com/RelevanceAI/harvest/internal/store"
)

// App is a server and all its parts. No other type knows every part.
type App struct {
	cfg        config.Config
	background bool
	secrets    *secret.Vault
	storage    *storage.Manager
	mounts     *s3mount.Manager // nil before openMounts
	sent       sentLater
	events     *event.Journal
	inbox      *inbox.Box
	fleet      *fleet.Fleet
	baseImages image.Builder // of the engine
	schedules  *schedule.Scheduler
	sessions   *session.Manager
	repos      *repo.Manager
	server     *server.Server
	ring       *account.Ring
	listener   net.Listener // the Unix socket
	tcp        net.Listener // nil without one
	audit      *rolling
	modal      *modal.Server // nil without one
	modalTCP   net.Listener  // of modal
	modalURL   string        // address of modal for clients
	url        string        // of tcp, for browsers
	ssh        *ssh.Server
	sshTCP     net.Listener  // of ssh; nil without one
	asked      chan struct{} // closed when a client requests the shutdown
	closers    []closer      // in the order of opening
}

type closer struct {
	what  string
	close func(context.Context) error
}

// personal is the account of anyone who can open the socket. It owns the keys and tokens in the server's
// environment.
const personal = "personal"

// leave is how long requests in progress may take when the server ends.
const leave = 5 * time.Second

// Open locks the data directory and opens every part, up to the socket. On failure nothing stays open.
func Open(ctx context.Context, cfg config.Config, background bool) (*App, error) {
	a := &App{cfg: cfg, background: background, asked: make(chan struct{})}
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(err, a.closeAll(ctx))
	}
	return a, nil
}

func (a *App) open(ctx context.Context) error {
	lock, err := store.LockDir(a.cfg.Data)
	if err != nil {
		return err
	}
	traces, err := trace.Open(ctx, os.Getenv, release.Version())
	if err != nil {
		return err
	}
	if traces != nil {
		a.then("the traces", func(ctx context.Context) error { traces(ctx); return nil })
	}
	a.then("the lock", func(context.Context) error { return lock.Unlock() })
	if err := programs.RemoveOtherServers(filepath.Join(a.cfg.Data, "bin")); err != nil {
		return err
	}
	db, err := store.Open(ctx, filepath.Join(a.cfg.Data, databaseName))
	if err != nil {
		return err
	}
	a.then("the records", func(context.Context) error { return db.Close() })
	a.events = event.Open(ctx, event.Options{Store: db.Events()})
	a.then("the events", a.events.Close)
	if err := a.openInbox(ctx, db); err != nil {
		return errors.Stage(err, "inbox")
	}
	a.watchDisk(ctx, db.Reserve)
	if err := a.openSecrets(ctx, db); err != nil {
		return errors.Stage(err, "secrets")
	}
	eng, below, err := openEngine(ctx, a.cfg, a.bucketAt, a.setOwner)
	if err != nil {
		return errors.Stage(err, startup.StageEngine)
	}
	a.then("the engine", below.close(eng))
	opts := fleetOptions(a.cfg, eng, db.Sandboxes())
	if a.audit, err = openAudit(a.cfg.Data); err != nil {
		return err
	}
	a.then("the audit log", func(context.Context) error { return a.audit.Close() })
	opts.Secrets, opts.Event = a.secrets, a.auditUses(ctx, record.Publish(ctx, a.events))
	if opts.S3, err = a.openStorage(ctx, db, eng); err != nil {
		return err
	}
	if opts.Mounts, err = a.openMounts(ctx); err != nil {
		return err
	}
	a.baseImages = eng.Images()
	if a.fleet, err = fleet.Open(ctx, opts); err != nil {
		return errors.Stage(err, "recover")
	}
	a.then("the sandboxes", a.fleet.Close)
	a.sent.to(ctx, a.fleet)
	a.then("the builds", below.connect(a.fleet, eng.Volumes()))
	if err := a.openRepos(ctx, db, eng); err != nil {
		return err
	}
	if err := a.openSessions(ctx, db, eng); err != nil {
		return err
	}
	a.ring = account.NewRing(db.Keys())
	if err := a.openSchedules(ctx, db); err != nil {
		return err
	}
	if err := a.listenTCP(ctx); err != nil {
		return err
	}
	if err := a.openModal(ctx, db, eng); err != nil {
		return err
	}
	if err := a.openSSH(ctx); err != nil {
		return errors.Stage(err, "ssh")
	}
	if err := a.openServer(ctx, db, eng); err != nil {
		return err
	}
	a.listener, err = socket.Listen(a.cfg.Data, client.Socket)
	return err
}

// openSessions opens the parts that agents need.
func (a *App) openSessions(ctx context.Context, db *store.DB, eng engine.Engine) error {
	opts, err := a.sessionOptions()
	if err != nil {
		return err
	}
	opts.Store, opts.History, opts.Volumes = db.Sessions(), db.Sessions().History, eng.Volumes()
	opts.Uploads, err = uploads.Open(filepath.Join(a.cfg.Data, sessionUploadsName), a.cfg.Agents.UploadBytes)
	if err != nil {
		return errors.Stage(err, "uploads")
	}
	a.then("the uploads", func(context.Context) error { opts.Uploads.Close(); return nil })
	if a.sessions, err = session.Open(ctx, opts); err != nil {
		return errors.Stage(err, "sessions")
	}
	a.then("the sessions", func(context.Context) error { a.sessions.Close(); return nil })
	return nil
}

// sessionOptions returns the options of sessions, without those of the records and of the engine.
func (a *App) sessionOptions() (session.Options, error) {
	models, err := openModels(a.cfg, a.secrets)
	if err != nil {
		return session.Options{}, errors.Stage(err, "models")
	}
	rules, err := rulesOf(a.cfg)
	if err != nil {
		return session.Options{}, errors.Stage(err, "connect")
	}
	agents := agentsOf(a.cfg.Agents.Custom)
	releases, err := releasesOf(a.cfg.Agents.Versions, agents)
	if err != nil {
		return session.Options{}, err
	}
	return session.Options{
		Fleet: a.fleet, Journal: a.events, Inbox: a.inbox, Agents: agents, Command: commandAgent, Releases: releases,
		Default: a.cfg.Agents.Default, Image: a.cfg.Agents.Image,
		Models: models, DirectModels: !a.cfg.Model.Gateway, Repos: sessionRepos{a.repos}, Secrets: a.secrets,
		GitHub: clients(rules), Spares: a.cfg.Agents.Spares, SpareLife: a.cfg.Agents.SpareLife,
	}, nil
}

// listenTCP listens on TCP if the configuration says so. A background server never does.
func (a *App) listenTCP(ctx context.Context) (err error) {
	if a.background || a.cfg.Server.Listen == config.NoListen {
		return nil
	}
	if a.tcp, a.url, err = listenTCP(ctx, a.cfg); err != nil {
		return errors.Stage(err, "listen")
	}
	a.then("the TCP listener", func(context.Context) error {
		err := a.tcp.Close()
		if errors.Is(err, net.ErrClosed) { // closed by the server
			return nil
		}
		return err
	})
	return nil
}

func (a *App) openServer(ctx context.Context, db *store.DB, eng engine.Engine) error {
	secret, err := store.SigningKey(a.cfg.Data)
	if err != nil {
		return err
	}
	proxies, err := config.Prefixes(a.cfg.Server.Proxies)
	if err != nil {
		return err
	}
	names := a.cfg.Server.Names
	if a.cfg.Server.ACMEDomain != "" {
		names = append(slices.Clone(names), a.cfg.Server.ACMEDomain)
	}
	if u, err := url.Parse(a.cfg.Server.PublicURL); err == nil && u.Hostname() != "" {
		names = append(slices.Clone(names), u.Hostname())
	}
	temp, err := clearUploads(a.cfg.Data)
	if err != nil {
		return err
	}
	ended := snapshots.Collector{Fleet: a.fleet, Images: eng.Images(), Store: db.Sessions()}
	stop := collectDaily(ctx, a.cfg, eng.Images(), ended.Collect)
	a.then("the collection of images", func(context.Context) error { stop(); return nil })
	provider, err := openOIDC(a.cfg.OIDC)
	if err != nil {
		return errors.Stage(err, "oidc")
	}
	a.server = server.New(ctx, server.Options{
		Fleet: a.fleet, Images: eng.Images(), Volumes: eng.Volumes(), Engine: eng.Name(), Version: release.Version(),
		Background: a.background, Shutdown: func() { close(a.asked) },
		Backup: func(ctx context.Context, keys bool, w io.Writer) error { return backup(ctx, db, a.cfg.Data, keys, w) },
		Export: exporter(eng), ImageAge: a.cfg.ImageGC.Age, Temp: temp,
		Secrets: a.secrets, Schedules: a.schedules, Events: a.events, Inbox: a.inbox,
		Sessions: a.sessions, Repos: a.repos,
		Storage: a.storage, SSH: a.sshOptions(),
		Keys: a.ring, OIDC: provider, Replays: db.Replays(), Secret: secret, URL: a.url,
		ModalURL: a.modalURL, ModalAuthority: a.modalAuthority(),
		Names: names, PortDomain: strings.TrimPrefix(a.cfg.Ports.Domain, "*."), Proxies: proxies,
		Rate: a.cfg.Server.Rate, Audit: a.audit,
		AuditFile: filepath.Join(a.cfg.Data, auditName),
		Doctor:    func(ctx context.Context) []api.Finding { return Examine(ctx, a.cfg) },
	})
	return nil
}

// then registers the function that closes a part that was just opened.
func (a *App) then(what string, close func(context.Context) error) {
	a.closers = append(a.closers, closer{what, close})
}

// closeAll closes everything, the last opened first.
func (a *App) closeAll(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var all error
	for i := len(a.closers) - 1; i >= 0; i-- {
		all = errors.Join(all, errors.Wrapf(a.closers[i].close(ctx), "close %s", a.closers[i].what))
	}
	a.closers = nil
	return all
}

// Serve serves until ctx ends, a client requests the shutdown, or a background server is no longer needed. Then
// it closes everything. Sandboxes keep running.
func (a *App) Serve(ctx context.Context) error {
	var g errgroup.Group
	broken := make(chan struct{})
	end := sync.OnceFunc(func() { close(broken) })
	g.Go(func() error {
		defer end()
		return a.server.ServeLocal(a.listener)
	})
	if a.tcp != nil {
		g.Go(func() error {
			defer end()
			return a.server.Serve(a.tcp)
		})
	}
	if a.modal != nil {
		g.Go(func() error {
			defer end()
			return a.modal.Serve(a.modalTCP)
		})
	}
	shells, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	hungUp := make(chan struct{})
	if a.sshTCP == nil {
		close(hungUp)
	} else {
		g.Go(func() error {
			defer close(hungUp)
			defer end()
			return a.ssh.Serve(shells, a.sshTCP)
		})
	}
	select {
	case <-ctx.Done():
	case <-a.asked:
	case <-broken:
	case <-a.unused(ctx):
		logf.Infof(ctx, "the server was unused for %s and ends", a.cfg.IdleExit)
	}
	ctx = context.WithoutCancel(ctx)
	stopping, cancel := context.WithTimeout(ctx, leave)
	hangUp()
	a.server.Stop(stopping)
	select {
	case <-hungUp:
	case <-stopping.Done():
	}
	cancel()
	// Close the listener first: a process that gets the lock must not find this server's socket.
	a.then("the socket", func(context.Context) error { return a.listener.Close() })
	err := a.closeAll(ctx)
	return errors.Join(err, a.server.Close(), g.Wait())
}

// unused returns a channel that is closed when a background server is no longer needed. One that serves Modal's
// protocol is always needed: programs for Modal cannot start it again.
func (a *App) unused(ctx context.Context) <-chan struct{} {
	if !a.background || a.cfg.IdleExit == 0 || a.modal != nil {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		tick := time.NewTicker(max(10*time.Millisecond, min(a.cfg.IdleExit/4, 10*time.Second)))
		defer tick.Stop()
		used := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if a.sandboxes() > 0 {
				used = time.Now()
			}
			if time.Since(used) >= a.cfg.IdleExit && a.server.Idle() >= a.cfg.IdleExit {
				close(ended)
				return
			}
		}
	}()
	return ended
}

func (a *App) sandboxes() int {
	n := 0
	for _, count := range a.fleet.Stats().Sandboxes {
		n += count
	}
	return n
}

// isolationsOf returns the kinds of isolation of the engine gvisor, the default first.
func isolationsOf(cfg config.Config) []string {
	if cfg.Engine != engine.GVisor {
		return nil
	}
	standard := cfg.Isolation.Default
	others := slices.DeleteFunc(slices.Clone(cfg.Isolation.Allowed), func(k string) bool { return k == standard })
	return append([]string{standard}, others...)
}

func fleetOptions(cfg config.Config, eng engine.Engine, records record.Store) fleet.Options {
	if cfg.Source("limits.memory") == "default" {
		cfg.Limits.Memory = 0 // the default then depends on the machine
	}
	var machine spec.Machine // zero: this machine
	if cfg.Engine == kubernetes.Name {
		machine = spec.Machine{CPU: cfg.Kubernetes.MaxCPU, Memory: cfg.Kubernetes.MaxMemory}
	}
	if cfg.Engine == "modal" {
		machine = spec.Machine{CPU: 1024, Memory: 4 << 40} // above Modal's limits, which Modal enforces itself
		if cfg.Boots == 0 {
			cfg.Boots = -1 // sandboxes boot at Modal
		}
	}
	return fleet.Options{
		Engine: eng, Isolations: isolationsOf(cfg), Store: records, Machine: machine,
		Checkpoints: filepath.Join(cfg.Data, "checkpoints"),
		Defaults:    engine.Limits(cfg.Limits),
		Quotas:      reserve.Quotas{Sandboxes: cfg.Quotas.Sandboxes, CPU: cfg.Quotas.CPU, Memory: cfg.Quotas.Memory},
		Prices: reserve.Prices{CPUSecond: cfg.Prices.CPUCoreSecond, GiBSecond: cfg.Prices.MemoryGiBSecond,
			GPUSecond: cfg.Prices.GPUSecond},
		Timeouts:   spec.Timeouts{Life: cfg.Timeout, Idle: cfg.IdleTimeout, Exec: cfg.ExecTimeout},
		Suspended:  cfg.SuspendedTimeout,
		UsageEvery: cfg.UsageInterval,
		Boots:      cfg.Boots,
		Warm:       cfg.Pool, WarmUp: strings.Fields(cfg.PoolWarmUp),
	}
}
