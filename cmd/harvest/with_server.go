//go:build linux && (amd64 || arm64) && !clientonly

package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app"
	"github.com/RelevanceAI/harvest/internal/base/config"
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
	return app.Foreground(ctx, cfg, c.Err, func(a *app.App) {
		if !c.Quiet {
			_, shown := cli.Terminal(c.Out)
			a.Welcome(c.Out, shown)
		}
	})
}

func (c commands) serveBackground(ctx context.Context) error {
	return app.Background(ctx, func() (config.Config, error) { return c.Config() })
}

func examine(ctx context.Context, cfg config.Config) []api.Finding { return app.Examine(ctx, cfg) }

// contextOf returns the files of a build context as a tar stream.
func (c commands) contextOf(ctx context.Context, dir, dockerfile string) (io.ReadCloser, error) {
	return app.Context(ctx, dir, dockerfile), nil
}
