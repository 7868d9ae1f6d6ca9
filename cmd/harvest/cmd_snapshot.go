package main

import (
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
)

func (c *cli) sandboxSnapshot() *cobra.Command {
	var req api.SnapshotRequest
	cmd := c.withOutput(&cobra.Command{
		Use:   "snapshot SANDBOX [--name NAME] [--path DIR]",
		Short: "Make an image of a sandbox's files while it runs, and print its id",
		Long: `Makes an image of a sandbox's files while it runs. Commands stand still while the files are read, and go on by themselves. When the id is
printed, the image is on the disk. Volumes, processes and memory are not part of it.`,
		Example: `  harvest sandbox snapshot dev --name team/dev:before
  harvest run --image team/dev:before -- ls -la`,
		Args: count(1, 1, "one sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			made, err := server.SnapshotSandbox(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return c.show(oneImage(made))
		},
	}, formatName)
	cmd.Flags().StringVar(&req.Name, "name", "", "name of the image; an older image of that name loses it")
	cmd.Flags().StringVar(&req.Path, "path", "", "only the files below that directory; all others are as in the sandbox's image")
	return cmd
}

func (c *cli) sandboxFork() *cobra.Command {
	var req api.ForkRequest
	var where processFlags
	cmd := c.withOutput(&cobra.Command{
		Use:   "fork SANDBOX [--name NAME] [-e NAME=VALUE]…",
		Short: "Create another sandbox with the files of one that runs, and print its id",
		Long: `Takes a snapshot of a sandbox and creates another one from it, with the same limits, volumes, secrets, network, tags, user and working
directory, and a lifetime that begins anew. Commands are not copied, and neither is the environment that the first sandbox was
given, which is not recorded: give it again.`,
		Example: "  harvest sandbox fork dev --name dev2 -e DEBUG=1",
		Args:    count(1, 1, "one sandbox"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if req.Env, err = c.environment(where.envFile, where.env); err != nil {
				return err
			}
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			made, err := server.ForkSandbox(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return c.show(oneSandbox(made))
		},
	}, formatName)
	cmd.Flags().StringVar(&req.Name, "name", "", "name of the new sandbox")
	cmd.Flags().StringArrayVarP(&where.env, "env", "e", nil, "NAME=VALUE, or NAME to pass a variable on")
	cmd.Flags().StringVar(&where.envFile, "env-file", "", "file of NAME=VALUE lines")
	return cmd
}
