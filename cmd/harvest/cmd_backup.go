package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/store"
)

// Files of the data directory.
const (
	databaseName  = "harvest.db"
	secretKeyName = "secret.key"
	uploadsName   = "uploads"
)

// Files of the data directory that a backup contains beside the database, where they exist.
var (
	backedUp = []string{"config.yaml"}
	keyFiles = []string{secretKeyName, store.SignerName}
)

// backupNote is the file backup.json of a backup.
type backupNote struct {
	Version string    `json:"version"` // of Harvest
	Time    time.Time `json:"time"`
	Has     []string  `json:"has"`
	Needs   []string  `json:"needs,omitempty"` // files to put beside them
	Not     []string  `json:"not_included"`    // not records
}

func (c *cli) backupCommand() *cobra.Command {
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
  images, volumes, files    Files of sandboxes and volumes are not records.

To restore, unpack the archive into an empty directory of mode 0700, copy the key files there, and
start the server: harvest up --data DIR`,
		Example: `  harvest backup /mnt/backup/harvest.tar
  mkdir -m 700 restored && tar -xpf /mnt/backup/harvest.tar -C restored`,
		Args: count(1, 1, "one file"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			if _, tty := terminal(c.out); args[0] == "-" && tty {
				return errors.Remedy(errors.Newf(errors.Invalid, "cannot write an archive to a terminal"),
					"name a file, or write to a pipe")
			}
			archive, err := server.Backup(ctx, api.BackupRequest{Keys: keys})
			if err != nil {
				return err
			}
			defer archive.Close()
			if args[0] == "-" {
				_, err := io.Copy(c.out, archive)
				return err
			}
			if err := writeWhole(args[0], 0o600, archive); err != nil {
				return err
			}
			if !keys {
				c.notef("not in the backup: %s; keep copies of them in another place", strings.Join(keyFiles, ", "))
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&keys, "keys", false, "include the key files; the backup is then a secret itself")
	return cmd
}

// backup writes a tar stream with everything that another server needs to continue with the records of the data
// directory.
func backup(ctx context.Context, db *store.DB, data string, keys bool, w io.Writer) error {
	temp, err := os.MkdirTemp(filepath.Join(data, uploadsName), "backup")
	if err != nil {
		return errors.Wrapf(err, "create a directory for the backup")
	}
	defer os.RemoveAll(temp)
	database := filepath.Join(temp, databaseName)
	if err := db.Backup(ctx, database); err != nil {
		return err
	}
	fault.Point("backup.copied")
	note := backupNote{Version: version(), Time: time.Now().UTC().Truncate(time.Second),
		Not: []string{"images", "volumes", "sandboxes"}}
	files := []string{database}
	for _, name := range slices.Concat(backedUp, keyFiles) {
		path := filepath.Join(data, name)
		if _, err := os.Stat(path); err != nil {
			continue // does not exist
		}
		if !keys && slices.Contains(keyFiles, name) {
			note.Needs = append(note.Needs, name)
			continue
		}
		files = append(files, path)
	}
	for _, path := range files {
		note.Has = append(note.Has, filepath.Base(path))
	}
	text, err := json.MarshalIndent(note, "", "  ")
	if err != nil {
		return errors.Wrapf(err, "write the manifest of the backup")
	}
	tw := tar.NewWriter(w)
	if err := addFile(tw, "backup.json", int64(len(text)), strings.NewReader(string(text))); err != nil {
		return err
	}
	for _, path := range files {
		if err := addPath(tw, path); err != nil {
			return err
		}
	}
	return errors.Wrapf(tw.Close(), "write the backup")
}

func addPath(tw *tar.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return errors.Wrapf(err, "open a file for the backup")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return errors.Wrapf(err, "look at a file for the backup")
	}
	return addFile(tw, filepath.Base(path), info.Size(), f)
}

func addFile(tw *tar.Writer, name string, size int64, from io.Reader) error {
	header := &tar.Header{Name: name, Mode: 0o600, Size: size, Typeflag: tar.TypeReg, ModTime: time.Now()}
	if err := tw.WriteHeader(header); err != nil {
		return errors.Wrapf(err, "write the backup")
	}
	_, err := io.CopyN(tw, from, size)
	return errors.Wrapf(err, "write the backup")
}
