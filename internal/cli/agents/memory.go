package agents

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

func (c commands) memoryCommand() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "memory",
		Short: "Read and edit the memory that agents have of repositories",
		Example: `  harvest memory ls
  harvest memory get owner/repository
  harvest memory set owner/repository "how to test" "make test; it needs Docker"`,
	}, c.memoryList(), c.memoryGet(), c.memorySet(), c.memoryRemove())
}

// memoryName is the server's name of the memory of OWNER/REPOSITORY.
func memoryName(text string) string { return strings.ToLower(strings.ReplaceAll(text, "/", "-")) }

func (c commands) memoryList() *cobra.Command {
	return cli.Listing(c.CLI, &cobra.Command{
		Short:   "List the repositories that have memory entries",
		Example: "  harvest memory ls",
	}, []string{"NAME", "SIZE", "CREATED"},
		func(ctx context.Context, server *client.Client) ([]api.Memory, error) { return server.Memories(ctx) },
		func(m api.Memory) (string, []string) {
			return m.Name, []string{m.Name, cli.Size(m.Size), cli.Ago(m.Created)}
		})
}

func (c commands) memoryGet() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use:   "get REPOSITORY [NAME]",
		Short: "Print the memory of a repository, or one entry",
		Example: `  harvest memory get owner/repository
  harvest memory get owner/repository "how to test" -o json`,
		Args: cli.Args(1, 2, "a repository, and at most one name"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			found, err := server.Memory(ctx, memoryName(args[0]))
			if err != nil {
				return err
			}
			v := cli.View{JSON: found, Header: []string{"NAME", "TYPE", "WHAT"}}
			known := false
			for _, e := range found.Entities {
				if len(args) == 2 && e.Name != args[1] {
					continue
				}
				if len(args) == 2 {
					v.JSON = e
				}
				known = true
				v.Names = append(v.Names, chat.Plain(e.Name))
				for i, text := range e.Observations {
					row := []string{"", "", chat.Plain(text)}
					if i == 0 {
						row = []string{chat.Plain(e.Name), chat.Plain(e.Type), chat.Plain(text)}
					}
					v.Rows = append(v.Rows, row)
				}
			}
			if len(args) == 2 && !known {
				return errors.Remedy(errors.Newf(errors.NotFound, "memory entry %q: not found", args[1]),
					"harvest memory get %s", args[0])
			}
			return c.Show(v)
		}),
	}, cli.FormatTable)
}

func (c commands) memorySet() *cobra.Command {
	var req api.EntityRequest
	cmd := &cobra.Command{
		Use:     "set REPOSITORY NAME SENTENCE…",
		Short:   "Store a memory entry; an earlier one of that name is replaced",
		Example: `  harvest memory set owner/repository "how to test" "make test" "it needs Docker"`,
		Args:    cli.Args(3, -1, "a repository, a name and sentences"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			req.Observations = args[2:]
			return server.Remember(ctx, memoryName(args[0]), args[1], req)
		}),
	}
	cmd.Flags().StringVar(&req.Type, "type", "note", "kind of the entry")
	return cmd
}

func (c commands) memoryRemove() *cobra.Command {
	var everything bool
	cmd := &cobra.Command{
		Use:   "rm REPOSITORY [NAME]",
		Short: "Delete a memory entry, or all entries of a repository with --all",
		Example: `  harvest memory rm owner/repository "how to test"
  harvest memory rm owner/repository --all`,
		Args: cli.Args(1, 2, "a repository, and a name or --all"),
	}
	cmd.Flags().BoolVar(&everything, "all", false, "delete all entries of the repository")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if everything == (len(args) == 2) {
			return cli.Usage(cmd, "give a name or --all")
		}
		return c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			name := strings.Join(args[1:], "")
			if err := server.Forget(ctx, memoryName(args[0]), name); err != nil {
				return err
			}
			if !c.Quiet {
				fmt.Fprintf(c.Err, "forgotten\n")
			}
			return nil
		})(cmd, args)
	}
	return cmd
}
