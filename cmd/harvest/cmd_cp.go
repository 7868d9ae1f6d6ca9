package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func (c *cli) sandboxCopy() *cobra.Command {
	return &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files into or out of a sandbox",
		Long:  "Copies files and directories.\n\n" + fmt.Sprintf(copyHelp, "SANDBOX"),
		Example: `  harvest sandbox cp data.csv dev:/tmp/
  harvest sandbox cp dev:/workspace ./workspace
  harvest sandbox cp dev:/etc - | tar -t`,
		Args: count(2, 2, "a source and a target"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			return c.copyFiles(cmd.Context(), args[0], args[1], func(ref string) tree {
				return tree{
					in: func(ctx context.Context, dir string, tar io.Reader) error { return server.CopyIn(ctx, ref, dir, tar) },
					out: func(ctx context.Context, path string) (io.ReadCloser, error) {
						return server.CopyOut(ctx, ref, path)
					},
				}
			})
		},
	}
}

func (c *cli) volumeCopy() *cobra.Command {
	return &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files into or out of a volume",
		Long:  "Copies files and directories.\n\n" + fmt.Sprintf(copyHelp, "VOLUME"),
		Example: `  harvest volume cp ./dataset data:/
  harvest volume cp data:/results.csv .
  harvest volume cp data:/ - > data.tar`,
		Args: count(2, 2, "a source and a target"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			return c.copyFiles(cmd.Context(), args[0], args[1], func(name string) tree {
				return tree{
					in: func(ctx context.Context, dir string, tar io.Reader) error {
						return server.VolumeCopyIn(ctx, name, dir, tar)
					},
					out: func(ctx context.Context, path string) (io.ReadCloser, error) {
						return server.VolumeCopyOut(ctx, name, path)
					},
				}
			})
		},
	}
}
