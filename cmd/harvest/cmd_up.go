package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/sandboxes"
)

// upFlags are the configuration options that are also flags of harvest up.
var upFlags = []struct{ flag, key, help string }{
	{"listen", "server.listen", "TCP address, host:port; none for the Unix socket only (default: 127.0.0.1:7777)"},
	{"modal-listen", "modal.listen", "address for Modal's protocol, host:port (default: none)"},
	{"tls-cert", "server.tls_cert", "file of a TLS certificate"},
	{"tls-key", "server.tls_key", "file of the certificate's key"},
	{"acme", "server.acme_domain", "domain name of this machine, to obtain a certificate for; needs port 443"},
}

func (c commands) upCommand() *cobra.Command {
	background, insecure := false, false
	values := make([]string, len(upFlags))
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the server in the foreground, for programs and browsers",
		Long: `Run the server of the data directory until it is interrupted or harvest down stops it. Sandboxes and
their commands keep running, and the next server adopts them. Commands that need a server start one
in the background if none is running. This command takes over from such a server.

The server listens on a Unix socket in the data directory, which needs no key, and on TCP. Programs
send a key of harvest key create. Browsers open the printed sign-in link, which works once. Addresses
that other machines can reach need TLS.`,
		Example: `  harvest up
  harvest up --data ./data --listen 127.0.0.1:8080
  harvest up --listen 0.0.0.0:443 --acme harvest.example.org`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if background {
				return c.serveBackground(cmd.Context())
			}
			var settings []config.Setting
			for i, f := range upFlags {
				if cmd.Flags().Changed(f.flag) {
					value := values[i]
					if strings.HasPrefix(f.flag, "tls-") {
						value, _ = filepath.Abs(value) // reading the file reports a missing directory
					}
					settings = append(settings, config.Setting{Key: f.key, Value: value, Source: "--" + f.flag})
				}
			}
			if insecure {
				settings = append(settings, config.Setting{Key: "server.insecure", Value: "true", Source: "--insecure"})
			}
			return c.serveForeground(cmd.Context(), settings...)
		},
	}
	for i, f := range upFlags {
		cmd.Flags().StringVar(&values[i], f.flag, "", f.help)
	}
	cmd.Flags().BoolVar(&insecure, "insecure", false, "listen without TLS even if other machines can connect")
	cmd.Flags().BoolVar(&background, "background", false, "run as a background server, started by another command")
	// Only startServer knows the other requirements of this flag.
	_ = cmd.Flags().MarkHidden("background")
	return cmd
}

func (c commands) downCommand() *cobra.Command {
	sandboxes := false
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the server; sandboxes keep running",
		Long: `Stop the server of the data directory. Sandboxes and their commands keep running, and the next server
adopts them.`,
		Example: `  harvest down
  harvest down --sandboxes`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			cfg, err := c.Config()
			if err != nil {
				return err
			}
			if sandboxes {
				if err := c.endSandboxes(ctx); err != nil {
					return err
				}
			}
			server, err := c.Existing(ctx, cfg)
			if errors.KindOf(err) == errors.Unavailable {
				c.Notef("no server is running")
				return nil
			}
			if err != nil {
				return err
			}
			defer server.Close()
			defer c.Waiting("waiting for the server to end")()
			return server.Shutdown(ctx, api.ShutdownRequest{})
		},
	}
	cmd.Flags().BoolVar(&sandboxes, "sandboxes", false, "also end all sandboxes, of all accounts")
	return cmd
}

// endSandboxes ends all sandboxes. It starts a server if none runs, because only a server can find them.
func (c commands) endSandboxes(ctx context.Context) error {
	server, err := c.Connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	all, err := sandboxes.All(ctx, server, api.SandboxFilter{Everyone: true})
	if err != nil {
		return err
	}
	refs := make([]string, len(all))
	for i, s := range all {
		refs[i] = s.ID
	}
	return cli.Each(refs, "ended", func(ref string) error { return server.DestroyAnySandbox(ctx, ref) })
}
