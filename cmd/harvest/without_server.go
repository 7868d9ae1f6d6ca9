//go:build !linux || !(amd64 || arm64) || clientonly

package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func helpers(context.Context) {}

func part(context.Context) (code int, ran bool) { return 0, false }

// ofServer makes a command that only a program with the server can run hand over to that.
func (c commands) ofServer(cmd *cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return c.handOver(false) }
	return cmd
}

// errNoServer is the error of commands that need a server on this machine.
func errNoServer() error {
	return errors.Remedy(errors.Newf(errors.Unsupported, "this harvest is the command line alone, without a server"),
		"name a server with %s and %s, or use the harvest for linux/amd64 or linux/arm64, which includes one",
		cli.EnvURL, cli.EnvKey)
}

func (c commands) serveForeground(context.Context, ...config.Setting) error { return c.handOver(true) }
func (c commands) serveBackground(context.Context) error                    { return c.handOver(true) }

// examine has nothing to say without a server.
func examine(context.Context, config.Config) []api.Finding { return nil }

// contextOf lets the server's program run the command: only that program packs build contexts. It starts the server
// first, because a program in memory cannot start itself as the server.
func (c commands) contextOf(ctx context.Context, _, _ string) (io.ReadCloser, error) {
	server, err := c.Connect(ctx)
	if err != nil {
		return nil, err
	}
	server.Close()
	return nil, c.handOver(false)
}
