package images

import (
	"io"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) imageExport() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "export IMAGE -o FILE",
		Short: "Write an image as an OCI archive, for docker load or podman load",
		Example: `  harvest image export team/app:1 -o app.tar
  harvest image export base -o - | podman load`,
		Args: cli.Args(1, 1, "one image"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if output == "" {
				return cli.Usage(cmd, "%s needs --output", cmd.CommandPath())
			}
			if _, tty := cli.Terminal(c.Out); output == "-" && tty {
				return errors.Remedy(errors.Newf(errors.Invalid, "cannot write an archive to a terminal"),
					"write to a file with -o FILE, or to a pipe")
			}
			server, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			archive, err := server.ExportImage(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer archive.Close()
			if output == "-" {
				_, err = io.Copy(c.Out, archive)
				return err
			}
			return cli.WriteWhole(output, 0o644, archive)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write; - is standard output")
	return cmd
}

func (c commands) imageCollect() *cobra.Command {
	var req api.CollectRequest
	var age cli.TimeFlag
	var limit cli.SizeFlag
	var everything bool
	cmd := c.WithOutput(&cobra.Command{
		Use:   "gc",
		Short: "Remove unused images and layers",
		Long: `Remove images without a name that no sandbox has used for a week (image_gc.age), and unused caches of
builds and registries. Images that have a name or are in use, and snapshots, stay. The server does
the same once a day.`,
		Example: `  harvest image gc --dry-run
  harvest image gc --age 24h --size 20GiB
  harvest image gc --unused --all`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if age > 0 && everything {
				return cli.Usage(cmd, "%s takes either --age or --unused", cmd.CommandPath())
			}
			if seconds := age.Seconds(); seconds > 0 || everything {
				req.AgeSeconds = &seconds
			}
			req.Size = int64(limit)
			server, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			done, err := server.CollectImages(cmd.Context(), req)
			if err != nil {
				return err
			}
			v := cli.View{JSON: done, Header: []string{"ID", "NAMES", "BASE", "SIZE", "BUILT"}}
			for _, i := range done.Images {
				v.Names = append(v.Names, i.ID)
				v.Rows = append(v.Rows, []string{i.ID, cli.Joined(i.Names), shortBase(i.Base), cli.Size(ownSize(i)),
					cli.Ago(i.Built)})
			}
			verb := "freed"
			if req.DryRun {
				verb = "would free"
			}
			c.Notef("%d images; %s %s, %s left", len(done.Images), verb, units.BytesSize(float64(done.Freed)),
				units.BytesSize(float64(done.Left)))
			return c.Show(v)
		},
	}, cli.FormatTable)
	f := cmd.Flags()
	f.Var(&age, "age", "minimum time without use, such as 24h (default: image_gc.age)")
	f.BoolVar(&everything, "unused", false, "remove all unused images, whatever their age")
	f.Var(&limit, "size", "also remove the least recently used images until the total is below this size")
	f.BoolVar(&req.All, "all", false, "also remove named images of registries, which can be fetched again")
	f.BoolVar(&req.DryRun, "dry-run", false, "show the images to remove, and remove nothing")
	return cmd
}
