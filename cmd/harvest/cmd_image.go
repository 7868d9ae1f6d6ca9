package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
)

func (c *cli) imageCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "image",
		Short: "Work with images, the root file systems of sandboxes",
		Example: `  harvest image build
  harvest image pull debian:12
  harvest image inspect base`,
	}, c.imageBuild(), c.imagePull(), c.imageList(), c.imageInspect(), c.imageRemove(), c.imageExport(), c.imageCollect())
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
			v := view{json: found, header: []string{"ID", "NAMES", "KIND", "BASE", "SIZE", "BUILT", "MISSING"}}
			for _, i := range found {
				v.names = append(v.names, i.ID)
				v.rows = append(v.rows, []string{i.ID, joined(i.Names), kind(i), shortBase(i.Base), size(ownSize(i)), ago(i.Built), missing(i)})
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

// shortBase is an image's base with no more of a digest than people compare.
func shortBase(base string) string {
	name, digest, ok := strings.Cut(base, "@sha256:")
	if !ok || len(digest) < 12 {
		return base
	}
	return name + "@" + digest[:12]
}

// missing names what should be in an image and is not.
func missing(i api.Image) string {
	var names []string
	for _, part := range i.Missing {
		names = append(names, part.Name)
	}
	return joined(names)
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
