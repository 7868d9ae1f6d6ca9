package sandboxes

import (
	"context"
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/images"
)

func (c commands) sandboxSnapshot() *cobra.Command {
	var req api.SnapshotRequest
	cmd := c.WithOutput(&cobra.Command{
		Use:   "snapshot SANDBOX [--name NAME] [--path DIR]",
		Short: "Make an image of a running sandbox's files, and print its id",
		Long: `Make an image of a running sandbox's files. Commands pause while the files are read, and then resume.
When the id is printed, the image is on disk. It does not include volumes, processes and memory.`,
		Example: `  harvest sandbox snapshot dev --name team/dev:before
  harvest run --image team/dev:before -- ls -la`,
		Args: cli.Args(1, 1, "one sandbox"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			made, err := server.SnapshotSandbox(ctx, args[0], req)
			if err != nil {
				return err
			}
			return c.Show(images.Details(made))
		}),
	}, cli.FormatName)
	cmd.Flags().StringVar(&req.Name, "name", "", "name of the image; an older image of that name loses it")
	cmd.Flags().StringVar(&req.Path, "path", "",
		"only files below that directory; all others are those of the sandbox's image")
	return cmd
}

func (c commands) sandboxFork() *cobra.Command {
	var req api.ForkRequest
	var where cli.ProcessFlags
	cmd := c.WithOutput(&cobra.Command{
		Use:   "fork SANDBOX [--name NAME] [-e NAME=VALUE]…",
		Short: "Create a copy of a running sandbox, and print its id",
		Long: `Take a snapshot of a sandbox, and create another sandbox from it. The new one has the same limits,
volumes, secrets, network, tags, user and working directory, and a lifetime of its own. Commands are
not copied. The environment of the first sandbox is not recorded: give it again.`,
		Example: "  harvest sandbox fork dev --name dev2 -e DEBUG=1",
		Args:    cli.Args(1, 1, "one sandbox"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if req.Env, err = c.Environment(where.EnvFile, where.Env); err != nil {
				return err
			}
			server, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			made, err := server.ForkSandbox(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return c.Show(oneSandbox(made))
		},
	}, cli.FormatName)
	cmd.Flags().StringVar(&req.Name, "name", "", "name of the new sandbox")
	cmd.Flags().StringArrayVarP(&where.Env, "env", "e", nil, "NAME=VALUE, or NAME to forward a variable")
	cmd.Flags().StringVar(&where.EnvFile, "env-file", "", "file of NAME=VALUE lines")
	return cmd
}
