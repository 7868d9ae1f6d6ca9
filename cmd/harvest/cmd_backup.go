package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) backupCommand() *cobra.Command {
	keys := false
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Back up the server's records to a file",
		Long: `Write a consistent copy of the database, and the configuration of the data directory, to FILE as a
tar archive. The server keeps running. FILE is replaced only when the archive is complete; "-" is
standard output.

The backup does not contain:
  secret.key, signing.key   With these and the database, anyone can read the secrets. Keep copies
                            elsewhere, or include them with --keys.
  modal/authority.pem       Signs the certificates of Modal's tunnels. The same applies.
  ssh_host_key              Shows clients of SSH that the server is the one that they know. The same.
  images, volumes, files    Files of sandboxes and volumes are not records.

To restore, unpack the archive into an empty directory of mode 0700, copy the key files there, and
start the server: harvest up --data DIR`,
		Example: `  harvest backup /mnt/backup/harvest.tar
  mkdir -m 700 restored && tar -xpf /mnt/backup/harvest.tar -C restored`,
		Args: cli.Args(1, 1, "one file"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			if _, tty := cli.Terminal(c.Out); args[0] == "-" && tty {
				return errors.Remedy(errors.Newf(errors.Invalid, "cannot write an archive to a terminal"),
					"name a file, or write to a pipe")
			}
			archive, err := server.Backup(ctx, api.BackupRequest{Keys: keys})
			if err != nil {
				return err
			}
			defer archive.Close()
			if args[0] == "-" {
				_, err := io.Copy(c.Out, archive)
				return err
			}
			if err := cli.WriteWhole(args[0], 0o600, archive); err != nil {
				return err
			}
			if !keys {
				c.Notef("not in the backup: %s; keep copies of them in another place",
					strings.Join(config.KeyFiles, ", "))
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&keys, "keys", false, "include the key files; the backup is then a secret itself")
	return cmd
}
