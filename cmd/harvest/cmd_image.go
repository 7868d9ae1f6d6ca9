package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
)

func (c *cli) imageCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "image",
		Short: "Manage images, the root file systems of sandboxes",
		Example: `  harvest image build
  harvest image pull debian:12
  harvest image inspect base`,
	}, c.imageBuild(), c.imagePull(), c.imageList(), c.imageInspect(), c.imageRemove(), c.imageExport(),
		c.imageCollect(), c.imageCache())
}

func (c *cli) imageList() *cobra.Command {
	return listing(c, &cobra.Command{Short: "List images, newest first", Example: "  harvest image ls -o json"},
		[]string{"ID", "NAMES", "KIND", "BASE", "SIZE", "BUILT", "MISSING"},
		func(ctx context.Context, server *client.Client) ([]api.Image, error) { return server.Images(ctx) },
		func(i api.Image) (string, []string) {
			return i.ID, []string{i.ID, joined(i.Names), kind(i), shortBase(i.Base), size(ownSize(i)),
				ago(i.Built), missing(i)}
		})
}

func (c *cli) imageInspect() *cobra.Command {
	return c.withOutput(&cobra.Command{
		Use:     "inspect IMAGE",
		Aliases: []string{"get"},
		Short:   "Show an image: its contents, configuration and history, and the missing parts",
		Example: "  harvest image inspect base -o json",
		Args:    count(1, 1, "one image"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			found, err := server.Image(ctx, args[0])
			if err != nil {
				return err
			}
			return c.show(oneImage(found))
		}),
	}, formatTable)
}

func (c *cli) imageRemove() *cobra.Command {
	return c.removal(&cobra.Command{
		Use:   "rm IMAGE…",
		Short: "Delete images that no sandbox uses",
		Long: "Delete images that no sandbox uses.\n\n" +
			"If IMAGE is one of several names of an image, only that name is removed.",
		Example: "  harvest image rm base",
	}, "images", func(ctx context.Context, server *client.Client, ref string) error {
		return server.DeleteImage(ctx, ref)
	})
}

// shortBase shortens the digest of an image's base to the part that people compare.
func shortBase(base string) string {
	name, digest, ok := strings.Cut(base, "@sha256:")
	if !ok || len(digest) < 12 {
		return base
	}
	return name + "@" + digest[:12]
}

// missing names the missing parts of an image.
func missing(i api.Image) string {
	var names []string
	for _, part := range i.Missing {
		names = append(names, part.Name)
	}
	return joined(names)
}

// kind describes the origin of an image.
func kind(i api.Image) string {
	if i.Snapshot != nil {
		return i.Kind + " of " + i.Snapshot.Parent
	}
	return i.Kind
}

// ownSize is the size of an image without the files shared with others.
func ownSize(i api.Image) int64 {
	if i.Snapshot != nil {
		return i.Snapshot.Size
	}
	return i.Size
}

// configRows shows the configuration of an image.
func configRows(i api.Image) [][]string {
	var rows [][]string
	add := func(name string, values ...string) {
		for _, value := range values {
			if value != "" {
				rows = append(rows, []string{name, value})
			}
		}
	}
	add("platform", i.Platform)
	add("user", i.User)
	add("workdir", i.Workdir)
	add("entrypoint", words(i.Entrypoint))
	add("command", words(i.Command))
	for _, name := range slices.Sorted(maps.Keys(i.Env)) {
		add("env", name+"="+i.Env[name])
	}
	for _, name := range slices.Sorted(maps.Keys(i.Labels)) {
		add("label", name+"="+i.Labels[name])
	}
	add("ports", strings.Join(i.Ports, " "))
	add("volumes", strings.Join(i.Volumes, " "))
	add("stop signal", i.StopSignal)
	if h := i.HealthCheck; h != nil {
		add("health check", words(h.Test))
	}
	add("on build", i.OnBuild...)
	for _, h := range i.History {
		add("history", h.CreatedBy)
	}
	return rows
}

// words shows the arguments of a command so that their borders can be seen.
func words(args []string) string {
	if len(args) == 0 {
		return ""
	}
	text, err := json.Marshal(args)
	if err != nil {
		return strings.Join(args, " ")
	}
	return string(text)
}

// oneImage shows all details of an image.
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
			v.rows = append(v.rows, []string{"lineage",
				o.Image + ", sandbox " + o.Sandbox + ", " + o.Time.Format(time.RFC3339)})
		}
	}
	v.rows = append(v.rows, configRows(i)...)
	for _, part := range i.Parts {
		v.rows = append(v.rows, []string{"has", part.Name + " " + part.Version})
	}
	for _, part := range i.Missing {
		v.rows = append(v.rows, []string{"lacks", part.Name + ": " + part.Reason})
	}
	return v
}
