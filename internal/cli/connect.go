package cli

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/release"
)

// HARVEST_URL replaces the server of the data directory, and HARVEST_API_KEY is the key for it. The key is
// neither an option nor a flag, so that it appears in no file and in no command line.
const (
	EnvURL = "HARVEST_URL"
	EnvKey = "HARVEST_API_KEY"
)

// remoteServer returns a client of the server that HARVEST_URL names, nil if it is not set.
func (c *CLI) remoteServer() (*client.Client, error) {
	if c.Env(EnvURL) == "" {
		return nil, nil
	}
	logf.Redact(c.Env(EnvKey))
	server, err := client.At(c.Env(EnvURL), c.Env(EnvKey))
	if err != nil {
		return nil, errors.Wrapf(err, "%s", EnvURL)
	}
	var once sync.Once
	server.OnWait(silence, func() {
		once.Do(func() { c.Notef("waiting for the server at %s…", c.Env(EnvURL)) })
	})
	return server, nil
}

// silence is how long a server on another machine may be silent before the wait is reported.
const silence = 5 * time.Second

// Existing returns a client of a running server. Unavailable without one.
func (c *CLI) Existing(ctx context.Context, cfg config.Config) (*client.Client, error) {
	if server, err := c.remoteServer(); server != nil || err != nil {
		return server, err
	}
	return client.Connect(ctx, cfg.Data)
}

// Connect returns a client of the server that HARVEST_URL names, or else of the data directory's server, which
// it starts in the background if it does not run.
func (c *CLI) Connect(ctx context.Context) (*client.Client, error) {
	if server, err := c.remoteServer(); server != nil || err != nil {
		return server, err
	}
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	server := client.New(cfg.Data)
	found, err := server.Server(ctx)
	if err == nil && found.Version != release.Version() {
		err = c.otherVersion(ctx, server, found)
	}
	if err == nil && c.Engine != "" && found.Engine != c.Engine {
		err = errors.Remedy(errors.Newf(errors.Conflict, "a server with the engine %s is already running",
			found.Engine), "stop it with harvest down, or name another --data")
	}
	if errors.KindOf(err) == errors.Unavailable {
		defer c.Waiting("starting the server")()
		err = c.Start(ctx, cfg, server)
	}
	if err != nil {
		server.Close()
		return nil, errors.Stage(err, "server")
	}
	return server, nil
}

// otherVersion stops an idle background server of another version and returns Unavailable. Otherwise it prints
// the version of the server.
func (c *CLI) otherVersion(ctx context.Context, server *client.Client, found api.Server) error {
	if found.Background {
		err := server.Shutdown(ctx, api.ShutdownRequest{IfIdle: true})
		if kind := errors.KindOf(err); err == nil || kind == errors.Unavailable { // ended before it answered
			return errors.Newf(errors.Unavailable, "no server is running")
		}
	}
	c.Notef("the server is version %s, this is %s; to change that: harvest down", found.Version, release.Version())
	return nil
}
