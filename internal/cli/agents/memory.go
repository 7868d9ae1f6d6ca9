package agents

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
	"github.com/RelevanceAI/harvest/internal/cli/worktree"
	"github.com/RelevanceAI/harvest/internal/session/memory/names"
)

func (c commands) memoryCommand() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "memory",
		Short: "Read and edit the memory that agents have of repositories",
		Example: `  harvest memory ls
  harvest memory get owner/repository
  harvest memory get .
  harvest memory set owner/repository "how to test" "make test; it needs Docker"`,
		Long: `Read and edit the memory that agents have of repositories.

REPOSITORY is OWNER/NAME or a name in the list, or a directory that begins with "." or "/": the
repository there.`,
	}, c.memoryList(), c.memoryGet(), c.memorySet(), c.memoryRemove(), c.memoryMove())
}

// memoryName is the server's name of the memory of OWNER/REPOSITORY, or of the repository in a directory.
func memoryName(ctx context.Context, text string) (string, error) {
	if strings.HasPrefix(text, ".") || filepath.IsAbs(text) {
		return worktree.Memory(ctx, text)
	}
	return strings.ToLower(strings.ReplaceAll(text, "/", "-")), nil
}

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
			name, err := memoryName(ctx, args[0])
			if err != nil {
				return err
			}
			found, err := server.Memory(ctx, name)
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
			name, err := memoryName(ctx, args[0])
			if err != nil {
				return err
			}
			req.Observations = args[2:]
			return server.Remember(ctx, name, args[1], req)
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
			name, err := memoryName(ctx, args[0])
			if err != nil {
				return err
			}
			if err := server.Forget(ctx, name, strings.Join(args[1:], "")); err != nil {
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

func (c commands) memoryMove() *cobra.Command {
	return &cobra.Command{
		Use:   "mv REPOSITORY REPOSITORY",
		Short: "Add the memory of a repository to that of another one, and delete the first",
		Example: `  harvest memory mv local-project .
  harvest memory mv owner/old-name owner/new-name`,
		Args: cli.Args(2, 2, "two repositories"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			from, err := memoryName(ctx, args[0])
			if err != nil {
				return err
			}
			to, err := memoryName(ctx, args[1])
			if err != nil {
				return err
			}
			if err := server.MoveMemory(ctx, from, to); err != nil {
				return err
			}
			if !c.Quiet {
				fmt.Fprintf(c.Err, "moved to %s\n", to)
			}
			return nil
		}),
	}
}

// adoptMemory offers the memory that all repositories of this directory name shared in earlier versions to the first
// session of a repository without an address. On a terminal it asks, elsewhere it prints the command.
func (c commands) adoptMemory(ctx context.Context, server *client.Client, req api.SessionRequest) {
	if req.Repo != "" || req.Identity == "" {
		return
	}
	name := cmp.Or(req.Name, "work")
	shared, own := names.Local(name, ""), names.Local(name, req.Identity)
	all, err := server.Memories(ctx)
	has := func(name string) bool {
		return slices.ContainsFunc(all, func(m api.Memory) bool { return m.Name == name })
	}
	if err != nil || !has(shared) || has(own) {
		return // at worst, the agent begins without old notes
	}
	_, in := cli.Terminal(c.In)
	_, out := cli.Terminal(c.Err)
	if in && out {
		fmt.Fprintf(c.Err, "Earlier versions kept one memory for all repositories in directories named %s.\n"+
			"Use it for this one? [y/N] ", name)
		answer := bufio.NewScanner(c.In)
		if answer.Scan() && strings.EqualFold(strings.TrimSpace(answer.Text()), "y") {
			if err := server.MoveMemory(ctx, shared, own); err != nil {
				c.Hint("the memory was not moved: %s", errors.Message(err))
			}
			return
		}
	}
	c.Hint("the memory %s was shared by all repositories of that name; to use it here: harvest memory mv %s %s",
		shared, shared, own)
}
