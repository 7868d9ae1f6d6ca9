package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/errors"
)

// WithServer returns a RunE that connects to the server first.
func (c *CLI) WithServer(run func(ctx context.Context, server *client.Client, args []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		c.Runs(cmd)
		server, err := c.Connect(cmd.Context())
		if err != nil {
			return err
		}
		defer server.Close()
		return run(cmd.Context(), server, args)
	}
}

// Runs records the running command, without its subcommand, and returns its context.
func (c *CLI) Runs(cmd *cobra.Command) context.Context {
	ctx := cmd.Context()
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	c.command = cmd.Name()
	return ctx
}

// Listing completes cmd to list the results of find, as rows below header. cmd needs only Short and Example.
// row returns the text for -o name and the cells.
func Listing[T any](c *CLI, cmd *cobra.Command, header []string,
	find func(ctx context.Context, server *client.Client) ([]T, error),
	row func(T) (name string, cells []string)) *cobra.Command {
	if cmd.Use == "" {
		cmd.Use, cmd.Aliases = "ls", []string{"list"}
	}
	cmd.Args = Args(0, 0, "no arguments")
	cmd.RunE = c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
		found, err := find(ctx, server)
		if err != nil {
			return err
		}
		return c.Show(Table(found, header, row))
	})
	return c.WithOutput(cmd, FormatTable)
}

// Table is a view of items of one type.
func Table[T any](found []T, header []string, row func(T) (name string, cells []string)) View {
	v := View{JSON: found, Header: header}
	for _, one := range found {
		name, cells := row(one)
		v.Names, v.Rows = append(v.Names, name), append(v.Rows, cells)
	}
	return v
}

// Removal completes cmd to remove each of its arguments. cmd needs only Use, Short and Example. what names the
// arguments.
func (c *CLI) Removal(cmd *cobra.Command, what string, remove func(ctx context.Context, server *client.Client,
	ref string) error) *cobra.Command {
	cmd.Aliases = []string{"remove"}
	cmd.Args = Args(1, -1, what)
	cmd.RunE = c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
		return Each(args, "removed", func(ref string) error { return remove(ctx, server, ref) })
	})
	return cmd
}

// RemovalOrAll is Removal with a flag --all, described by allText, that removes the results of all.
func (c *CLI) RemovalOrAll(cmd *cobra.Command, what, allText string,
	all func(ctx context.Context, server *client.Client) ([]string, error),
	remove func(ctx context.Context, server *client.Client, ref string) error) *cobra.Command {
	cmd = c.Removal(cmd, what, remove)
	everything := cmd.Flags().Bool("all", false, allText)
	named := cmd.RunE
	cmd.Args = nil
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *everything == (len(args) > 0) {
			return Usage(cmd, "name %s, or give --all", what)
		}
		if !*everything {
			return named(cmd, args)
		}
		return c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
			refs, err := all(ctx, server)
			if err != nil {
				return err
			}
			return Each(refs, "removed", func(ref string) error { return remove(ctx, server, ref) })
		})(cmd, args)
	}
	return cmd
}

// Each calls do for every ref, even if one fails. It returns the first failure. If several fail,
// its text has their number, and says that they could not be done: "removed", for example.
func Each(refs []string, done string, do func(ref string) error) error {
	var first error
	failed := 0
	for _, ref := range refs {
		if err := do(ref); err != nil {
			failed++
			if first == nil {
				first = err
			}
		}
	}
	if failed > 1 {
		return errors.Explainf(first, errors.KindOf(first), "%d of %d could not be %s; the first: %s", failed,
			len(refs), done, errors.Message(first))
	}
	return first
}
