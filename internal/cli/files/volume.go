// Package files has the commands for volumes, and those for files of sandboxes: copy, read, change, synchronize.
package files

import (
	"context"
	"io/fs"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// commands makes the commands of this package.
type commands struct{ *cli.CLI }

// Volume returns the command for volumes.
func Volume(base *cli.CLI) *cobra.Command {
	c := commands{base}
	return cli.Group(&cobra.Command{
		Use:   "volume",
		Short: "Manage volumes, whose files outlive sandboxes",
		Example: `  harvest volume create data
  harvest run -v data:/data -- sh -c 'date > /data/now'
  harvest volume ls data`,
	}, c.volumeCreate(), c.volumeList(), c.volumeCopy(), c.volumeSync(), c.volumeVersions(), c.volumePrune(),
		c.volumeRemove())
}

func (c commands) volumeCreate() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:     "create NAME",
		Short:   "Create a volume if it is missing, and print its name",
		Example: "  harvest volume create data",
		Args:    cli.Args(1, 1, "one name"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			made, err := server.CreateVolume(ctx, args[0])
			if err != nil {
				return err
			}
			return c.Show(cli.View{JSON: made, Names: []string{made.Name}, Rows: [][]string{{made.Name}}})
		}),
	}, cli.FormatName)
}

func (c commands) volumeList() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:     "ls [VOLUME[:PATH]]",
		Aliases: []string{"list"},
		Short:   "List volumes, or a directory of one",
		Example: `  harvest volume ls
  harvest volume ls data:/results -o json`,
		Args: cli.Args(0, 1, "at most one volume"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			if len(args) == 1 {
				name, dir, ok := remote(args[0])
				if !ok {
					name, dir = args[0], "/"
				}
				entries, err := server.VolumeFiles(ctx, name, dir)
				if err != nil {
					return err
				}
				return c.Show(directory(entries))
			}
			found, err := server.Volumes(ctx)
			if err != nil {
				return err
			}
			return c.Show(cli.Table(found, []string{"NAME", "FILES", "SIZE", "CREATED"},
				func(vol api.Volume) (string, []string) {
					return vol.Name, []string{vol.Name, strconv.FormatInt(vol.Files, 10), cli.Size(vol.Size),
						cli.Ago(vol.Created)}
				}))
		}),
	}, cli.FormatTable)
}

// The file type bits of st_mode.
const (
	modeType    = 0o170000
	modeFile    = 0o100000
	modeDir     = 0o040000
	modeSymlink = 0o120000
)

func directory(entries []api.Entry) cli.View {
	v := cli.View{JSON: entries, Header: []string{"MODE", "SIZE", "CHANGED", "NAME"}}
	for _, e := range entries {
		mode, name := fs.FileMode(e.Mode&0o777), e.Name
		switch e.Mode & modeType {
		case modeDir:
			mode |= fs.ModeDir
		case modeSymlink:
			mode |= fs.ModeSymlink
			name += " -> " + e.Link
		}
		v.Names = append(v.Names, e.Name)
		v.Rows = append(v.Rows, []string{mode.String(), cli.Size(e.Size), cli.Ago(e.Modified), name})
	}
	return v
}

func (c commands) volumeRemove() *cobra.Command {
	var force bool
	cmd := c.Removal(&cobra.Command{
		Use:   "rm VOLUME[:PATH]…",
		Short: "Delete volumes, or files of volumes",
		Long: `Delete volumes with their files, or single files of volumes. A volume stays if:

  - a sandbox uses it
  - its upload to S3 at the end of a sandbox is still pending; harvest volume sync uploads the files,
    --force deletes them anyway`,
		Example: `  harvest volume rm data
  harvest volume rm data:/results/old.csv`,
	}, "volumes or files", func(ctx context.Context, server *client.Client, arg string) error {
		if name, path, ok := remote(arg); ok {
			return server.RemoveVolumeFile(ctx, name, path)
		}
		if force {
			return server.DeleteVolumeForce(ctx, arg)
		}
		return server.DeleteVolume(ctx, arg)
	})
	cmd.Flags().BoolVar(&force, "force", false, "also delete volumes with files that are not in S3 yet")
	return cmd
}
