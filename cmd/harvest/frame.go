package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
)

// withServer returns a RunE that connects to the server first.
func (c *cli) withServer(run func(ctx context.Context, server *client.Client, args []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		c.runs(cmd)
		server, err := c.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer server.Close()
		return run(cmd.Context(), server, args)
	}
}

// runs records the running command, without its subcommand, and returns its context.
func (c *cli) runs(cmd *cobra.Command) context.Context {
	ctx := cmd.Context()
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	c.command = cmd.Name()
	return ctx
}

// listing completes cmd to list the results of find, as rows below header. cmd needs only Short and Example.
// row returns the text for -o name and the cells.
func listing[T any](c *cli, cmd *cobra.Command, header []string,
	find func(ctx context.Context, server *client.Client) ([]T, error),
	row func(T) (name string, cells []string)) *cobra.Command {
	if cmd.Use == "" {
		cmd.Use, cmd.Aliases = "ls", []string{"list"}
	}
	cmd.Args = count(0, 0, "no arguments")
	cmd.RunE = c.withServer(func(ctx context.Context, server *client.Client, _ []string) error {
		found, err := find(ctx, server)
		if err != nil {
			return err
		}
		return c.show(table(found, header, row))
	})
	return c.withOutput(cmd, formatTable)
}

// table is a view of items of one type.
func table[T any](found []T, header []string, row func(T) (name string, cells []string)) view {
	v := view{json: found, header: header}
	for _, one := range found {
		name, cells := row(one)
		v.names, v.rows = append(v.names, name), append(v.rows, cells)
	}
	return v
}

// removal completes cmd to remove each of its arguments. cmd needs only Use, Short and Example. what names the
// arguments.
func (c *cli) removal(cmd *cobra.Command, what string, remove func(ctx context.Context, server *client.Client,
	ref string) error) *cobra.Command {
	cmd.Aliases = []string{"remove"}
	cmd.Args = count(1, -1, what)
	cmd.RunE = c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
		return removeEach(args, func(ref string) error { return remove(ctx, server, ref) })
	})
	return cmd
}

// removalOrAll is removal with a flag --all, described by allText, that removes the results of all.
func (c *cli) removalOrAll(cmd *cobra.Command, what, allText string,
	all func(ctx context.Context, server *client.Client) ([]string, error),
	remove func(ctx context.Context, server *client.Client, ref string) error) *cobra.Command {
	cmd = c.removal(cmd, what, remove)
	everything := cmd.Flags().Bool("all", false, allText)
	named := cmd.RunE
	cmd.Args = nil
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *everything == (len(args) > 0) {
			return usage(cmd, "name %s, or give --all", what)
		}
		if !*everything {
			return named(cmd, args)
		}
		return c.withServer(func(ctx context.Context, server *client.Client, _ []string) error {
			refs, err := all(ctx, server)
			if err != nil {
				return err
			}
			return removeEach(refs, func(ref string) error { return remove(ctx, server, ref) })
		})(cmd, args)
	}
	return cmd
}
