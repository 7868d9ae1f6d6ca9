package images

import (
	"context"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

func (c commands) imageCache() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "cache",
		Short: "List and remove cached results of builds",
		Example: `  harvest image cache ls
  harvest image cache rm 3f2a9c01b7de
  harvest image cache rm --all`,
	}, c.imageCacheList(), c.imageCacheRemove())
}

// shortID is the length of a shortened id.
const shortID = 12

func (c commands) imageCacheList() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List cached layers and cache mounts, last used first",
		Example: "  harvest image cache ls -o json",
		Args:    cli.Args(0, 0, "no arguments"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
			all, err := server.BuildCache(ctx)
			if err != nil {
				return err
			}
			v := cli.View{JSON: all, Header: []string{"ID", "KIND", "SIZE", "USED", "OF"}}
			total := int64(0)
			for _, k := range all {
				total += k.Size
				v.Names = append(v.Names, k.ID)
				v.Rows = append(v.Rows, []string{k.ID[:min(shortID, len(k.ID))], k.Kind, cli.Size(k.Size),
					cli.Ago(k.Used), chat.FirstLine(k.Text)})
			}
			c.Notef("%d layers and cache mounts, %s", len(all), units.BytesSize(float64(total)))
			return c.Show(v)
		}),
	}, cli.FormatTable)
}

func (c commands) imageCacheRemove() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "rm ID…",
		Aliases: []string{"remove"},
		Short:   "Remove cached layers and cache mounts that no build uses",
		Example: "  harvest image cache rm --all",
		Args:    cli.Args(0, -1, "ids"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return cli.Usage(cmd, "%s takes ids, or --all", cmd.CommandPath())
			}
			server, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			if all {
				kept, err := server.BuildCache(cmd.Context())
				if err != nil {
					return err
				}
				args = ids(kept)
			}
			return cli.Each(args, "removed", func(id string) error { return server.ForgetBuild(cmd.Context(), id) })
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove all of them")
	return cmd
}

func ids(kept []api.Cached) []string {
	all := make([]string, len(kept))
	for i, k := range kept {
		all[i] = k.ID
	}
	return all
}
