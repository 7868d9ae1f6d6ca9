// Package images has the commands for images: build, fetch, list, export, remove.
package images

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// ContextOf returns the files of a build context as a tar stream. dockerfile is the path of the Dockerfile, "" if it is
// not a file.
type ContextOf func(ctx context.Context, dir, dockerfile string) (io.ReadCloser, error)

// commands makes the commands of this package.
type commands struct {
	*cli.CLI
	contextOf ContextOf
}

// Command returns the command for images.
func Command(base *cli.CLI, contextOf ContextOf) *cobra.Command {
	c := commands{base, contextOf}
	return cli.Group(&cobra.Command{
		Use:   "image",
		Short: "Manage images, the root file systems of sandboxes",
		Example: `  harvest image build
  harvest image pull debian:12
  harvest image inspect base`,
	}, c.imageBuild(), c.imagePull(), c.imageList(), c.imageInspect(), c.imageRemove(), c.imageExport(),
		c.imageCollect(), c.imageCache())
}

func (c commands) imageList() *cobra.Command {
	return cli.Listing(c.CLI, &cobra.Command{Short: "List images, newest first", Example: "  harvest image ls -o json"},
		[]string{"ID", "NAMES", "KIND", "BASE", "SIZE", "BUILT", "MISSING"},
		func(ctx context.Context, server *client.Client) ([]api.Image, error) { return server.Images(ctx) },
		func(i api.Image) (string, []string) {
			return i.ID, []string{i.ID, cli.Joined(i.Names), kind(i), shortBase(i.Base), cli.Size(ownSize(i)),
				cli.Ago(i.Built), missing(i)}
		})
}

func (c commands) imageInspect() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:     "inspect IMAGE",
		Aliases: []string{"get"},
		Short:   "Show an image: its contents, configuration and history, and the missing parts",
		Example: "  harvest image inspect base -o json",
		Args:    cli.Args(1, 1, "one image"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			found, err := server.Image(ctx, args[0])
			if err != nil {
				return err
			}
			return c.Show(Details(found))
		}),
	}, cli.FormatTable)
}

func (c commands) imageRemove() *cobra.Command {
	return c.Removal(&cobra.Command{
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
	return cli.Joined(names)
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

// Details shows all details of an image.
func Details(i api.Image) cli.View {
	v := cli.View{JSON: i, Names: []string{i.ID}, Rows: [][]string{
		{"id", i.ID}, {"digest", i.Digest}, {"names", cli.Joined(i.Names)}, {"size", cli.Size(i.Size)},
		{"built", cli.Ago(i.Built)}, {"build time", fmt.Sprintf("%.1f s", i.BuildSeconds)},
	}}
	if s := i.Snapshot; s != nil {
		v.Rows = append(v.Rows, []string{"kind", kind(i)}, []string{"adds", cli.Size(s.Size) + " to " + s.Parent})
		if s.Path != "" {
			v.Rows = append(v.Rows, []string{"path", s.Path})
		}
		for _, o := range s.Lineage {
			v.Rows = append(v.Rows, []string{"lineage",
				o.Image + ", sandbox " + o.Sandbox + ", " + o.Time.Format(time.RFC3339)})
		}
	}
	v.Rows = append(v.Rows, configRows(i)...)
	for _, part := range i.Parts {
		v.Rows = append(v.Rows, []string{"has", part.Name + " " + part.Version})
	}
	for _, part := range i.Missing {
		v.Rows = append(v.Rows, []string{"lacks", part.Name + ": " + part.Reason})
	}
	return v
}
