//go:build linux && (amd64 || arm64) && !clientonly

package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/dirlock"
	"github.com/RelevanceAI/harvest/internal/base/filelock"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func helpers(ctx context.Context) { app.Helpers(ctx) }

func part(ctx context.Context) (code int, ran bool) { return app.Part(ctx) }

// ofServer returns a command that only a program with the server can run. This is one.
func (c commands) ofServer(cmd *cobra.Command) *cobra.Command { return cmd }

// canServe returns an error if this program has no server, without a look at the data directory.
func canServe() error { return nil }

// serverProgram returns the program to start as the server: this one.
func serverProgram(string) (string, error) {
	program, err := os.Executable()
	return program, errors.Wrapf(err, "find the program itself")
}

func (c commands) serveForeground(ctx context.Context, settings ...config.Setting) error {
	cfg, err := c.Config(settings...)
	if err != nil {
		return err
	}
	starting, err := c.takeOver(ctx, cfg)
	if err != nil {
		return err
	}
	defer starting.Close()
	return app.Foreground(ctx, cfg, c.Err, func(a *app.App) {
		_ = starting.Close() // closing it again is harmless
		if !c.Quiet {
			_, shown := cli.Terminal(c.Out)
			a.Welcome(c.Out, shown)
		}
	})
}

// takeOver ends the background server of the data directory, if one runs. Sandboxes and their commands continue, and
// the next server adopts them. Until the returned lock is closed, no other command starts a server.
func (c commands) takeOver(ctx context.Context, cfg config.Config) (starting *filelock.Lock, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	defer c.Waiting("waiting for the other server of the data directory")()
	for {
		if starting == nil {
			starting, err = lockStart(cfg.Data)
		}
		busy := errors.Is(err, errors.Conflict)
		if starting != nil {
			busy, err = c.endBackground(ctx, cfg)
		}
		if err == nil {
			return starting, nil
		}
		if busy {
			select {
			case <-time.After(pause):
				continue
			case <-ctx.Done():
			}
		}
		if starting != nil {
			_ = starting.Close()
		}
		return nil, err
	}
}

// endBackground ends the background server of the data directory, if one runs. It ends none if this process could not
// listen. Its error is Conflict if the server is not in the background; busy if that server is starting or ending, so
// that the caller should try again.
func (c commands) endBackground(ctx context.Context, cfg config.Config) (busy bool, err error) {
	// Taking the lock reveals problems with the directory, such as another owner, before any server is touched.
	lock, taken := dirlock.Take(cfg.Data)
	if taken == nil {
		return false, lock.Unlock()
	}
	if !errors.Is(taken, errors.Conflict) {
		return false, taken
	}
	server := client.New(cfg.Data)
	defer server.Close()
	found, err := server.Server(ctx)
	switch {
	case err != nil:
		return true, taken
	case !found.Background:
		return false, errors.Remedy(errors.Newf(errors.Conflict,
			"data directory %s: a server already runs in the foreground, process %d", cfg.Data, found.PID),
			"use that one, stop it with \"harvest down\", or choose another directory with --data")
	}
	if err := app.CheckListen(ctx, cfg); err != nil {
		return false, err
	}
	if err := server.Shutdown(ctx, api.ShutdownRequest{}); !errors.Is(err, errors.Unavailable) {
		return false, err
	}
	return false, nil // it had ended before it answered
}

func (c commands) serveBackground(ctx context.Context) error {
	return app.Background(ctx, func() (config.Config, error) { return c.Config() })
}

func examine(ctx context.Context, cfg config.Config) []api.Finding { return app.Examine(ctx, cfg) }

// contextOf returns the files of a build context as a tar stream.
func (c commands) contextOf(ctx context.Context, dir, dockerfile string) (io.ReadCloser, error) {
	return app.Context(ctx, dir, dockerfile), nil
}
