package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) keyCommand() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "key",
		Short: "Manage API keys, keys of SSH, and clients of MCP",
		Long: `API keys let programs and other machines use a server over TCP. Set HARVEST_URL and HARVEST_API_KEY
there. On the server's own machine, the owner of the data directory needs no key.

A key of SSH is a public key. It lets its owner connect to sandboxes with any client of SSH, if the
server listens for them (server.ssh_listen).

A key of the kind oauth is a client of MCP that a user has allowed to use the server's address /mcp.
Revoking it signs the client out.`,
		Example: `  export HARVEST_API_KEY=$(harvest key create laptop --quiet)
  harvest key create ci --scope read --scope exec --expires 720h
  harvest key add-ssh ~/.ssh/id_ed25519.pub
  harvest key ls
  harvest key rm ci`,
	}, c.keyCreate(), c.keyAddSSH(), c.keyList(), c.keyRemove(), c.keyLink())
}

func (c commands) keyCreate() *cobra.Command {
	var req api.KeyRequest
	var expires cli.TimeFlag
	cmd := c.WithOutput(&cobra.Command{
		Use:   "create NAME",
		Short: "Create a key and print it once",
		Long: `Create a key and print it. The server stores only a hash, so the key cannot be shown again. With
--quiet, only the key is printed.

Every object belongs to an account, and is invisible to other accounts. The role admin may create and
revoke keys of its account. Admins of the account "personal" operate the server, and may create keys
of other accounts with --account.`,
		Example: `  harvest key create laptop --role admin
  harvest key create ci --quiet --scope exec --expires 720h
  harvest key create first --account acme --role admin`,
		Args: cli.Args(1, 1, "one name"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			req.Name, req.ExpiresIn = args[0], expires.Seconds()
			made, err := server.CreateKey(ctx, req)
			if err != nil {
				return err
			}
			if c.Format == cli.FormatTable {
				fmt.Fprintln(c.Out, made.Secret)
				c.Notef("the key %s is shown only this time", made.ID)
				return nil
			}
			return c.Show(cli.View{JSON: made, Names: []string{made.ID}})
		}),
	}, cli.FormatTable)
	flags := cmd.Flags()
	flags.StringVar(&req.Role, "role", "member", "member or admin")
	rightsFlags(flags, &req, &expires)
	return cmd
}

// rightsFlags adds the flags that limit the rights of a new key.
func rightsFlags(flags *pflag.FlagSet, req *api.KeyRequest, expires *cli.TimeFlag) {
	flags.StringArrayVar(&req.Scopes, "scope", nil, "scope: read, write or exec, repeatable (default: all of yours)")
	flags.Var(expires, "expires", "lifetime, such as 720h (default: no expiry)")
	flags.StringVar(&req.Account, "account", "", "account of the key (default: your own)")
}

func (c commands) keyAddSSH() *cobra.Command {
	var req api.KeyRequest
	var expires cli.TimeFlag
	cmd := c.WithOutput(&cobra.Command{
		Use:   "add-ssh FILE",
		Short: "Add a public key of SSH",
		Long: `Add a public key, so that its owner can connect to sandboxes with ssh, without harvest: the name of the
user is that of a sandbox or a session. FILE is such as ~/.ssh/id_ed25519.pub; - is standard input.
"harvest ssh" needs no such key.`,
		Example: `  harvest key add-ssh ~/.ssh/id_ed25519.pub
  ssh -p 7722 dev@harvest.example.org`,
		Args: cli.Args(1, 1, "one file"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			text, err := readPublicKey(args[0], c.In)
			if err != nil {
				return err
			}
			req.PublicKey, req.ExpiresIn = text, expires.Seconds()
			made, err := server.CreateKey(ctx, req)
			if err != nil {
				return err
			}
			if c.Format == cli.FormatTable {
				fmt.Fprintln(c.Out, made.ID)
				return nil
			}
			return c.Show(cli.View{JSON: made.Key, Names: []string{made.ID}})
		}),
	}, cli.FormatTable)
	flags := cmd.Flags()
	flags.StringVar(&req.Name, "name", "", "name of the key (default: its comment)")
	rightsFlags(flags, &req, &expires)
	return cmd
}

// publicKeySize limits a public key, in bytes. One of RSA with 16,384 bits has less than 3 KiB.
const publicKeySize = 16 << 10

// readPublicKey reads a file, or stdin if the name is "-". It refuses private keys, which must not be sent.
func readPublicKey(name string, stdin io.Reader) (string, error) {
	from := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", errors.Explainf(err, errors.NotFound, "cannot read %s", name)
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, publicKeySize+1))
	if err != nil {
		return "", errors.Explainf(err, errors.Invalid, "cannot read %s", name)
	}
	if len(text) > publicKeySize || strings.Contains(string(text), "PRIVATE KEY") {
		return "", errors.Remedy(errors.Newf(errors.Invalid, "%s is not a public key", name),
			"name the file whose name ends with .pub")
	}
	return string(text), nil
}

func (c commands) keyList() *cobra.Command {
	everyone := false
	cmd := cli.Listing(c.CLI, &cobra.Command{
		Short: "List keys, newest first",
		Example: `  harvest key ls
  harvest key ls --all -o json`,
	}, []string{"ID", "KIND", "NAME", "ACCOUNT", "ROLE", "SCOPES", "USER", "CREATED", "EXPIRES", "USED"},
		func(ctx context.Context, server *client.Client) ([]api.Key, error) { return server.Keys(ctx, everyone) },
		func(k api.Key) (string, []string) {
			return k.Name, []string{k.ID, k.Kind, k.Name, k.Account, k.Role, cli.Joined(k.Scopes), k.User,
				cli.Ago(k.Created), cli.Until(k.Expires), cli.Ago(k.LastUsed)}
		})
	cmd.Flags().BoolVar(&everyone, "all", false, "list the keys of all accounts")
	return cmd
}

func (c commands) keyRemove() *cobra.Command {
	return c.Removal(&cobra.Command{
		Use:     "rm KEY…",
		Short:   "Revoke keys, by id or name",
		Example: "  harvest key rm ci",
	}, "keys", func(ctx context.Context, server *client.Client, ref string) error { return server.RevokeKey(ctx, ref) })
}

func (c commands) keyLink() *cobra.Command {
	return &cobra.Command{
		Use:     "link",
		Short:   "Print a single-use sign-in link for a browser, valid for 15 minutes",
		Example: "  harvest key link",
		Args:    cli.Args(0, 0, "no arguments"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
			link, err := server.SignInLink(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.Out, link)
			return nil
		}),
	}
}
