package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

func (c *cli) upCommand() *cobra.Command {
	background := false
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the server in the foreground",
		Long: `Runs the server of the data directory until it is interrupted or told to stop with harvest down. Sandboxes, and the commands in
them, go on; the next server takes them over. Commands that need a server start one in the background when there is none.`,
		Example: `  harvest up
  harvest up --data ./data`,
		Args: count(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if background {
				return c.serveBackground(cmd.Context())
			}
			return c.serve(cmd.Context(), false, func() {})
		},
	}
	cmd.Flags().BoolVar(&background, "background", false, "be the server that another command starts")
	// Only startServer knows what else that needs.
	_ = cmd.Flags().MarkHidden("background")
	return cmd
}

func (c *cli) serve(ctx context.Context, background bool, ready func()) error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	keepFiles()
	logf.Setup(c.err, cfg.Log.Level, cfg.Log.Format == "json")
	app, err := OpenApp(ctx, cfg, background)
	if err != nil {
		return err
	}
	logf.Infof(ctx, "harvest %s serves %s", version(), filepath.Join(cfg.Data, client.Socket))
	ready()
	err = app.Serve(ctx)
	logf.Infof(ctx, "the server has ended")
	return err
}

// readyFD is where a background server tells the command that started it that it is ready, or why not.
const readyFD = 3

// readiness is what it tells.
type readiness struct {
	Problem *api.Problem `json:"problem,omitempty"`
}

// serveBackground is the other side of startServer.
func (c *cli) serveBackground(ctx context.Context) error {
	pipe := os.NewFile(readyFD, "ready")
	tell := func(r readiness) {
		// Whoever started us may be gone; that changes nothing.
		_ = json.NewEncoder(pipe).Encode(r)
		_ = pipe.Close()
	}
	told := false
	err := c.serve(ctx, true, func() {
		told = true
		tell(readiness{})
	})
	if err != nil && !told {
		tell(readiness{Problem: &api.Problem{
			Code: string(errors.KindOf(err)), Detail: errors.Message(err), Stage: errors.StageOf(err), Remedy: errors.RemedyOf(err),
		}})
	}
	return err
}

func (c *cli) downCommand() *cobra.Command {
	sandboxes := false
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the server; sandboxes keep running",
		Long:  "Stops the server of the data directory. Sandboxes, and the commands in them, go on, and the next server takes them over.",
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
			server, err := client.Connect(ctx, cfg.Data)
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
	cmd.Flags().BoolVar(&sandboxes, "sandboxes", false, "end all sandboxes, too")
	return cmd
}

// endSandboxes ends all sandboxes, for which it starts a server if there is none: without one they cannot be found.
func (c *cli) endSandboxes(ctx context.Context) error {
	server, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	all, err := everySandbox(ctx, server, api.SandboxFilter{})
	if err != nil {
		return err
	}
	refs := make([]string, len(all))
	for i, s := range all {
		refs[i] = s.ID
	}
	return removeEach(refs, func(ref string) error { return server.DestroySandbox(ctx, ref) })
}
