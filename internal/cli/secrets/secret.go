// Package secrets has the command for secrets: set, list, remove.
package secrets

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// commands makes the commands of this package.
type commands struct{ *cli.CLI }

// Command returns the command for secrets.
func Command(base *cli.CLI) *cobra.Command {
	c := commands{base}
	return cli.Group(&cobra.Command{
		Use:   "secret",
		Short: "Manage secrets",
		Long: `A secret is a named set of KEY=VALUE pairs. It is encrypted at rest, and its values are never shown
again. A sandbox that is created with --secret NAME has them in the environment of its commands. Logs
do not contain them.

On your own machine, keys and tokens in the environment of the server are secrets as well:
ANTHROPIC_API_KEY of the secret anthropic, OPENAI_API_KEY of openai, GEMINI_API_KEY of gemini,
GITHUB_TOKEN of github, MODAL_TOKEN_ID and MODAL_TOKEN_SECRET of modal, and so on. harvest secret ls
lists them.

REGISTRY_SERVER, REGISTRY_USERNAME and REGISTRY_PASSWORD of any secret are the credentials of a
registry of images.`,
		Example: `  harvest secret set github GITHUB_TOKEN
  harvest secret set deploy --env-file .env
  harvest run --secret github -- sh -c 'test -n "$GITHUB_TOKEN"'
  harvest secret ls`,
	}, c.secretSet(), c.secretList(), c.secretRemove(), c.secretRekey())
}

func (c commands) secretSet() *cobra.Command {
	var file string
	replace := false
	var bind bindFlags
	cmd := c.WithOutput(&cobra.Command{
		Use:   "set NAME [KEY | KEY=VALUE]…",
		Short: "Store pairs in a secret; create it if it is missing",
		Long: `Store pairs in a secret. KEY alone takes the value of that environment variable. This keeps the value
out of the shell's history and the list of processes, as --env-file does. Other pairs of the secret
stay, unless --replace is given.

With --hosts or --preset, sandboxes have placeholders in place of the values. The server puts the
values into their requests to these hosts. --hosts takes a domain, "*." and a domain, or an address,
each with an optional :port; "http://" in front means a server without TLS. --inject adds the value to
requests without a credential: "bearer", "basic USER", "header NAME" or "query NAME". "sigv4 SERVICE
REGION" signs requests for AWS again that the sandbox signs with placeholders. --allow limits the
requests, such as "GET /repos/**". --body also replaces placeholders in the bodies of requests that
are text. Without pairs, the binding of an existing secret changes.`,
		Example: `  harvest secret set github GITHUB_TOKEN --preset github
  harvest secret set api API_TOKEN --hosts api.example.org --inject bearer --allow 'GET /v1/**'
  harvest secret set aws AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY --preset aws
  harvest secret set github --unbind
  harvest secret set deploy --env-file .env
  printf 'TOKEN=%s\n' "$t" | harvest secret set deploy --env-file -`,
		Args: cli.Args(1, -1, "a name and pairs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			bound, err := bind.binding()
			if err != nil {
				return err
			}
			pairs, err := c.pairs(file, args[1:], bound != nil && !replace)
			if err != nil {
				return err
			}
			server, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			mode := "merge"
			if replace {
				mode = "replace"
			}
			made, err := server.SetSecret(cmd.Context(), api.SecretRequest{Name: args[0], Pairs: pairs, Mode: mode,
				Binding: bound})
			if err != nil {
				return err
			}
			return c.Show(cli.View{JSON: made, Names: []string{made.Name}, Rows: [][]string{{made.Name}}})
		},
	}, cli.FormatName)
	cmd.Flags().StringVar(&file, "env-file", "", "file of KEY=VALUE lines, without expansion; - for standard input")
	cmd.Flags().BoolVar(&replace, "replace", false, "delete all other pairs of the secret")
	bind.add(cmd.Flags())
	return cmd
}

// pairs parses a file and arguments; later values win. There must be a pair, unless none is set. Its errors name keys,
// never values.
func (c commands) pairs(file string, args []string, none bool) (map[string]string, error) {
	pairs := secret.Pairs{}
	if file != "" {
		in := c.In
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return nil, errors.Remedy(errors.Explainf(err, errors.Invalid, "cannot read the file %s", file),
					"give --env-file a readable file")
			}
			defer f.Close()
			in = io.Reader(f)
		}
		var err error
		if pairs, err = secret.ParseEnv(in); err != nil {
			return nil, err
		}
	}
	for _, arg := range args {
		key, value, given := strings.Cut(arg, "=")
		if !given {
			if value, given = c.LookupEnv(key); !given {
				return nil, errors.Remedy(errors.Newf(errors.Invalid,
					"a pair has no '=', and no environment variable has that name"),
					"write KEY=VALUE, or KEY to take it from the environment")
			}
		}
		pairs[key] = value
	}
	if none && len(pairs) == 0 {
		return nil, nil
	}
	return pairs, pairs.Check()
}

func (c commands) secretList() *cobra.Command {
	return cli.Listing(c.CLI, &cobra.Command{
		Short: "List secrets by name, without their values",
		Example: `  harvest secret ls
  harvest secret ls -o json`,
	}, []string{"NAME", "KEYS", "FROM", "HOSTS", "CHANGED", "USED"},
		func(ctx context.Context, server *client.Client) ([]api.Secret, error) { return server.Secrets(ctx) },
		func(s api.Secret) (string, []string) {
			return s.Name, []string{s.Name, cli.Joined(s.Keys), s.Origin, hosts(s.Binding), cli.Ago(s.Updated),
				cli.Ago(s.LastUsed)}
		})
}

func (c commands) secretRemove() *cobra.Command {
	return c.Removal(&cobra.Command{
		Use:     "rm NAME…",
		Short:   "Delete secrets; existing sandboxes keep their values",
		Example: "  harvest secret rm github",
	}, "secrets", func(ctx context.Context, server *client.Client, name string) error {
		return server.DeleteSecret(ctx, name)
	})
}

func (c commands) secretRekey() *cobra.Command {
	return &cobra.Command{
		Use:   "rekey",
		Short: "Replace the key file, and encrypt all secrets with the new key",
		Long: `Create a new key, encrypt the secrets of all accounts with it, and then delete the old key. The command
can be interrupted at any time and run again; all secrets stay readable. Earlier backups need the old
key file.`,
		Example: "  harvest secret rekey",
		Args:    cli.Args(0, 0, "no arguments"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
			done, err := server.Rekey(ctx)
			if err != nil {
				return err
			}
			c.Notef("%d secrets are encrypted with a new key; keep a copy of the key file apart from the database's",
				done.Secrets)
			return nil
		}),
	}
}
