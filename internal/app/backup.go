package app

import (
	"archive/tar"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/release"
	"github.com/RelevanceAI/harvest/internal/store"
)

// Files of the data directory.
const (
	databaseName  = "harvest.db"
	secretKeyName = "secret.key"
	uploadsName   = "uploads"
	// sessionUploadsName is the directory of the files that clients send ahead of sessions.
	sessionUploadsName = "session-uploads"
)

// backedUp are the files of the data directory that a backup contains beside the database, where they exist.
var backedUp = []string{"config.yaml"}

// backupNote is the file backup.json of a backup.
type backupNote struct {
	Version string    `json:"version"` // of Harvest
	Time    time.Time `json:"time"`
	Has     []string  `json:"has"`
	Needs   []string  `json:"needs,omitempty"` // files to put beside them
	Not     []string  `json:"not_included"`    // not records
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
	note := backupNote{Version: release.Version(), Time: time.Now().UTC().Truncate(time.Second),
		Not: []string{"images", "volumes", "sandboxes"}}
	files := map[string]string{databaseName: database} // paths, by the names in the backup
	for _, name := range slices.Concat(backedUp, config.KeyFiles) {
		path := filepath.Join(data, name)
		if _, err := os.Stat(path); err != nil {
			continue // does not exist
		}
		if !keys && slices.Contains(config.KeyFiles, name) {
			note.Needs = append(note.Needs, name)
			continue
		}
		files[name] = path
	}
	note.Has = slices.Sorted(maps.Keys(files))
	text, err := json.MarshalIndent(note, "", "  ")
	if err != nil {
		return errors.Wrapf(err, "write the manifest of the backup")
	}
	tw := tar.NewWriter(w)
	if err := addFile(tw, "backup.json", int64(len(text)), strings.NewReader(string(text))); err != nil {
		return err
	}
	for _, name := range note.Has {
		if err := addPath(tw, name, files[name]); err != nil {
			return err
		}
	}
	return errors.Wrapf(tw.Close(), "write the backup")
}

func addPath(tw *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return errors.Wrapf(err, "open a file for the backup")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return errors.Wrapf(err, "look at a file for the backup")
	}
	return addFile(tw, name, info.Size(), f)
}

func addFile(tw *tar.Writer, name string, size int64, from io.Reader) error {
	header := &tar.Header{Name: name, Mode: 0o600, Size: size, Typeflag: tar.TypeReg, ModTime: time.Now()}
	if err := tw.WriteHeader(header); err != nil {
		return errors.Wrapf(err, "write the backup")
	}
	_, err := io.CopyN(tw, from, size)
	return errors.Wrapf(err, "write the backup")
}
