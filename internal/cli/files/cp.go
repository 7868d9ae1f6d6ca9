package files

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// SandboxCopy returns the command that copies files into and out of sandboxes.
func SandboxCopy(base *cli.CLI) *cobra.Command {
	c := commands{base}
	return c.copyCommand("SANDBOX", "Copy files into or out of a sandbox", `  harvest sandbox cp data.csv dev:/tmp/
  harvest sandbox cp dev:/workspace ./workspace
  harvest sandbox cp ./src/. dev:/workspace
  harvest sandbox cp dev:/etc - | tar -t
  harvest sandbox cp dev:/workspace other:/workspace`,
		func(server *client.Client, ref string) location { return inSandbox{server, ref} })
}

func (c commands) volumeCopy() *cobra.Command {
	return c.copyCommand("VOLUME", "Copy files into or out of a volume", `  harvest volume cp ./dataset data:/
  harvest volume cp data:/results.csv .
  harvest volume cp data:/ - > data.tar`,
		func(server *client.Client, name string) location { return inVolume{server, name} })
}

func (c commands) copyCommand(noun, short, example string,
	open func(server *client.Client, ref string) location) *cobra.Command {
	follow, special := false, false
	cmd := &cobra.Command{
		Use:     "cp SOURCE TARGET",
		Short:   short,
		Long:    "Copy files and directories, with their modes and times.\n\n" + fmt.Sprintf(copyHelp, noun),
		Example: example,
		Args:    cli.Args(2, 2, "a source and a target"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			var to here
			if !special {
				to.skipped = func(name string) { c.Notef("%s: skipped, because it is a FIFO or a device", name) }
			}
			one := &copying{here: to, in: c.In, out: c.Out, follow: follow, noun: noun,
				open: func(ref string) location { return open(server, ref) }}
			return one.run(ctx, args[0], args[1])
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow-link", "L", false, "copy the target of SOURCE if it is a symbolic link")
	cmd.Flags().BoolVar(&special, "special-files", false,
		"create FIFOs on this machine, and fail at devices (default: skip both, with a note)")
	return cmd
}
