package main

import (
	"io"
	"os"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

func (c *cli) imageExport() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "export IMAGE -o FILE",
		Short: "Write an image as an OCI archive, for docker load or podman load",
		Example: `  harvest image export team/app:1 -o app.tar
  harvest image export base -o - | podman load`,
		Args: count(1, 1, "one image"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if output == "" {
				return usage(cmd, "%s needs --output", cmd.CommandPath())
			}
			if _, tty := terminal(c.out); output == "-" && tty {
				return errors.Remedy(errors.Newf(errors.Invalid, "cannot write an archive to a terminal"),
					"write to a file with -o FILE, or to a pipe")
			}
			server, err := c.connect(cmd.Context())
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
				_, err = io.Copy(c.out, archive)
				return err
			}
			return writeWhole(output, 0o644, archive)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write; - is standard output")
	return cmd
}

// writeWhole writes a file atomically: it appears only when it is complete.
func writeWhole(name string, mode os.FileMode, from io.Reader) (err error) {
	temp := name + ".part"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return errors.Remedy(tarfs.Explain(err, name), "choose a writable file")
	}
	_, copying := io.Copy(f, from)
	if err := errors.Join(copying, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return tarfs.Explain(os.Rename(temp, name), name)
}

func (c *cli) imageCollect() *cobra.Command {
	var req api.CollectRequest
	var age timeFlag
	var limit sizeFlag
	var everything bool
	cmd := c.withOutput(&cobra.Command{
		Use:   "gc",
		Short: "Remove unused images and layers",
		Long: `Remove images without a name that no sandbox has used for a week (image_gc.age), and unused caches of
builds and registries. Images that have a name or are in use, and snapshots, stay. The server does
the same once a day.`,
		Example: `  harvest image gc --dry-run
  harvest image gc --age 24h --size 20GiB
  harvest image gc --unused --all`,
		Args: count(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if age > 0 && everything {
				return usage(cmd, "%s takes either --age or --unused", cmd.CommandPath())
			}
			if seconds := age.seconds(); seconds > 0 || everything {
				req.AgeSeconds = &seconds
			}
			req.Size = int64(limit)
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			done, err := server.CollectImages(cmd.Context(), req)
			if err != nil {
				return err
			}
			v := view{json: done, header: []string{"ID", "NAMES", "BASE", "SIZE", "BUILT"}}
			for _, i := range done.Images {
				v.names = append(v.names, i.ID)
				v.rows = append(v.rows, []string{i.ID, joined(i.Names), shortBase(i.Base), size(ownSize(i)),
					ago(i.Built)})
			}
			verb := "freed"
			if req.DryRun {
				verb = "would free"
			}
			c.notef("%d images; %s %s, %s left", len(done.Images), verb, units.BytesSize(float64(done.Freed)),
				units.BytesSize(float64(done.Left)))
			return c.show(v)
		},
	}, formatTable)
	f := cmd.Flags()
	f.Var(&age, "age", "minimum time without use, such as 24h (default: image_gc.age)")
	f.BoolVar(&everything, "unused", false, "remove all unused images, whatever their age")
	f.Var(&limit, "size", "also remove the least recently used images until the total is below this size")
	f.BoolVar(&req.All, "all", false, "also remove named images of registries, which can be fetched again")
	f.BoolVar(&req.DryRun, "dry-run", false, "only show what would be removed")
	return cmd
}
