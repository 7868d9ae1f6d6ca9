package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/config"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/privilege"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/server"
)

// upFlags are the configuration options that are also flags of harvest up.
var upFlags = []struct{ flag, key, help string }{
	{"listen", "server.listen", "TCP address, host:port; none for the Unix socket only (default: 127.0.0.1:7777)"},
	{"modal-listen", "modal.listen", "address for Modal's protocol, host:port (default: none)"},
	{"tls-cert", "server.tls_cert", "file of a TLS certificate"},
	{"tls-key", "server.tls_key", "file of the certificate's key"},
	{"acme", "server.acme_domain", "domain name of this machine, to obtain a certificate for; needs port 443"},
}

func (c *cli) upCommand() *cobra.Command {
	background, insecure := false, false
	values := make([]string, len(upFlags))
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the server in the foreground, for programs and browsers",
		Long: `Run the server of the data directory until it is interrupted or harvest down stops it. Sandboxes and
their commands keep running, and the next server adopts them. Commands that need a server start one
in the background if none is running.

The server listens on a Unix socket in the data directory, which needs no key, and on TCP. Programs
send a key of harvest key create. Browsers open the printed sign-in link, which works once. Addresses
that other machines can reach need TLS.`,
		Example: `  harvest up
  harvest up --data ./data --listen 127.0.0.1:8080
  harvest up --listen 0.0.0.0:443 --acme harvest.example.org`,
		Args: count(0, 0, "no arguments"),
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
			return c.serve(cmd.Context(), false, c.welcome, settings...)
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

func (c *cli) serve(ctx context.Context, background bool, ready func(*App), settings ...config.Setting) error {
	cfg, err := c.config(settings...)
	if err != nil {
		return err
	}
	keepFiles()
	log := c.err
	if background { // a log that grows for weeks must not fill the disk
		own, err := openRolling(filepath.Join(cfg.Data, logName), logLimit, becomeOutput)
		if err != nil {
			return err
		}
		defer own.Close()
		log = own
	}
	logf.Setup(log, cfg.Log.Level, cfg.Log.Format == "json")
	// Binaries with cgo cannot do it; only those of tests with the race detector have cgo.
	if err := privilege.Keep(privilege.Server); errors.Is(err, unix.ENOTSUP) {
		logf.Warnf(ctx, "the server keeps all capabilities: it is built with cgo")
	} else if err != nil {
		return err
	}
	app, err := OpenApp(ctx, cfg, background)
	if err != nil {
		return err
	}
	logf.Infof(ctx, "harvest %s serves %s %s", version(), filepath.Join(cfg.Data, client.Socket), app.url)
	ready(app)
	err = app.Serve(ctx)
	logf.Infof(ctx, "the server has ended")
	return err
}

// becomeOutput makes a file the standard output and error of this process. If the Go runtime aborts, it writes
// the reason there.
func becomeOutput(f *os.File) error {
	return errors.Join(unix.Dup3(int(f.Fd()), 1, 0), unix.Dup3(int(f.Fd()), 2, 0))
}

// welcome prints how to reach a server in the foreground. The sign-in link is only for the person at this
// terminal: files and journals have other readers.
func (c *cli) welcome(app *App) {
	if app.url == "" || c.quiet {
		return
	}
	fmt.Fprintf(c.out, "Harvest listens on %s\n", app.url)
	if app.modalURL != "" {
		fmt.Fprintf(c.out, "Programs written for Modal find it at %s: harvest modal env\n", app.modalURL)
	}
	if app.cfg.OIDC.Issuer != "" {
		fmt.Fprintf(c.out, "Sign in with %s at %s%s\n", app.cfg.OIDC.Issuer, app.url, api.SignInOIDC)
	}
	if _, shown := terminal(c.out); !shown { // files and pipes would keep the link
		fmt.Fprintln(c.out, "To sign in with a browser: harvest key link")
		return
	}
	link, err := server.SignInLink(app.ring, account.Local(), app.url)
	if err != nil {
		fmt.Fprintln(c.out, "To sign in with a browser: harvest key link")
		return
	}
	fmt.Fprintf(c.out, "To sign in with a browser, open this link within 15 minutes. It works once.\n\n  %s\n\n", link)
}

// readyFD is where a background server reports to the command that started it that it is ready, or why it is
// not.
const readyFD = 3

// readiness is that report.
type readiness struct {
	Problem *api.Problem `json:"problem,omitempty"`
}

// serveBackground is the counterpart of startServer.
func (c *cli) serveBackground(ctx context.Context) error {
	pipe := os.NewFile(readyFD, "ready")
	tell := func(r readiness) {
		// The parent may be gone, which changes nothing.
		_ = json.NewEncoder(pipe).Encode(r)
		_ = pipe.Close()
	}
	told := false
	err := c.serve(ctx, true, func(*App) {
		told = true
		tell(readiness{})
	})
	if err != nil && !told {
		tell(readiness{Problem: &api.Problem{
			Code: string(errors.KindOf(err)), Detail: errors.Message(err), Stage: errors.StageOf(err),
			Remedy: errors.RemedyOf(err),
		}})
	}
	return err
}

func (c *cli) downCommand() *cobra.Command {
	sandboxes := false
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the server; sandboxes keep running",
		Long: `Stop the server of the data directory. Sandboxes and their commands keep running, and the next server
adopts them.`,
		Example: `  harvest down
  harvest down --sandboxes`,
		Args: count(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			cfg, err := c.config()
			if err != nil {
				return err
			}
			if sandboxes {
				if err := c.endSandboxes(ctx); err != nil {
					return err
				}
			}
			server, err := c.existing(ctx, cfg)
			if errors.KindOf(err) == errors.Unavailable {
				c.notef("no server is running")
				return nil
			}
			if err != nil {
				return err
			}
			defer server.Close()
			defer c.waiting("waiting for the server to end")()
			return server.Shutdown(ctx, api.ShutdownRequest{})
		},
	}
	cmd.Flags().BoolVar(&sandboxes, "sandboxes", false, "also end all sandboxes, of all accounts")
	return cmd
}

// endSandboxes ends all sandboxes. It starts a server if none runs, because only a server can find them.
func (c *cli) endSandboxes(ctx context.Context) error {
	server, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	all, err := everySandbox(ctx, server, api.SandboxFilter{Everyone: true})
	if err != nil {
		return err
	}
	refs := make([]string, len(all))
	for i, s := range all {
		refs[i] = s.ID
	}
	return removeEach(refs, func(ref string) error { return server.DestroyAnySandbox(ctx, ref) })
}
