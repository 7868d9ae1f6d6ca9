package main

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/secret"
)

func (c *cli) secretCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "secret",
		Short: "Work with secrets, which sandboxes get as environment by name",
		Long: `A secret is a named set of KEY=VALUE pairs. It is sealed at rest, and its values are never shown again: commands of sandboxes that were
created with --secret NAME have them in their environment, and logs have them hidden.

On a machine of your own, keys and tokens in the environment of the server are secrets without further ado: ANTHROPIC_API_KEY of the secret
anthropic, GITHUB_TOKEN of github, MODAL_TOKEN_ID and MODAL_TOKEN_SECRET of modal, and so on; harvest secret ls lists them. Registries of
images are signed in to with REGISTRY_SERVER, REGISTRY_USERNAME and REGISTRY_PASSWORD of any secret.`,
		Example: `  harvest secret set github GITHUB_TOKEN
  harvest secret set deploy --env-file .env
  harvest run --secret github -- sh -c 'test -n "$GITHUB_TOKEN"'
  harvest secret ls`,
	}, c.secretSet(), c.secretList(), c.secretRemove(), c.secretRekey())
}

func (c *cli) secretSet() *cobra.Command {
	var file string
	replace := false
	cmd := c.withOutput(&cobra.Command{
		Use:   "set NAME [KEY | KEY=VALUE]…",
		Short: "Store pairs in a secret, which is made if it is missing",
		Long: `Stores pairs in a secret. KEY alone takes the value of that environment variable, which, as --env-file does, keeps it out of the shell's
history and the list of processes. Pairs that the secret has already and that are not named stay, unless --replace.`,
		Example: `  harvest secret set github GITHUB_TOKEN
  harvest secret set deploy --env-file .env
  printf 'TOKEN=%s\n' "$t" | harvest secret set deploy --env-file -`,
		Args: count(1, -1, "a name and pairs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pairs, err := c.pairs(file, args[1:])
			if err != nil {
				return err
			}
			server, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			mode := "merge"
			if replace {
				mode = "replace"
			}
			made, err := server.SetSecret(cmd.Context(), api.SecretRequest{Name: args[0], Pairs: pairs, Mode: mode})
			if err != nil {
				return err
			}
			return c.show(view{json: made, names: []string{made.Name}, rows: [][]string{{made.Name}}})
		},
	}, formatName)
	cmd.Flags().StringVar(&file, "env-file", "", "file of KEY=VALUE lines, - for standard input; nothing in it is expanded")
	cmd.Flags().BoolVar(&replace, "replace", false, "forget pairs that are not named")
	return cmd
}

// pairs parses a file and arguments; later values win. Its errors name keys, never values.
func (c *cli) pairs(file string, args []string) (map[string]string, error) {
	pairs := secret.Pairs{}
	if file != "" {
		in := c.in
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return nil, errors.Remedy(errors.Explainf(err, errors.Invalid, "the file %s cannot be read", file), "give --env-file a file that you can read")
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
			if value, given = c.lookupEnv(key); !given {
				return nil, errors.Remedy(errors.Newf(errors.Invalid, "one of the pairs has no '=', and there is no environment variable of that name"),
					"write KEY=VALUE, or KEY to take it from the environment")
			}
		}
		pairs[key] = value
	}
	return pairs, pairs.Check()
}

func (c *cli) secretList() *cobra.Command {
	return listing(c, &cobra.Command{
		Short: "List secrets by name, without their values",
		Example: `  harvest secret ls
  harvest secret ls -o json`,
	}, []string{"NAME", "KEYS", "FROM", "CHANGED", "USED"},
		func(ctx context.Context, server *client.Client) ([]api.Secret, error) { return server.Secrets(ctx) },
		func(s api.Secret) (string, []string) {
			return s.Name, []string{s.Name, joined(s.Keys), s.Origin, ago(s.Updated), ago(s.LastUsed)}
		})
}

func (c *cli) secretRemove() *cobra.Command {
	return c.removal(&cobra.Command{
		Use:     "rm NAME…",
		Short:   "Delete secrets; sandboxes that have them keep them",
		Example: "  harvest secret rm github",
	}, "secrets", func(ctx context.Context, server *client.Client, name string) error {
		return server.DeleteSecret(ctx, name)
	})
}

func (c *cli) secretRekey() *cobra.Command {
	return &cobra.Command{
		Use:   "rekey",
		Short: "Make a new key file and seal all secrets with it",
		Long: `Makes a new key, seals the secrets of all accounts with it, and then forgets the old one. Interrupted at any moment, all secrets can still be
read, and it can be run again. Backups that were made before need the old key file.`,
		Example: "  harvest secret rekey",
		Args:    count(0, 0, "no arguments"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, _ []string) error {
			done, err := server.Rekey(ctx)
			if err != nil {
				return err
			}
			c.notef("%d secrets are sealed with a new key; keep a copy of the key file apart from the database's", done.Secrets)
			return nil
		}),
	}
}
