package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
)

func (c *cli) imageCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "image",
		Short: "Work with images, the root file systems of sandboxes",
		Example: `  harvest image build
  harvest image inspect base`,
	}, c.imageBuild(), c.imageList(), c.imageInspect(), c.imageRemove())
}

func (c *cli) imageBuild() *cobra.Command {
	req := api.BuildRequest{}
	cmd := c.withOutput(&cobra.Command{
		Use:   "build [BASE]",
		Short: "Build an image if it is missing, and print its id",
		Long: `Builds an image, by default base, which is what sandboxes have if they ask for no other. An image that exists already is not
built again, unless --force.`,
		Example: `  harvest image build
  harvest image build --force base -o json`,
		Args: count(0, 1, "at most one base"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Base = "base"
			if len(args) == 1 {
				req.Base = args[0]
			}
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			building := c.building()
			built, err := server.BuildImage(cmd.Context(), req, building.update)
			building.done()
			if err != nil {
				return err
			}
			for _, part := range built.Missing {
				c.notef("missing in the image: %s, because %s", part.Name, part.Reason)
			}
			return c.show(oneImage(built))
		},
	}, formatName)
	cmd.Flags().BoolVar(&req.Force, "force", false, "build it even if it exists")
	return cmd
}

func (c *cli) imageList() *cobra.Command {
	return c.withOutput(&cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List images, newest first",
		Example: "  harvest image ls -o json",
		Args:    count(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			found, err := server.Images(cmd.Context())
			if err != nil {
				return err
			}
			v := view{json: found, header: []string{"ID", "NAMES", "KIND", "SIZE", "BUILT", "BUILD TIME"}}
			for _, i := range found {
				v.names = append(v.names, i.ID)
				v.rows = append(v.rows, []string{i.ID, joined(i.Names), kind(i), size(ownSize(i)), ago(i.Built), fmt.Sprintf("%.1f s", i.BuildSeconds)})
			}
			return c.show(v)
		},
	}, formatTable)
}

func (c *cli) imageInspect() *cobra.Command {
	return c.withOutput(&cobra.Command{
		Use:     "inspect IMAGE",
		Aliases: []string{"get"},
		Short:   "Show what is in an image, and what is missing",
		Example: "  harvest image inspect base -o json",
		Args:    count(1, 1, "one image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			found, err := server.Image(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return c.show(oneImage(found))
		},
	}, formatTable)
}

func (c *cli) imageRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "rm IMAGE…",
		Aliases: []string{"remove"},
		Short:   "Delete images that no sandbox uses",
		Example: "  harvest image rm base",
		Args:    count(1, -1, "images"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			return removeEach(args, func(ref string) error { return server.DeleteImage(cmd.Context(), ref) })
		},
	}
}

// kind says where an image came from.
func kind(i api.Image) string {
	if i.Snapshot != nil {
		return i.Kind + " of " + i.Snapshot.Parent
	}
	return i.Kind
}

// ownSize is what an image takes that it does not share with another one.
func ownSize(i api.Image) int64 {
	if i.Snapshot != nil {
		return i.Snapshot.Size
	}
	return i.Size
}

// oneImage shows everything about an image.
func oneImage(i api.Image) view {
	v := view{json: i, names: []string{i.ID}, rows: [][]string{
		{"id", i.ID}, {"digest", i.Digest}, {"names", joined(i.Names)}, {"size", size(i.Size)}, {"built", ago(i.Built)},
		{"build time", fmt.Sprintf("%.1f s", i.BuildSeconds)},
	}}
	if s := i.Snapshot; s != nil {
		v.rows = append(v.rows, []string{"kind", kind(i)}, []string{"adds", size(s.Size) + " to " + s.Parent})
		if s.Path != "" {
			v.rows = append(v.rows, []string{"path", s.Path})
		}
		for _, o := range s.Lineage {
			v.rows = append(v.rows, []string{"lineage", o.Image + ", sandbox " + o.Sandbox + ", " + o.Time.Format(time.RFC3339)})
		}
	}
	for _, part := range i.Parts {
		v.rows = append(v.rows, []string{"has", part.Name + " " + part.Version})
	}
	for _, part := range i.Missing {
		v.rows = append(v.rows, []string{"lacks", part.Name + ": " + part.Reason})
	}
	return v
}
