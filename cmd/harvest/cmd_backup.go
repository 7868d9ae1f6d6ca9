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
		Short: "Write the server's records into a file, from which another server can go on",
		Long: `Writes a copy of the database, consistent in itself, while the server goes on, with the configuration of the data directory, as a tar archive. FILE
is replaced when all is written; - is standard output.

The key files, secret.key and signing.key, are not in it: whoever has both them and the database can read the secrets. Keep a copy of them somewhere
else, or include them with --keys. Images, volumes and the files of sandboxes are not records, and not in it either.

To restore, unpack it into an empty directory of mode 0700, put the key files there, and start: harvest up --data DIR`,
		Example: `  harvest backup /mnt/backup/harvest.tar
  mkdir -m 700 restored && tar -xpf /mnt/backup/harvest.tar -C restored`,
		Args: count(1, 1, "one file"),
		RunE: c.withServer(func(ctx context.Context, server *client.Client, args []string) error {
			if _, tty := terminal(c.out); args[0] == "-" && tty {
				return errors.Remedy(errors.Newf(errors.Invalid, "an archive is not for a terminal"), "name a file, or write into a pipe")
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
				c.notef("not in it: %s; keep copies of them apart from it", strings.Join(keyFiles, ", "))
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&keys, "keys", false, "include the key files: then the backup itself is secret")
	return cmd
}

// backup writes a tar stream with everything that another server needs to continue with the records of the data
// directory.
func backup(ctx context.Context, db *store.DB, data string, keys bool, w io.Writer) error {
	temp, err := os.MkdirTemp(filepath.Join(data, uploadsName), "backup")
	if err != nil {
		return errors.Wrapf(err, "make a directory for the backup")
	}
	defer os.RemoveAll(temp)
	database := filepath.Join(temp, databaseName)
	if err := db.Backup(ctx, database); err != nil {
		return err
	}
	fault.Point("backup.copied")
	note := backupNote{Version: version(), Time: time.Now().UTC().Truncate(time.Second), Not: []string{"images", "volumes", "sandboxes"}}
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
		return errors.Wrapf(err, "write down what the backup has")
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
