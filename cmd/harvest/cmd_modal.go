package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) modalCommand() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "modal",
		Short: "Run programs written for Modal on this machine",
		Long: `A server with the option modal.listen (harvest up --modal-listen) speaks Modal's protocol. Programs that
use Modal's SDKs for Go, JavaScript or Python create their sandboxes there, without changes.`,
		Example: `  harvest up --modal-listen 127.0.0.1:7783
  eval "$(harvest modal env)"`,
	}, c.modalEnv())
}

func (c commands) modalEnv() *cobra.Command {
	var expires cli.TimeFlag
	var name string
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Create a key and print the environment variables for Modal's SDKs",
		Long: `Create a key, and print MODAL_SERVER_URL, MODAL_TOKEN_ID and MODAL_TOKEN_SECRET as shell commands. The
key is shown only this time. harvest key rm revokes it. SSL_CERT_FILE, REQUESTS_CA_BUNDLE and
NODE_EXTRA_CA_CERTS make programs trust the certificates of tunnels, in addition to their own roots.`,
		Example: `  eval "$(harvest modal env)"
  harvest modal env --name ci --expires 720h`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
			info, err := server.Server(ctx)
			if err != nil {
				return err
			}
			if info.ModalURL == "" {
				return withoutProtocol(info)
			}
			cfg, err := c.Config()
			if err != nil {
				return err
			}
			var vars []variable
			if info.ModalAuthority != "" {
				files := trust{dir: filepath.Join(cfg.Data, trusting), env: c.Env, roots: systemRoots}
				if vars, err = files.variables(info.ModalAuthority); err != nil {
					return err
				}
			}
			if name == "" {
				name = "modal-" + time.Now().UTC().Format("20060102-150405.000")
			}
			made, err := server.CreateKey(ctx, api.KeyRequest{Name: name, ExpiresIn: expires.Seconds()})
			if err != nil {
				return err
			}
			for _, v := range append([]variable{{"MODAL_SERVER_URL", info.ModalURL}, {"MODAL_TOKEN_ID", made.ID},
				{"MODAL_TOKEN_SECRET", made.Secret}}, vars...) {
				fmt.Fprintf(c.Out, "export %s=%s\n", v.name, quoted(v.value))
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the key (default: a name with the current time)")
	cmd.Flags().Var(&expires, "expires", "lifetime, such as 720h (default: no expiry)")
	return cmd
}

// withoutProtocol is the error for a server that does not speak Modal's protocol.
func withoutProtocol(info api.Server) error {
	err := errors.Newf(errors.Unsupported, "this server does not speak Modal's protocol")
	if info.Background {
		return errors.Remedy(err, "replace it with: harvest up --modal-listen 127.0.0.1:7783, "+
			"or set HARVEST_MODAL_LISTEN=127.0.0.1:7783 for servers in the background")
	}
	return errors.Remedy(err,
		"stop it with \"harvest down\", and start it with: harvest up --modal-listen 127.0.0.1:7783")
}
